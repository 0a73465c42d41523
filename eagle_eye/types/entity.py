"""What every noun has: a schema version, and a name in JSON."""

from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

SCHEMA = 1
"""The version of every noun below; a reader understands this one and the one before."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]


class Noun(msgspec.Struct, frozen=True, kw_only=True, tag_field="noun", tag=str.lower, omit_defaults=False):
    """A value with a schema version; `noun` names its kind in JSON."""

    schema: int = SCHEMA


class Kind(StrEnum):
    """The kinds of things that a fault can be in, from the narrowest to the widest."""

    GPU = "gpu"
    WORKER = "worker"
    LINK = "link"
    NODE = "node"
    SWITCH = "switch"
    JOB = "job"


class Entity(Noun, frozen=True, kw_only=True):
    """A physical, lasting thing. A rank is no identity: it changes at every restart."""

    kind: Kind
    name: str
    """node: `--node`; gpu: its UUID; worker: run/node/slot; job: tenant/name/run."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
