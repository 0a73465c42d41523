"""The decision for an elastic job that lost workers or has a straggler: its alternatives, priced by the planner's `decide`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from eagle_eye.types import Alternative
from remediation.planner.decision.alternatives import PricedAlternative
from remediation.planner.decision.decision import AlternativeKind, IncidentDecision, TransitionCosts, decide
from remediation.planner.decision.incident_case import IncidentCase

from .event_responses import best_worker_counts
from .live_cluster import LiveCluster, LiveJob
from .worker_placement import WorkerMoves, plan_moves

ACTIONS: Mapping[AlternativeKind, str] = {
    AlternativeKind.NOTHING: "nothing",
    AlternativeKind.REBALANCE: "rebalance",
    AlternativeKind.SHRINK: "evict_node",
    AlternativeKind.SPARE: "resize",
    AlternativeKind.RELAYOUT: "relayout",
    AlternativeKind.RESTART: "restart_worker",
    AlternativeKind.WAIT: "wait",
    AlternativeKind.SWAP: "swap",
}
"""Of the planner's kinds; those without an action are listed and never carried out."""
PIPELINE_ONLY = (AlternativeKind.SWAP, AlternativeKind.RELAYOUT)
"""Of pipelines; elastic workers are replicas."""
SUPPORTED = frozenset({AlternativeKind.NOTHING, AlternativeKind.REBALANCE, AlternativeKind.SPARE, AlternativeKind.RESTART})


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionInputs:
    """What the decision needs to know besides the cluster."""

    repair_s: float
    """Expected time until what is lost is back, or the slow one is well: costs are counted over it."""
    restart_s: float
    """Ending and starting all its processes."""
    checkpoint_age_s: float
    """Work since the newest checkpoint, in seconds of healthy running."""
    speeds: Mapping[str, float]
    """Slow worker → its speed, 1 being healthy; {}: no worker is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDecision:
    """The chosen alternative, and the others with their cost."""

    kind: AlternativeKind
    action: str
    cost: float
    """WAF·seconds."""
    benefit: float
    """WAF·seconds that it saves against doing nothing."""
    how: str
    alternatives: tuple[Alternative, ...]
    moves: WorkerMoves | None
    """Workers that change jobs, if that was chosen."""
    waf: Mapping[str, float]
    """`waf_left`: if nothing is done; `waf`: once the choice runs. In weighted worker-seconds a second."""
    share: float
    """Of the healthy throughput that the job reaches then."""


def decide_live(cluster: LiveCluster, job: LiveJob, inputs: DecisionInputs) -> LiveDecision:
    """The cheapest of all ways. Without a straggler the case is the workers that the job lacks of those it was started with."""
    moved = None if inputs.speeds else _moves(cluster, job)
    coming = moved.workers.get(job.name, 0) if moved is not None else 0
    lost = coming or max(0, job.demand.most - job.workers)
    case = _case(cluster, job, inputs, lost, moved if coming else None)
    decision = decide(case, _costs(job, inputs))
    best = next(option for option in decision.options if option.kind in SUPPORTED)
    nothing = next(option for option in decision.options if option.kind is AlternativeKind.NOTHING)
    takes = best.kind is AlternativeKind.SPARE and moved is not None
    return LiveDecision(
        kind=best.kind,
        action=ACTIONS[best.kind],
        cost=best.cost,
        benefit=nothing.cost - best.cost,
        how=best.how,
        alternatives=tuple(_alternatives(decision, best, nothing)),
        moves=moved if takes else None,
        share=best.throughput / case.healthy,
        waf=_waf(cluster, job, nothing, best, moved if takes else None),
    )


def _moves(cluster: LiveCluster, job: LiveJob) -> WorkerMoves | None:
    """The moves of the best allocation; where it leaves this job as it is, the cheapest worker of another job, so that its price is listed."""
    best = plan_moves(cluster, best_worker_counts(cluster))
    if best.workers.get(job.name, 0) > 0:
        return best
    if job.workers >= job.demand.most:
        return None
    prices = {
        other.name: other.waf(other.workers) - other.waf(other.workers - 1)
        for other in cluster.jobs
        if other.name != job.name and other.workers > max(1, other.demand.workers_min)
    }
    for name in sorted(prices, key=lambda each: (prices[each], each)):
        donor = cluster.job(name)
        wanted = {job.name: job.workers + 1, name: donor.workers - 1 if donor is not None else 0}
        moved = plan_moves(cluster, wanted)
        if moved.workers.get(job.name, 0) > 0:
            return moved
    return None


def _case(cluster: LiveCluster, job: LiveJob, inputs: DecisionInputs, lost: int, moved: WorkerMoves | None) -> IncidentCase:
    count = job.workers + (0 if inputs.speeds else lost)
    table = job.table
    row = np.concatenate([table, np.full(max(0, count + 1 - len(table)), table[-1])])
    rate = job.steps_per_s(count)
    donors = [other for other in cluster.jobs if moved is not None and moved.workers.get(other.name, 0) and other.name != job.name]
    worth = sum(other.waf(other.workers) - other.waf(other.workers + moved.workers[other.name]) for other in donors) if moved is not None else 0.0
    return IncidentCase(
        task=job.name,
        gpus=count,
        gpus_per_node=1,
        healthy=float(row[count]) or 1e-9,
        iteration_s=1.0 / rate if rate > 0 else 1.0,
        repair_s=inputs.repair_s,
        weight=job.demand.weight,
        lost=0 if inputs.speeds else lost,
        slow=inputs.speeds,
        spares=lost if moved is not None else 0,
        spare_worth=max(0.0, worth) / max(1, lost),
        spare_cost=sum(2 * other.waf(other.workers) * other.regroup_s for other in donors),  # there, and back when all is well
        spare_owner=", ".join(other.name for other in donors),
        in_place=True,
        replicas=count,
        micro_batches=MICRO_BATCHES,
        checkpoint_age_s=inputs.checkpoint_age_s,
        throughput=row,
    )


MICRO_BATCHES = 64
"""Of a worker and step, where shares are weighed: how fine the micro-batches of a job are is not known to the leader."""


def _costs(job: LiveJob, inputs: DecisionInputs) -> TransitionCosts:
    """Measured on this job where they were, else the planner's constants. Finished micro-batches are kept (Unicron, 6)."""
    return replace(TransitionCosts(), regroup_s=job.regroup_s, spare_start_s=job.start_s, restart_s=inputs.restart_s, lost_iterations=0.0)


def _alternatives(decision: IncidentDecision, best: PricedAlternative, nothing: PricedAlternative) -> list[Alternative]:
    replicas = [Alternative(action=ACTIONS[kind], why="Not possible: each worker holds the whole model, there are no stages to change.") for kind in PIPELINE_ONLY]
    possible = [
        Alternative(action=ACTIONS[one.kind], why=f"{one.how}. {decision.why_rejected.get(one.kind) or 'No action of Eagle Eye does it.'}", cost=one.cost, benefit=nothing.cost - one.cost)
        for one in decision.options
        if one.kind is not best.kind and one.kind not in PIPELINE_ONLY
    ]
    impossible = [Alternative(action=ACTIONS[one.kind], why=decision.why_rejected[one.kind]) for one in decision.impossible if one.kind not in PIPELINE_ONLY]
    return [*possible, *impossible, *replicas]


def _waf(cluster: LiveCluster, job: LiveJob, nothing: PricedAlternative, best: PricedAlternative, moved: WorkerMoves | None) -> dict[str, float]:
    others = cluster.waf({}) - job.waf(job.workers)
    left = others + job.demand.weight * nothing.throughput
    if moved is None:
        return {"waf_left": left, "waf": others + job.demand.weight * best.throughput}
    after = {other.name: other.workers + moved.workers.get(other.name, 0) for other in cluster.jobs}
    return {"waf_left": left, "waf": cluster.waf(after)}
