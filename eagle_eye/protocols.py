"""The verbs: one method each. Loops, time-outs, retries, logs and the hot window belong to the runner."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from .frames import Frame
from .types import (
    Baseline,
    Claim,
    Event,
    Finding,
    Floats,
    Incident,
    Outcome,
    Plan,
    Progress,
    Reading,
    Situation,
    StepReading,
    Topology,
    Transition,
    Verdict,
)


@runtime_checkable
class Collector(Protocol):
    """Reads one source once. It may raise: the agent counts it, backs off and tells."""

    def collect(self) -> Iterable[Reading | StepReading | Event]: ...


@runtime_checkable
class Detector(Protocol):
    """Judges one frame of one job. No I/O, no clock, no training: the same frames give the same claims.

    Optional class attribute `every`: look at each n-th tick only (cut frames always come).
    """

    def update(self, frame: Frame, /) -> Iterable[Claim]: ...


@runtime_checkable
class Diagnoser(Protocol):
    """Folds findings into incidents: returns the new and the revised ones; one of the same revision is no news."""

    def diagnose(
        self, opened: Sequence[Incident], findings: Sequence[Finding], topology: Topology, /
    ) -> Iterable[Incident]: ...


@runtime_checkable
class Guard(Protocol):
    """Lets a plan pass, holds it or refuses it, each with its reason."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict: ...


@runtime_checkable
class Action(Protocol):
    """Carries a plan out. Raises TemporaryError(delay) or PermanentError."""

    def run(self, plan: Plan, /) -> Iterator[Progress]: ...


@runtime_checkable
class Framework(Protocol):
    """Drives a training framework through a transition."""

    def apply(self, transition: Transition, /) -> Outcome: ...


@runtime_checkable
class Learner(Protocol):
    """Fits a baseline, in a child process, on minutes without open findings.

    `remember` says what it wants of a healthy tick: (names, samples × names). `fit` gets {"job", "time", "names",
    "matrix" (all samples × names, oldest first)}.
    """

    def sample(self, frame: Frame, /) -> tuple[tuple[str, ...], Floats]: ...
    def fit(self, history: Mapping[str, Any], /) -> Baseline: ...


@runtime_checkable
class Cluster(Protocol):
    """The scheduler's view of the machines; every change names the plan that asks for it."""

    def nodes(self) -> Sequence[str]: ...
    def cordon(self, node: str, plan: str, /) -> None: ...
    def release(self, node: str, plan: str, /) -> None: ...
    def start(self, node: str, job: str, /) -> None: ...
    def stop(self, node: str, job: str, /) -> None: ...
