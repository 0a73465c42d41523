"""What a lost node costs a job that heals in place, from the function that plans the transitions of live jobs.

The members of the plan are the job's replicas, its layers are their stages, each of them a unit of bytes. A replica that
lost some of its stages is one whose state is there in part; new nodes complete such replicas first and then make whole ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from eagle_eye.types import Layout, RankPlacement, Transition, WorkerStateReport
from remediation.transition import plan_transition

PLANNED_REPLICAS = 16
"""Replicas that are planned for; in a larger job the others are like them."""


@dataclass(frozen=True, slots=True)
class TransitionShares:
    """What a transition in place loses and moves."""

    lost_share: float
    """Of what the job had done of the iteration: what has to be done again."""
    load_share: float
    """Of a node's state: what the busiest node takes or gives."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A replica after the fault."""

    name: str
    left: int
    """Stages whose state it has."""
    nodes: int
    """That take what it lacks, each a part."""


@lru_cache(maxsize=4096)
def transition_shares(replicas: int, stages: int, lost: tuple[int, ...], new_nodes: int, micro_batches: int) -> TransitionShares:
    """Of `replicas` on `stages` nodes each. lost: nodes of each replica that lost some. micro_batches: of each replica.

    At least one replica is whole: else state comes from a checkpoint.
    """
    seen = max(len(lost) + 1, min(replicas, PLANNED_REPLICAS))
    names = [f"replica {number:04}" for number in range(seen)]
    before = _plan([_Member(name, stages, 1) for name in names], names, stages, micro_batches * seen, None)
    members = [*_broken(names, lost, stages, new_nodes), *(_Member(name, stages, 1) for name in names[len(lost) :])]
    members += _added(new_nodes - _completing(lost, new_nodes), stages)
    after = _plan(members, names, stages, micro_batches * seen, before)
    owner = {number: rank for rank, share in enumerate(before.shares) for number in share}
    parts = sum(lost[owner[number]] / stages for number in after.lost_micro_batches)
    return TransitionShares(parts / (micro_batches * replicas), _busiest(after, members, stages))


def _completing(lost: Sequence[int], new_nodes: int) -> int:
    """New nodes that replace lost ones."""
    used = 0
    for count in lost:
        used += count if used + count <= new_nodes else 0
    return used


def _broken(names: Sequence[str], lost: Sequence[int], stages: int, new_nodes: int) -> list[_Member]:
    """Replicas that lost nodes and are completed or split again; one without any node is gone."""
    members = []
    for name, count in zip(names, lost, strict=False):
        completed = count <= new_nodes
        new_nodes -= count if completed else 0
        if completed or count < stages:
            members.append(_Member(name, stages - count, count if completed else stages - count))
    return members


def _added(nodes: int, stages: int) -> list[_Member]:
    return [_Member(f"replica new {number}", 0, stages) for number in range(min(nodes // stages, PLANNED_REPLICAS))]


def _plan(members: Sequence[_Member], old: Sequence[str], stages: int, micro_batches: int, before: Transition | None) -> Transition:
    places = tuple(RankPlacement(worker=member.name, node=member.name, rank=rank, local_rank=0) for rank, member in enumerate(members))
    target = Layout(job="simulated", epoch=1, time=0.0, coordinator="", launchers={}, placements=places)
    held = [_holding(member, old, stages, before) for member in members]
    return plan_transition("simulated", 1, target, held, micro_batches=micro_batches, segments=1, layer_bytes=(1,) * stages, before=before)


def _holding(member: _Member, old: Sequence[str], stages: int, before: Transition | None) -> WorkerStateReport:
    if member.left < stages:
        return WorkerStateReport(worker=member.name, node=member.name, step=1, fresh=True, layers=tuple(range(member.left)))
    done = before.shares[old.index(member.name)] if before is not None else ()
    return WorkerStateReport(worker=member.name, node=member.name, step=1, done=done, phase="computing" if done else "idle")


def _busiest(plan: Transition, members: Sequence[_Member], stages: int) -> float:
    taken, given = dict.fromkeys(range(len(members)), 0), dict.fromkeys(range(len(members)), 0)
    for sender, receiver, _ in plan.moves:
        taken[receiver] += 1
        given[sender] += 1
    return max(max(taken[rank] / member.nodes, given[rank] / stages) for rank, member in enumerate(members))
