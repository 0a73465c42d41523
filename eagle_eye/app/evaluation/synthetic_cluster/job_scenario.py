"""What a scenario of a synthetic cluster is: a fault and its innocent twin, which part is at fault, and what is asked of who looks for it.

A scenario fills in what happens to a job as a drill does (drill_corpus/drill_job.py), so the same machinery makes its frames.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob
from eagle_eye.app.evaluation.drill_corpus.kinds import BY_NAME
from eagle_eye.topology import node_of_worker
from eagle_eye.types import Entity, Kind

Victims = Sequence[DrillJob]
"""The jobs that a scenario happens to: one, or two on shared parts."""
Happens = Callable[[Victims], None]
Parts = tuple[Entity, ...]
PartAtFault = Callable[[Victims], Parts]
"""Entities that are at fault; several are names of one and the same suspect."""


def nobody(_jobs: Victims) -> Parts:
    """No part that could be named: the job, its script, its data, the network or the storage as a whole."""
    return ()


def worker_or_gpu(jobs: Victims) -> Parts:
    """The target, or its GPU: from outside they are the same suspect."""
    return (jobs[0].worker, jobs[0].gpu)


def its_node(jobs: Victims) -> Parts:
    """That of the target."""
    return (jobs[0].node,)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScenario:
    """A kind of fault, or a twin."""

    name: str
    kind: str
    """Of the fault, one of `fault_kinds.KINDS`; of a twin, what it looks like."""
    fault: bool
    happen: Happens
    at: PartAtFault = nobody
    sick: bool = True
    """The node of that part is at fault, and to accuse it is right. False: what is at fault there is its telemetry, a link or the script, and the node is healthy."""
    informs: bool = False
    """The job trains on as before: it is enough to tell, and nobody has to be accused."""
    jobs: int = 1
    stages: int = 1
    """The job has at least so many pipeline stages ..."""
    most_stages: int = 4
    """... and at most so many ..."""
    peers: int = 4
    """... and a stage at least so many workers: of a job on one node nobody can tell a slow node from slow work."""

    @property
    def smallest(self) -> int:
        """Workers of the smallest job that it can happen to."""
        return self.stages * self.peers


class ScenarioPair(NamedTuple):
    """A fault and the innocent twin that is nearest to it: both are planned with the same sizes, so that nothing about a job but what happens to it tells them apart."""

    fault: JobScenario
    twin: JobScenario

    @property
    def smallest(self) -> int:
        return max(self.fault.smallest, self.twin.smallest)


def alone(happen: Callable[[DrillJob], object]) -> Happens:
    """What happens to a single job."""

    def happens(jobs: Victims) -> None:
        happen(jobs[0])

    return happens


def as_drill(name: str) -> Happens:
    """What happens in a drill of this kind; the label is the scenario's own."""
    kind = BY_NAME[name]

    def happens(jobs: Victims) -> None:
        kind.happen(jobs)

    return happens


def nodes_of(parts: Parts, jobs: Victims) -> tuple[str, ...]:
    """The nodes that these parts are in; a switch is in none."""
    gpus = {place.gpu: place.node for job in jobs for place in job.layout.placements}
    return tuple(dict.fromkeys(node for part in parts if (node := _node_in(part, gpus))))


def _node_in(part: Entity, gpus: dict[str, str]) -> str:
    match part.kind:
        case Kind.NODE:
            return part.name
        case Kind.GPU:
            return gpus[part.name]
        case Kind.WORKER:
            return node_of_worker(part.name)
        case Kind.LINK | Kind.MOUNT:
            return part.name.partition("/")[0]
        case _:
            return ""
