"""Recovery policies: what it costs to detect a fault, to change over, and to train again. All of it is data.

policies/<name>.toml names for each constant its value, where it comes from and its confidence. A policy has only
what differs from the one that it is `based_on`; megatron.toml, the classic restart, states every constant. A `part` is what a
paper adds: it can be switched off, and then the constants named under `without` hold.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from eagle_eye.errors import ConfigError

from .fault_trace import FaultKind, FaultSymptom

FOLDER = Path(__file__).with_name("policies")
SMALLEST_JOB_GPUS = 16
"""From here on a switch takes longer with each doubling of GPUs."""

Confidence = Literal["source", "measured", "paper from memory", "derived", "calibrated", "assumed"]
"""source: read where it was published. measured: by the named benchmark. paper from memory: its text was not at hand."""
CapacityName = Literal["wait", "shrink", "reallocate"]
"""After a loss: wait for another node; go on with fewer; reallocate the cluster among all tasks."""
Repair = Literal["reattempt", "restart", "reconfigure"]
"""Unicron's actions for severities 3, 2 and 1."""
REPAIRS: tuple[Repair, ...] = ("reattempt", "restart", "reconfigure")
"""The weakest first."""


class PolicyConstant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One value with its source."""

    value: float | bool | str
    source: str
    confidence: Confidence


class PolicyPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a paper brings, and what holds without it."""

    about: str
    without: dict[str, float | bool | str]


class PolicyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy's file."""

    title: str
    about: str
    constant: dict[str, PolicyConstant]
    based_on: str = ""
    part: dict[str, PolicyPart] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConstants:
    """The constants. Seconds end in _s; shares are between 0 and 1."""

    capacity: CapacityName
    weakest_repair: Repair
    """The weakest that it knows: a fault that a weaker one would cure takes this one."""
    efficiency: float
    """Throughput without faults, as a share of Megatron's."""
    redundant_share: float
    """Of a running GPU's time that goes into work that others do too."""
    detection_lost_s: float
    detection_exit_s: float
    detection_exception_s: float
    detection_hang_s: float
    detection_hang_iterations: float
    """In addition to detection_hang_s."""
    detection_slow_s: float
    """Until a slow node is known and its work is rebalanced; negative: never."""
    drain_s: float
    """By hand, before a broken node is evicted."""
    reattempt_s: float
    restart_s: float
    reconfigure_s: float
    doubling_s: float
    """What each doubling of a job's GPUs beyond 16 adds to a reconfiguration."""
    replica: bool
    """State can come from a data-parallel replica."""
    memory: bool
    """State can come from a checkpoint in the memory of this host or its neighbour's."""
    load_replica_s: float
    load_memory_s: float
    load_storage_s: float
    checkpoint_interval_s: float
    checkpoint_stall_s: float
    """How long training is paused for each checkpoint."""
    checkpoint_persist_s: float
    """From the end of a stall until storage has it."""
    partial_results: bool
    """Micro-batches that survivors have finished are kept."""
    transitions: bool
    """What a lost node costs in place is asked of remediation.transition; without, it is a constant."""
    templates: bool
    """Every node count is used; without, whole replicas alone."""
    reroute: bool
    """ReCycle: peers take the lost node's micro-batches, in their bubbles first; no state moves."""

    decides: bool
    """About a slow node all alternatives are weighed; without, its micro-batches move away."""

    def detection_s(self, symptom: FaultSymptom, iteration_s: float) -> float:
        """From the fault until it is known."""
        if symptom is FaultSymptom.HANG:
            return self.detection_hang_s + self.detection_hang_iterations * iteration_s
        return {FaultSymptom.LOST: self.detection_lost_s, FaultSymptom.EXIT: self.detection_exit_s, FaultSymptom.EXCEPTION: self.detection_exception_s}[symptom]

    def repair(self, kind: FaultKind) -> Repair:
        """The weakest repair that can help and that the policy knows."""
        needed = {FaultKind.TRANSIENT: 0, FaultKind.RESTART: 1}.get(kind, 2)
        return REPAIRS[max(needed, REPAIRS.index(self.weakest_repair))]

    def switch_s(self, repair: Repair, gpus: int) -> float:
        """How long the repair itself takes, without loading state."""
        if repair == "reconfigure":
            return self.reconfigure_s + self.doubling_s * math.log2(max(1.0, gpus / SMALLEST_JOB_GPUS))
        return self.reattempt_s if repair == "reattempt" else self.restart_s


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """A policy as it is run."""

    name: str
    title: str
    costs: RecoveryConstants
    origins: Mapping[str, PolicyConstant]
    """Where each constant comes from."""
    parts: Mapping[str, PolicyPart]
    off: tuple[str, ...] = ()
    """Parts that are switched off."""

    @property
    def label(self) -> str:
        """Name, and what it goes without."""
        return self.name + "".join(f" − {part}" for part in self.off)

    def without(self, *names: str) -> "RecoveryPolicy":
        """The same without these parts. Raises ConfigError for one that it does not have."""
        changed = self
        for name in names:
            if name not in self.parts:
                raise ConfigError(f"policy {self.name!r} has no part {name!r}; it has {', '.join(self.parts) or 'none that can be switched off'}")
            changed = dataclasses.replace(changed.with_constants(**self.parts[name].without), off=(*changed.off, name))
        return changed

    def with_constants(self, **constants: Any) -> "RecoveryPolicy":
        """The same with other constants."""
        return dataclasses.replace(self, costs=dataclasses.replace(self.costs, **constants))


def policy_names() -> list[str]:
    """The policies there are, the classic one first and ours last."""
    found = sorted(path.stem for path in FOLDER.glob("*.toml"))
    return sorted(found, key=lambda name: (name != "megatron", name == "ours"))


@cache
def load_policy(name: str) -> RecoveryPolicy:
    """A policy of the package. Raises ConfigError for an unknown one."""
    if name not in policy_names():
        raise ConfigError(f"no policy is called {name!r}; there are {', '.join(policy_names())}")
    file = _file(name)
    known = {field.name for field in dataclasses.fields(RecoveryConstants)}
    for constant in [*file.constant, *(each for part in file.part.values() for each in part.without)]:
        if constant not in known:
            raise ConfigError(f"policies/{name}.toml: there is no constant {constant!r}")
    origins = {**(load_policy(file.based_on).origins if file.based_on else {}), **file.constant}
    missing = known - set(origins)
    if missing:
        raise ConfigError(f"policies/{name}.toml: constants without a value: {', '.join(sorted(missing))}")
    return RecoveryPolicy(name, file.title, _costs(name, {each: origin.value for each, origin in origins.items()}), origins, file.part)


def _costs(name: str, values: Mapping[str, Any]) -> RecoveryConstants:
    try:
        return msgspec.convert(values, RecoveryConstants)
    except msgspec.ValidationError as error:
        raise ConfigError(f"policies/{name}.toml: {error}") from error


def load_policies(wanted: Iterable[str]) -> list[RecoveryPolicy]:
    """Policies by name; `all`: every one."""
    listed = list(wanted)
    return [load_policy(name) for name in (policy_names() if "all" in listed else listed)]


def _file(name: str) -> PolicyFile:
    try:
        return msgspec.toml.decode((FOLDER / f"{name}.toml").read_bytes(), type=PolicyFile)
    except msgspec.DecodeError as error:
        raise ConfigError(f"policies/{name}.toml: {error}") from error
