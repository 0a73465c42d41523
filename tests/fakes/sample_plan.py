"""A plan and what a guard sees beside it, to be changed in the one respect that a test is about."""

from typing import Any

from eagle_eye.topology import with_layout
from eagle_eye.types import (
    Culprit,
    Entity,
    Finding,
    Incident,
    Kind,
    Layout,
    Mode,
    Outcome,
    Plan,
    RankPlacement,
    Severity,
    Situation,
    Target,
    Telemetry,
    Topology,
)

NOW = 10_000.0
JOB = "t/n/r"
NODES = ("a", "b", "c", "d")


def node(name: str) -> Entity:
    return Entity(kind=Kind.NODE, name=name)


def layout(job: str = JOB, nodes: tuple[str, ...] = NODES, slots: int = 2) -> Layout:
    places = [(name, slot) for name in nodes for slot in range(slots)]
    return Layout(
        job=job, epoch=3, time=NOW - 600, coordinator=nodes[0], launchers={name: f"{name}:7000" for name in nodes},
        placements=tuple(RankPlacement(worker=f"r/{name}/{slot}", node=name, rank=rank, local_rank=slot) for rank, (name, slot) in enumerate(places)),
    )  # fmt: skip


def incident(cause: str = "slow node", culprit: str = "c", confidence: float = 0.9, detectors: tuple[str, ...] = ("straggler", "exits")) -> Incident:
    culprits = (Culprit(entity=node(culprit), confidence=confidence),) if culprit else ()
    return Incident(
        id="i1", revision=1, job=JOB, cause=cause, culprits=culprits, severity=Severity.SEV1, findings=(), evidence=(),
        since=NOW - 9, time=NOW - 8, parts=tuple(_part(detector) for detector in detectors),
    )  # fmt: skip


def _part(detector: str) -> Finding:
    return Finding(
        id=detector, revision=1, detector=detector, digest="d", job=JOB, entity=node("c"), kind="worker.slow", score=0.9, since=NOW - 9,
        time=NOW - 8, evidence=(), active=True,
    )  # fmt: skip


def plan(
    name: str = "p1", *, job: str = JOB, exclude: tuple[str, ...] = (), workers: tuple[str, ...] = (),
    action: str = "evict_node", own: bool = False, epoch: int = 3, of: str = "i1",
) -> Plan:  # fmt: skip
    target = Target(job=job, epoch=epoch, basis="b", exclude=exclude, workers=workers)
    return Plan(
        id=name, incident=of, action=action, targets=(target,), made=NOW, expires=NOW + 60, severity=Severity.SEV1, own=own
    )


def situation(**more: Any) -> Situation:
    """A healthy cluster: one job on four nodes, all of which can be heard."""
    usual: dict[str, Any] = {
        "mode": Mode.AUTO, "incident": incident(), "open": (incident(),), "outcomes": (), "running": (), "plans": {},
        "approvals": (), "nodes": len(NODES), "now": NOW, "layouts": {JOB: layout()}, "topology": with_layout(Topology(), layout()),
        "telemetry": {name: Telemetry(node=name, heard=NOW - 1) for name in NODES},
    }  # fmt: skip
    return Situation(**{**usual, **more})


def done(*plans: Plan, ago: float = 60.0, state: Any = "done") -> dict[str, Any]:
    """Plans that ended so long ago, as the situation knows them."""
    outcomes = tuple(
        Outcome(plan=each.id, incident=each.incident, action=each.action, state=state, time=NOW - ago) for each in plans
    )
    return {"outcomes": outcomes, "plans": {each.id: each for each in plans}}
