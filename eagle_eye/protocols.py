"""Plugin protocols, one or two methods each. Loops, time-outs, retries and logs belong to the caller."""

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
    """Reads one source once; called by the agent in a thread of its own, every `interval_s`.

    It may raise: the agent reports `collector.failing` and retries with backoff. It may hang: see `timeout_s`.

    Optional attributes, read by the agent's thread at any time: `unavailable`, why there is nothing to read here, and `doing`, the call
    that it is in, so that one that hangs can be named.
    """

    def collect(self) -> Iterable[Reading | StepReading | Event]: ...


@runtime_checkable
class Detector(Protocol):
    """Evaluates one frame of one job. No I/O, no clock, no training: the same frames give the same claims.

    An exception is logged and reported; after three in a row the detector is muted for this job.

    Optional class attributes. `every`: evaluate each n-th tick only (cut frames always). `past_s`: how many seconds `frame.past` is asked to look
    back; nothing is kept for a detector that does not say so. `needs_job`: True = it has nothing to say about a node without a job, and is not
    asked there. Others are asked about such a node every fifteen seconds, and at once when an event of it came.
    """

    def update(self, frame: Frame, /) -> Iterable[Claim]: ...


@runtime_checkable
class Diagnoser(Protocol):
    """Folds findings into incidents: returns new and revised ones; an incident with an unchanged revision is ignored."""

    def diagnose(
        self, opened: Sequence[Incident], findings: Sequence[Finding], topology: Topology, /
    ) -> Iterable[Incident]: ...


@runtime_checkable
class Guard(Protocol):
    """Allows, holds or refuses a plan, each with its reason; called by the engine before each action."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict: ...


@runtime_checkable
class Action(Protocol):
    """Carries out a plan, yielding each step before and after it. Raises TemporaryError(delay) or PermanentError."""

    def run(self, plan: Plan, /) -> Iterator[Progress]: ...


@runtime_checkable
class Framework(Protocol):
    """Carries out a transition of a job in its training framework."""

    def apply(self, transition: Transition, /) -> Outcome: ...


@runtime_checkable
class Learner(Protocol):
    """Fits a baseline, in a child process, on minutes without open findings.

    `sample` returns the values that it wants of a healthy tick: (names, samples × names). `fit` gets {"job", "time",
    "names", "matrix" (all samples × names, oldest first), "before" (data of the baseline in force, b"" without one)}; it may
    raise, then no baseline is stored.
    """

    def sample(self, frame: Frame, /) -> tuple[tuple[str, ...], Floats]: ...
    def fit(self, history: Mapping[str, Any], /) -> Baseline: ...


@runtime_checkable
class Cluster(Protocol):
    """The scheduler's interface to the machines; every change names the plan that requests it."""

    def nodes(self) -> Sequence[str]: ...
    def cordon(self, node: str, plan: str, /) -> None: ...
    def release(self, node: str, plan: str, /) -> None: ...
    def start(self, node: str, job: str, /) -> None: ...
    def stop(self, node: str, job: str, /) -> None: ...
