"""Nodes and launchers that are lost, taken away by a scheduler, or only out of sight."""

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import NOBODY, DrillJob, DrillLabel, TickSignals
from eagle_eye.types import Entity, Kind

from .signs import fault, peers_cry, restarts, stands_still, twin, worker_of

SERVER = "server"


def goes_silent(job: DrillJob, nodes: frozenset[str], at: float, until: float = np.inf) -> None:
    """Nothing is read of these nodes any more, or for a while."""
    before = job.effect.tick

    def tick(signals: TickSignals) -> None:
        before(signals)
        if not at <= signals.time < until:
            return
        for node in nodes:
            signals.reporting[node] = at
        for kind, names in signals.entities.items():
            mine = np.array([node_named(kind, name) in nodes for name in names])
            for values in signals.metrics[kind].values():
                values[mine] = np.nan

    job.effect.tick = tick


def node_named(kind: Kind, name: str) -> str:
    """The node in the name of a GPU, worker, link, mount or node of a drill."""
    if kind is Kind.WORKER:
        return name.split("/")[1]
    return name.partition("/")[0] if kind is not Kind.GPU else name.removeprefix("GPU-").rpartition("-")[0]


def node_dies(job: DrillJob, node: str, at: float) -> None:
    """Power, or the kernel: agent, launcher and workers are gone at once."""
    entity = Entity(kind=Kind.NODE, name=node)
    goes_silent(job, frozenset({node}), at)
    stands_still(job, at)
    for role in ("agent", "launcher"):
        job.tell(at + float(job.rng.uniform(0.1, 1.5)), "session.lost", entity, node=SERVER, role=role)
    others = [name for name in job.layout.nodes if name != node]
    job.tell(at + float(job.rng.uniform(0.1, 1.0)), "peer.lost", entity, node=others[0], seen_by=others[0])
    alive = [place for place in job.peers(40) if place.node != node]
    peers_cry(job, at + 0.2, within=alive)
    begins = at + float(job.rng.uniform(3.0, 6.0))
    job.effect.restart, job.effect.without = begins, (node,)
    job.tell(begins, "epoch.started", job.itself, node=others[0], late_s=0.05, epoch=2, reason="node lost")


def _node_lost(job: DrillJob) -> DrillLabel:
    node_dies(job, job.target.node, job.onset + float(job.rng.uniform(0.0, 0.9)))
    return DrillLabel(("node lost",), (job.node,))


def _launcher_lost(job: DrillJob) -> DrillLabel:
    """It was killed; its workers end with it, and the agent tells of them."""
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    stands_still(job, at)
    job.tell(at + 0.1, "session.lost", job.node, node=SERVER, role="launcher")
    for place in job.places(job.target.node):
        job.tell(at + float(job.rng.uniform(0.2, 0.5)), "exit", worker_of(place), code=-9, signal="SIGKILL", launcher="ended", node=place.node)
    peers_cry(job, at + 0.3, within=[place for place in job.peers(30) if place.node != job.target.node])
    restarts(job, at)
    return DrillLabel(("launcher lost",), (job.node,))


def _preempted(job: DrillJob) -> DrillLabel:
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    told = {"scheduler": "slurm", "subject": "Slurm job 7", "reason": "preempted", "began": at - 20.0, "deadline": at + 30.0}
    job.tell(at - 20.0, "scheduler.preemption", job.node, more=told)
    stands_still(job, at)
    for place in job.places(job.target.node):
        job.tell(at + float(job.rng.uniform(0.0, 0.5)), "exit", worker_of(place), code=-15, signal="SIGTERM", rank=place.rank)
    job.tell(at + 0.8, "session.lost", job.node, node=SERVER, role="launcher")
    peers_cry(job, at + 0.3, within=[place for place in job.peers(30) if place.node != job.target.node])
    restarts(job, at, reason="node lost", without=(job.target.node,))
    return DrillLabel(("preempted",), NOBODY)


def _waits(job: DrillJob) -> DrillLabel:
    """A coordinator that reaches too few launchers, while nobody trains."""
    stands_still(job, job.onset)
    job.tell(job.onset + 0.5, "coordinator.isolated", job.itself, node=job.layout.coordinator, message="3 of 8 launchers can be reached: no epoch can begin")
    return DrillLabel(("job waiting",), NOBODY)


def _agent_restarts(job: DrillJob) -> DrillLabel:
    """Batches stop and its session is gone; the job trains on."""
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    goes_silent(job, frozenset({job.target.node}), at, at + 6.0)
    job.tell(at + 0.5, "session.lost", job.node, node=SERVER, role="agent")
    job.tell(at + 6.2, "session.opened", job.node, node=SERVER, role="agent")
    return DrillLabel(("",), NOBODY)


def _session_breaks(job: DrillJob) -> DrillLabel:
    """Of a launcher, on the control network alone."""
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    job.tell(at, "session.lost", job.node, node=SERVER, role="launcher")
    if job.rng.random() < 0.5:
        job.tell(at + 0.2, "peer.lost", job.node, node=job.layout.coordinator, seen_by=job.layout.coordinator)
    job.tell(at + 4.0, "session.opened", job.node, node=SERVER, role="launcher")
    return DrillLabel(("",), NOBODY)


def _server_away(job: DrillJob) -> DrillLabel:
    """All sessions break at once and batches of many nodes come late."""
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    nodes = job.layout.nodes
    gone = nodes[: max(3, len(nodes) // 2)]
    goes_silent(job, frozenset(gone), at, at + 5.0)
    for node in gone:
        entity = Entity(kind=Kind.NODE, name=node)
        for role in ("agent", "launcher"):
            job.tell(at + float(job.rng.uniform(0.0, 1.0)), "session.lost", entity, node=SERVER, role=role)
            job.tell(at + 6.0 + float(job.rng.uniform(0.0, 1.0)), "session.opened", entity, node=SERVER, role=role)
    return DrillLabel(("",), NOBODY)


def _launcher_stopped(job: DrillJob) -> DrillLabel:
    """By a signal: its workers train on."""
    job.tell(job.onset + 0.3, "launcher.stopped", job.node, pid=4711, message="the launcher (pid 4711) is stopped by a signal: kill -CONT 4711")
    return DrillLabel(("launcher stopped",), NOBODY)


def _isolated_and_trains(job: DrillJob) -> DrillLabel:
    job.tell(job.onset + 0.5, "coordinator.isolated", job.itself, node=job.layout.coordinator, message="3 of 8 launchers can be reached", trains=1)
    return DrillLabel(("quorum lost",), NOBODY)


def _drained(job: DrillJob) -> DrillLabel:
    """Its scheduler takes no more work for it; the job goes on there."""
    job.tell(job.onset + 0.5, "scheduler.node_state", job.node, scheduler="slurm", states="drain", reason="maintenance on Friday")
    return DrillLabel(("node state",), NOBODY)


def _noticed(job: DrillJob) -> DrillLabel:
    """A preemption that is called off."""
    told = {"scheduler": "kubernetes", "subject": f"node {job.target.node}", "reason": "maintenance", "began": job.onset, "deadline": job.onset + 60.0}
    job.tell(job.onset + 0.5, "scheduler.preemption", job.node, more=told)
    job.tell(job.onset + 12.0, "scheduler.preemption_withdrawn", job.node, more=told)
    return DrillLabel(("preemption notice",), NOBODY)


def _unused(job: DrillJob) -> DrillLabel:
    spare = Entity(kind=Kind.NODE, name="spare-1")
    job.tell(job.onset + 0.5, "node.unused", spare, node=job.layout.coordinator, message="spare-1 is here, and the job trains without it")
    return DrillLabel(("node unused",), NOBODY)


KINDS = (
    fault("node lost", "node", _node_lost),
    fault("launcher killed with its workers", "node", _launcher_lost),
    fault("node preempted", "node", _preempted),
    fault("too few launchers, nobody trains", "node", _waits),
    twin("agent restarts", "node", _agent_restarts),
    twin("launcher's session breaks, training goes on", "node", _session_breaks),
    twin("server away", "node", _server_away),
    twin("launcher stopped, training goes on", "node", _launcher_stopped),
    twin("too few launchers, training goes on", "node", _isolated_and_trains),
    twin("node is to be drained", "node", _drained),
    twin("notice of a preemption that is called off", "node", _noticed),
    twin("node that is not used", "node", _unused),
)
