"""Two jobs on shared parts: one fault that hits both, and two things that only happen at the same time."""

from collections.abc import Sequence

from eagle_eye.app.evaluation.drill_corpus.drill_job import (
    NOBODY,
    DrillJob,
    DrillKind,
    DrillLabel,
    Happening,
    Standstill,
)
from eagle_eye.types import Entity, Kind

from .of_deaths import KINDS as DEATHS
from .of_nodes import node_dies
from .of_parts import link_goes_down, mount_hangs
from .signs import peers_cry, restarts, stands_still


def switch_of(jobs: Sequence[DrillJob]) -> str:
    """The one at which both jobs have nodes."""
    first, second = ({place.switch for place in job.layout.places.values()} for job in jobs)
    return min(first & second)


def nodes_at(job: DrillJob, switch: str) -> list[str]:
    """Of a job."""
    return [node for node, place in job.layout.places.items() if place.switch == switch]


def _lose_ports(jobs: Sequence[DrillJob], ports: Sequence[int]) -> Entity:
    """All nodes at the shared switch lose these ports within two seconds."""
    switch = switch_of(jobs)
    for job in jobs:
        for node in nodes_at(job, switch):
            for port in ports:
                link_goes_down(job, node, port, jobs[0].onset + float(job.rng.uniform(0.2, 2.0)))
    return Entity(kind=Kind.SWITCH, name=switch)


def _switch_dies(jobs: Sequence[DrillJob]) -> DrillLabel:
    """Connections through it break."""
    entity = _lose_ports(jobs, (0, 1))
    for job in jobs:
        stands_still(job, jobs[0].onset + 0.2)
        peers_cry(job, jobs[0].onset + float(job.rng.uniform(0.5, 2.0)))
        restarts(job, jobs[0].onset + 2.0)
    return DrillLabel(("switch down", "network error"), (entity,), shared=True)


def _switch_loses_a_rail(jobs: Sequence[DrillJob]) -> DrillLabel:
    """The other rail carries on."""
    return DrillLabel(("switch down",), (_lose_ports(jobs, (0,)),), shared=True)


def _shared_node_dies(jobs: Sequence[DrillJob]) -> DrillLabel:
    node = next(node for node in jobs[0].layout.nodes if node in jobs[1].layout.nodes)
    for job in jobs:
        node_dies(job, node, jobs[0].onset + 0.3)
    return DrillLabel(("node lost",), (Entity(kind=Kind.NODE, name=node),), shared=True)


def _shared_server_hangs(jobs: Sequence[DrillJob]) -> DrillLabel:
    for job in jobs:
        for node in job.layout.nodes[:12]:
            mount_hangs(job, node, jobs[0].onset + float(job.rng.uniform(0.2, 6.0)))
    return DrillLabel(("storage hung",), NOBODY, shared=True)


def _one_is_hit(jobs: Sequence[DrillJob]) -> DrillLabel:
    """A worker of the first job ends; the other job, on the same switch, trains on."""
    return DEATHS[int(jobs[0].rng.integers(4))].happen(jobs)


def _both_by_chance(jobs: Sequence[DrillJob]) -> DrillLabel:
    """Each loses a worker, on nodes of their own, in the same second."""
    labels = [DEATHS[0].happen((job,)) for job in jobs]
    return DrillLabel(labels[0].causes, tuple(culprit for label in labels for culprit in label.culprits))


def _ports_by_chance(jobs: Sequence[DrillJob]) -> DrillLabel:
    """A port of each job goes down, at different switches."""
    switch = switch_of(jobs)
    for job in jobs:
        node = next(node for node in reversed(job.layout.nodes) if node not in nodes_at(job, switch))
        link_goes_down(job, node, 0, job.onset + 0.4)
    return DrillLabel(("link down",), NOBODY)


def _both_save(jobs: Sequence[DrillJob]) -> DrillLabel:
    for job in jobs:
        at = job.onset + float(job.rng.uniform(0.0, 2.0))
        job.effect.still = Standstill(begin=at, end=at + 12.0, others="working", others_phase="checkpoint")
    return DrillLabel(("", "pause", "job slow", "input stalled"), NOBODY)


def _kind(name: str, happen: Happening, *, fault: bool) -> DrillKind:
    return DrillKind(name=f"two jobs: {name}", family="two jobs", fault=fault, happen=happen, jobs=2, lasts_s=30)


KINDS = (
    _kind("their switch dies", _switch_dies, fault=True),
    _kind("their switch loses a rail, both train on", _switch_loses_a_rail, fault=True),
    _kind("their node dies", _shared_node_dies, fault=True),
    _kind("the server of their mounts hangs", _shared_server_hangs, fault=True),
    _kind("one loses a worker", _one_is_hit, fault=False),
    _kind("each loses a worker by chance", _both_by_chance, fault=False),
    _kind("ports at different switches go down", _ports_by_chance, fault=False),
    _kind("both save a checkpoint", _both_save, fault=False),
)
