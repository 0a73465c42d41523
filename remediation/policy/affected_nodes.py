"""Which nodes a plan affects: those that it acts on, evicts or is about."""

from collections.abc import Iterator

from eagle_eye.topology import node_of
from eagle_eye.types import Incident, Plan, Situation

OBSERVING = frozenset({"dump", "notify", "release", "return_workers", "undo"})
"""Actions that take nothing from a job."""


def touched(plan: Plan, job: str) -> Iterator[str]:
    """Nodes of a job that a plan acts on. A worker is called run/node/slot."""
    for target in plan.targets:
        if target.job == job and plan.action not in OBSERVING:
            yield from target.exclude
            yield from (node for node, count in target.workers_per_node.items() if count < target.workers_per_node_before.get(node, 0))
            yield from (worker.split("/")[-2] for worker in target.workers if worker.count("/") >= 2)


def isolated(plan: Plan) -> tuple[str, ...]:
    """Nodes that a plan evicts, from any job."""
    if plan.action in OBSERVING:
        return ()
    return tuple(dict.fromkeys(node for target in plan.targets for node in target.exclude))


def accused(incident: Incident, situation: Situation) -> tuple[str, ...]:
    """Nodes of an incident's culprits, as far as they are known."""
    nodes = (node_of(culprit.entity, situation.topology) for culprit in incident.culprits)
    return tuple(dict.fromkeys(node for node in nodes if node))


def concerned(plan: Plan, situation: Situation) -> tuple[str, ...]:
    """Nodes that a plan is about: those that it touches and those of the culprits."""
    mine = (node for target in plan.targets for node in touched(plan, target.job))
    return tuple(dict.fromkeys((*mine, *accused(situation.incident, situation))))
