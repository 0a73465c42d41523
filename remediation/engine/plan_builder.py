"""From a cause and a repair to a plan: which job, epoch, nodes, checkpoint; and why it may be impossible."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eagle_eye.types import Alternative, Culprit, Incident, Kind, Plan, Target, digest_of
from remediation.policy.downtime_model import (
    gpu_seconds_starting,
    gpu_seconds_unworked,
    redone_seconds,
    repair_downtime,
)
from remediation.policy.engine_settings import EngineSettings
from remediation.policy.escalation import SEVERITIES, Attempt
from remediation.policy.rank_swap import swap_for
from remediation.policy.slowdown_cost import NOTHING, Slowdown, SlowdownOption, weigh

from .job_state import JobState

NARROWED = {"skip_batch": "roll_back", "swap_ranks": "restart_worker"}
"""Level of escalation → the action that it is."""


@dataclass(frozen=True, slots=True)
class NoPlan:
    """No such plan can be made now."""

    why: str
    unsure: bool = False
    """Too little speaks against whom it would blame: it may be made once more does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What the engine wants planned."""

    action: str
    own: bool
    incident: Incident
    attempts: Sequence[Attempt]
    """Recent ones on the same fault."""
    now: float
    cost: float = 0.0
    benefit: float = 0.0
    alternatives: tuple[Alternative, ...] = ()
    reason: str = ""
    targets: tuple[Target, ...] = ()
    """What it wants of each job, where that is known already."""


def make(wanted: PlanRequest, job: JobState, policy: EngineSettings) -> Plan | NoPlan:
    """The plan, for the job's current epoch."""
    if job.current is None:
        return NoPlan(f"the layout of epoch {job.epoch} of {job.name} is not known yet")
    target = _target(wanted, job, policy) if not wanted.targets else wanted.targets[0]
    if isinstance(target, NoPlan):
        return target
    targets = wanted.targets or (target,)
    action = NARROWED.get(wanted.action, wanted.action)
    return Plan(
        id=digest_of(wanted.incident.id, wanted.action, *targets, wanted.now),
        incident=wanted.incident.id,
        action=action,
        targets=targets,
        made=wanted.now,
        expires=wanted.now + policy.expires_s,
        severity=SEVERITIES.get(action, wanted.incident.severity),
        own=wanted.own,
        reason=wanted.reason or wanted.incident.cause,
        cost=wanted.cost or gpu_seconds_unworked(action, target.workers, job, policy, resume_step=target.resume_step),
        benefit=wanted.benefit,
        alternatives=wanted.alternatives,
    )


def _target(wanted: PlanRequest, job: JobState, policy: EngineSettings) -> Target | NoPlan:
    workers = workers_of(wanted.incident, job)
    if wanted.action == "evict_node":
        nodes = exclusion(wanted.incident, job, policy)
        return nodes if isinstance(nodes, NoPlan) else _aim(job, exclude=nodes)
    if wanted.action in ("roll_back", "skip_batch"):
        return _back(wanted, job)
    if wanted.action == "swap_ranks":
        swap = swap_of(wanted.incident, job)
        return _aim(job, swap=swap) if swap else NoPlan("no other node of the job has as many workers: no ranks can be exchanged")
    if wanted.action == "dump":
        return _aim(job)
    return _aim(job, workers=workers)


def _aim(
    job: JobState,
    *,
    exclude: tuple[str, ...] = (),
    workers: tuple[str, ...] = (),
    resume_step: int = -1,
    skip: tuple[int, ...] = (),
    swap: tuple[str, ...] = (),
) -> Target:
    return Target(
        job=job.name,
        epoch=job.epoch,
        basis=job.basis,
        exclude=exclude,
        workers=workers,
        resume_step=resume_step,
        skip=skip,
        swap=swap,
    )


def _back(wanted: PlanRequest, job: JobState) -> Target | NoPlan:
    """To the newest good checkpoint; past the batch if the same step was bad after the last roll-back."""
    bad = job.bad_step(wanted.incident)
    if bad < 0:
        return NoPlan("the first bad step is not known, so no good one either")
    good = job.good_checkpoint(bad)
    if good < 0:
        return NoPlan(f"no checkpoint before step {bad} is known whose numbers are all finite")
    again = any(attempt.step == bad for attempt in wanted.attempts)
    return _aim(job, resume_step=good, skip=(bad,) if again else ())


# --- who ---------------------------------------------------------------------------------------------------------


def node_of(culprit: Culprit, job: JobState) -> str:
    """The culprit's node; '' if it has none."""
    name, kind = culprit.entity.name, culprit.entity.kind
    if kind is Kind.NODE:
        return name
    if kind is Kind.WORKER:
        known = job.layout.node_of(name) if job.layout is not None else ""
        return known or (name.split("/")[-2] if name.count("/") >= 2 else "")
    if kind is Kind.GPU and job.layout is not None:
        return next((place.node for place in job.layout.placements if place.gpu == name), "")
    return ""


def swap_of(incident: Incident, job: JobState) -> tuple[str, ...]:
    """The accused node and the one that it can exchange its ranks with, by rank; () if there are none."""
    return swap_for({node for culprit in incident.culprits if (node := node_of(culprit, job))}, job.layout)


def exclusion(incident: Incident, job: JobState, policy: EngineSettings) -> tuple[str, ...] | NoPlan:
    """The nodes to evict: those of sure culprits, and never the last ones that the job needs."""
    if not incident.culprits:
        return NoPlan("no culprit is named, and no node is evicted without one")
    sure = [culprit for culprit in incident.culprits if culprit.proof >= policy.confidence]
    if not sure:
        best = max(culprit.proof for culprit in incident.culprits)
        return NoPlan(f"the surest culprit has confidence {best:.2f}, {policy.confidence:.2f} is needed to evict it", unsure=True)
    inside = job.layout.nodes if job.layout is not None else ()
    nodes = tuple(dict.fromkeys(node for node in (node_of(culprit, job) for culprit in sure) if node in inside))
    if not nodes:
        return NoPlan("no culprit is on a node of the job")
    left = len(inside) - len(nodes)
    if left < max(1, job.nodes_min):
        return NoPlan(f"without {', '.join(nodes)} {left} nodes would be left; the job needs {max(1, job.nodes_min)}")
    return nodes


def workers_of(incident: Incident, job: JobState) -> tuple[str, ...]:
    """Workers of the layout that the culprits are, or that run on them."""
    layout = job.layout
    if layout is None:
        return ()
    names = {culprit.entity.name for culprit in incident.culprits}
    return tuple(place.worker for place in layout.placements if names & {place.worker, place.node, place.gpu})


# --- slow --------------------------------------------------------------------------------------------------------


def alternatives(incident: Incident, job: JobState, policy: EngineSettings, tried: frozenset[str]) -> list[SlowdownOption]:
    """What can be done about a slow-down, the cheapest first; empty if no throughput is known."""
    layout = job.current
    if layout is None:
        return []
    workers, named = len(layout.placements), workers_of(incident, job)
    nodes = exclusion(incident, job, policy)
    left = workers if isinstance(nodes, NoPlan) else sum(place.node not in nodes for place in layout.placements)
    slow = Slowdown(
        workers=workers,
        now=job.throughput(policy.verify_steps + 1, epoch=job.epoch, after=incident.since),
        healthy=job.expected(workers),
        without=math.nan if isinstance(nodes, NoPlan) else job.expected(left),
        downtime_s=repair_downtime("restart_worker", named, job, policy),
        eviction_s=repair_downtime("evict_node", (), job, policy),
        redone_s=redone_seconds("restart_worker", named, job),
        eviction_redone_s=redone_seconds("evict_node", (), job),
        gpu_seconds_starting=gpu_seconds_starting("restart_worker", named, job, policy),
        horizon_s=policy.horizon_s,
        restart_success_share=policy.restart_success_share,
    )
    return weigh(slow, tried)


def losers(choices: Sequence[SlowdownOption]) -> tuple[Alternative, ...]:
    """All but the cheapest, with what they would have cost."""
    return tuple(
        Alternative(action=choice.action, why=f"{choice.cost:.0f} GPU-seconds: {choice.why}", cost=choice.cost, benefit=_nothing(choices) - choice.cost)
        for choice in choices[1:]
    )


def saved(choices: Sequence[SlowdownOption]) -> float:
    """GPU-seconds that the cheapest saves against doing nothing."""
    return _nothing(choices) - choices[0].cost


def _nothing(choices: Sequence[SlowdownOption]) -> float:
    return next((choice.cost for choice in choices if choice.action == NOTHING), choices[0].cost)
