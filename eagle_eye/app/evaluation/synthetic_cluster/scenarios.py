"""What happens to the jobs of a synthetic cluster: faults, and innocent twins that look like them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from eagle_eye.types import Doubles, Entity, Event, Kind, Layout, RankPlacement, digest_of

PAUSE_S = 20.0
OVERFLOW = 2.0 * float(np.finfo(np.float32).max)
"""No float32: infinite in a frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """One job, and what happens to it."""

    name: str
    layout: Layout
    scenario: "JobScenario"
    steps: int
    onset: int
    """Step in which it begins."""
    target: int
    """Index of the worker that it happens to."""
    seed: int

    @property
    def placement(self) -> RankPlacement:
        """Of that worker."""
        return self.layout.placements[self.target]

    @property
    def culprits(self) -> tuple[str, ...]:
        """Nodes at fault; () = nobody."""
        return (self.placement.node,) if self.scenario.of_node else ()


@dataclass(slots=True)
class JobStep:
    """What the workers do in one step; a scenario changes it in place."""

    number: int
    compute_s: Doubles
    tokens: Doubles
    loss: Doubles
    wait_s: float = 0.1
    """For nobody in particular."""


StepChange = Callable[[PlannedJob, JobStep], None]
ScenarioEvents = Callable[[PlannedJob, float], Iterator[Event]]


def _nothing(_job: PlannedJob, _step: JobStep) -> None:
    """Changes nothing."""


def _silent(_job: PlannedJob, _time: float) -> Iterator[Event]:
    """Tells of nothing."""
    yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScenario:
    """A kind of fault, or a twin."""

    name: str
    fault: bool
    of_node: bool = False
    """One node is at fault: that of the target."""
    change: StepChange = _nothing
    """Of every step from the onset on."""
    told: ScenarioEvents = _silent
    """Events at the onset."""
    ends: bool = False
    """No step is completed from the onset on."""
    stages: int = 1
    """The job has at least so many pipeline stages ..."""
    peers: int = 4
    """... and a stage at least so many workers: of a job on one node nobody can tell a slow node from slow work."""

    @property
    def smallest(self) -> int:
        """GPUs of the smallest job that it can happen to."""
        return self.stages * self.peers


def slower(times: float) -> StepChange:
    """The target computes longer."""

    def change(job: PlannedJob, step: JobStep) -> None:
        step.compute_s[job.target] *= times

    return change


def _creeping(job: PlannedJob, step: JobStep) -> None:
    step.compute_s[job.target] *= 1.0 + 0.5 * (step.number - job.onset) / max(1, job.steps - job.onset)


def _slow_node(job: PlannedJob, step: JobStep) -> None:
    node = job.placement.node
    step.compute_s[[each.node == node for each in job.layout.placements]] *= 1.3


def _all_slower(_job: PlannedJob, step: JobStep) -> None:
    step.compute_s *= 1.2


def _long_stage(job: PlannedJob, step: JobStep) -> None:
    last = max(each.pp for each in job.layout.placements)
    step.compute_s[[each.pp == last for each in job.layout.placements]] *= 1.4


def _more_work(job: PlannedJob, step: JobStep) -> None:
    step.compute_s[job.target] *= 1.3
    step.tokens[job.target] *= 1.3


def _pause(job: PlannedJob, step: JobStep) -> None:
    if step.number == job.onset:
        step.wait_s += PAUSE_S


def _not_finite(job: PlannedJob, step: JobStep) -> None:
    """The next exchange of gradients takes it to all."""
    if step.number == job.onset:
        step.loss[job.target] = OVERFLOW
    else:
        step.loss[:] = OVERFLOW


def _killed(job: PlannedJob, time: float) -> Iterator[Event]:
    yield _event(job, "exit", time, Kind.WORKER, job.placement.worker, code="-9", signal="SIGKILL")


def _all_end(job: PlannedJob, time: float) -> Iterator[Event]:
    for place in job.layout.placements:
        yield _event(job, "exit", time, Kind.WORKER, place.worker, code="0", node=place.node)


def raised(kind: str, message: str) -> ScenarioEvents:
    """The target raises an exception."""

    def told(job: PlannedJob, time: float) -> Iterator[Event]:
        yield _event(job, "exception", time, Kind.WORKER, job.placement.worker, message, type=kind, message=message, step=str(job.onset))

    return told


def xid(code: int) -> ScenarioEvents:
    """The driver of the target's GPU reports it."""

    def told(job: PlannedJob, time: float) -> Iterator[Event]:
        yield _event(job, "gpu.xid", time, Kind.GPU, job.placement.gpu, code=str(code))

    return told


def _event(job: PlannedJob, name: str, time: float, kind: Kind, entity: str, text: str = "", node: str = "", **attributes: str) -> Event:
    return Event(
        name=name, job=job.name, entity=Entity(kind=kind, name=entity), time=time, node=node or job.placement.node, incarnation="synthetic",
        number=int(digest_of(name, entity)[:7], 16), message=text, attributes={"epoch": "1", **attributes},
    )  # fmt: skip


SCENARIOS = (
    JobScenario(name="worker 1.3 times as slow", fault=True, of_node=True, change=slower(1.3)),
    JobScenario(name="more work: one worker has 1.3 times the tokens", fault=False, change=_more_work),
    JobScenario(name="worker 1.1 times as slow", fault=True, of_node=True, change=slower(1.1)),
    JobScenario(name="one worker is fast", fault=False, change=slower(0.7)),
    JobScenario(name="worker creeps to 1.5 times", fault=True, of_node=True, change=_creeping),
    JobScenario(name="the last stage is long", fault=False, change=_long_stage, stages=2),
    JobScenario(name="node 1.3 times as slow", fault=True, of_node=True, change=_slow_node, peers=32),
    JobScenario(name="healthy", fault=False),
    JobScenario(name="all 1.2 times as slow", fault=True, change=_all_slower),
    JobScenario(name="pause of all", fault=False, change=_pause),
    JobScenario(name="worker killed", fault=True, of_node=True, told=_killed, ends=True),
    JobScenario(name="all workers end", fault=False, told=_all_end, ends=True),
    JobScenario(name="ECC error", fault=True, of_node=True, told=raised("RuntimeError", "CUDA error: uncorrectable ECC error encountered"), ends=True),
    JobScenario(name="GPU off the bus (Xid 79)", fault=True, of_node=True, told=xid(79), ends=True),
    JobScenario(name="Xid 43 of the program, training goes on", fault=False, told=xid(43)),
    JobScenario(name="loss not finite, of one worker first", fault=True, of_node=True, change=_not_finite),
)
"""A fault, then its twin where it has one. A cluster has each at least once that fits into it."""


def healthy_loss(step: int) -> float:
    """As a curve of training falls."""
    return 2.0 + 4.0 * math.exp(-step / 300.0)
