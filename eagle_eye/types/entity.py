"""The base of all nouns (schema version, type tag), their digest, and entities: the things that a fault can be in."""

import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA = 1
"""Schema version of every noun; a reader accepts this version and the one before."""

LARGEST = 2**53
"""Beyond it a float does not tell two integers apart, and databases and numpy have no room for the next."""
Number = Annotated[int, msgspec.Meta(ge=-1, le=LARGEST)]
"""A step, an epoch, a generation, a count that goes on; -1: none. Checked where a record is read."""
LATEST = 1e11
Time = Annotated[float, msgspec.Meta(ge=-6e10, le=LATEST)]
"""Seconds since 1970, from the year 68 to the year 5138, which every calendar can show; neither NaN nor infinite."""
Uptime = Annotated[float, msgspec.Meta(ge=0.0, le=LATEST)]
"""Seconds by a machine's CLOCK_MONOTONIC, which nobody sets and a reboot begins anew; 0: not known. Neither NaN nor infinite."""
Real = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
"""Neither NaN nor infinite."""
Name = Annotated[str, msgspec.Meta(max_length=400, pattern=r"\A[^\x00]*\Z")]
"""What rows of a ledger are found by: databases index no longer text, and PostgreSQL holds no NUL."""

if TYPE_CHECKING:
    Floats = NDArray[np.float32]
    Doubles = NDArray[np.float64]
    Integers = NDArray[np.int64]
else:  # a command that prints incidents does without numpy
    Floats = Doubles = Integers = Any


class Noun(msgspec.Struct, frozen=True, kw_only=True, tag_field="noun", tag=str.lower, omit_defaults=False):
    """A record with a schema version; the field `noun` is its type tag in JSON and msgpack."""

    schema: int = SCHEMA


def digest_of(*parts: Any) -> str:
    """A short, stable digest of values that msgspec can encode: the same on every machine and run."""
    return hashlib.blake2b(msgspec.json.encode(parts, order="deterministic"), digest_size=8).hexdigest()


class Kind(StrEnum):
    """The kinds of things that a fault can be in, from the narrowest to the widest."""

    GPU = "gpu"
    WORKER = "worker"
    LINK = "link"
    MOUNT = "mount"
    NODE = "node"
    SWITCH = "switch"
    JOB = "job"


class Entity(Noun, frozen=True, kw_only=True):
    """A GPU, worker, link, mount, node, switch or job, with a name that survives restarts (a rank does not)."""

    kind: Kind
    name: str
    """node: `--node`; gpu: its UUID; worker: run/node/slot; link: node/port; mount: node and mount point; job: tenant/name/run."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
