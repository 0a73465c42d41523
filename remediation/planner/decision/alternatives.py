"""Alternatives of an incident: each with its downtime, the throughput afterwards, and its cost in WAF·seconds.

Over the horizon H (the expected repair), with F the healthy FLOP/s, F' those afterwards and w the task's weight:

    cost = w · ( F · downtime + (F - F') · max(0, H - downtime) + F · lost work + F' · return ) + spare worth · H + spare cost

A job that heals in place has no downtime while a new worker starts: until then it runs on fewer workers.
`return` is the second transition, when the repaired node comes back to a job that went on without it (Unicron's
D_transition of a join). Of d pipelines that are alike, s stages deep, f give their m micro-batches each to the others:
an iteration takes (ceil(m·d / (d - f)) + s - 1) / (m + s - 1) times as long.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from remediation.planner.pipelines.micro_batch_distribution import MicroBatchDistribution
from remediation.planner.pipelines.pipeline_reconfiguration import (
    CannotReconfigure,
    Reconfiguration,
    ReconfigurationProblem,
    reconfigure,
)

from .incident_case import IncidentCase, TransitionCosts
from .slow_nodes import slow_node_effect


class AlternativeKind(StrEnum):
    """By how much they change, the least first: of equal costs the first is chosen."""

    NOTHING = "do nothing"
    REBALANCE = "rebalance micro-batches"
    SWAP = "swap positions in the pipeline"
    SHRINK = "shrink"
    SPARE = "take a spare"
    RELAYOUT = "re-layout"
    RESTART = "restart from checkpoint"
    WAIT = "wait for repair"


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedAlternative:
    """A repair that is possible, with its cost."""

    kind: AlternativeKind
    how: str
    """What is done, in a phrase."""
    downtime_s: float
    throughput: float
    """FLOP/s afterwards."""
    gpus: int
    """That work afterwards."""
    lost_work_s: float
    """Healthy seconds of work that are done again."""
    cost: float
    """WAF·seconds: weighted FLOP that are not done until the expected repair, and what the spares would have made."""
    gpu_hours: float
    """Hours of the job's healthy GPUs that the undone FLOP are worth."""
    transition: Reconfiguration | MicroBatchDistribution | None = None
    """The pipelines or micro-batches afterwards, where they were computed."""


@dataclass(frozen=True, slots=True)
class ImpossibleAlternative:
    """A repair that is not possible in this incident, and why."""

    kind: AlternativeKind
    why: str


WeighedAlternative = PricedAlternative | ImpossibleAlternative


def alternatives(case: IncidentCase, costs: TransitionCosts) -> list[WeighedAlternative]:
    """One of each kind, in their order."""
    pricing = _Pricing(case, costs, _state_lost(case))
    return [build(pricing) for build in _BUILDERS.values()]


def _state_lost(case: IncidentCase) -> str:
    if case.pipelines is not None:
        plan = reconfigure(case.pipelines) if case.lost else None
        return plan.why if isinstance(plan, CannotReconfigure) else ""
    if case.lost and case.replicas <= case.lost * case.pipelines_per_node:
        return f"the lost nodes may have held {case.lost * case.pipelines_per_node} copies of the state, and there are {case.replicas}: none may be left"
    return ""


@dataclass(frozen=True, slots=True)
class _Pricing:
    """The case, with what several alternatives need."""

    case: IncidentCase
    costs: TransitionCosts
    state_lost: str
    """Why the state is not with the survivors; empty: it is."""

    def option(self, kind: AlternativeKind, how: str, *, downtime: float, share: float, gpus: int, lost_work: float = 0.0, back: float = 0.0, spares: int = 0, short: float = 0.0, transition: Reconfiguration | MicroBatchDistribution | None = None) -> PricedAlternative:  # fmt: skip
        """With its price. share: of the healthy throughput; back: seconds of the second transition; short: healthy seconds that
        are not made before it is done."""
        case = self.case
        afterwards = min(1.0, share) * case.healthy
        rest = max(0.0, case.repair_s - downtime)
        flop = case.healthy * (downtime + lost_work + short) + (case.healthy - afterwards) * rest + afterwards * back
        return PricedAlternative(
            kind=kind,
            how=how,
            downtime_s=downtime,
            throughput=afterwards,
            gpus=gpus,
            lost_work_s=lost_work,
            cost=case.weight * flop + (spares * case.spare_worth * case.repair_s + case.spare_cost if spares else 0.0),
            gpu_hours=flop / case.healthy * case.gpus / 3600,
            transition=transition,
        )

    @property
    def torn_s(self) -> float:
        """Work that a heal in place throws away: nothing where the job still runs, it changes between two iterations."""
        return self.costs.lost_iterations * self.case.iteration_s if self.case.process_died or self.case.lost else 0.0

    @property
    def share_left(self) -> float:
        """Of the healthy throughput, on what is left: from T if known, else with all micro-batches on the whole pipelines."""
        case = self.case
        if case.throughput is not None:
            return float(case.throughput[case.healthy_gpus]) / case.healthy
        whole = case.replicas - case.lost * case.pipelines_per_node
        return case.micro_batches / -(-case.micro_batches * case.replicas // whole) if whole > 0 else 0.0

    @property
    def node_state_s(self) -> float:
        """For a new node to receive its part of the state."""
        nodes = max(1.0, self.case.gpus / self.case.replicas / self.case.gpus_per_node)
        return self.case.state_bytes / nodes / self.costs.network_bytes_s

    @property
    def load_s(self) -> float:
        """To read the newest checkpoint."""
        return self.case.state_bytes / self.costs.storage_bytes_s


def _nothing(pricing: _Pricing) -> WeighedAlternative:
    case, costs, kind = pricing.case, pricing.costs, AlternativeKind.NOTHING
    if case.lost and case.in_place and not pricing.state_lost:
        how = f"keeps running in place with {case.healthy_gpus} of {case.gpus} workers, which split the micro-batches"
        back = costs.regroup_s + pricing.node_state_s
        return pricing.option(kind, how, downtime=costs.regroup_s, share=pricing.share_left, gpus=case.healthy_gpus, lost_work=pricing.torn_s, back=back)
    if not case.stopped and not case.lost:
        share = slow_node_effect(case).share if case.slow else 1.0
        return pricing.option(kind, "keeps running as it is", downtime=0.0, share=share, gpus=case.gpus)
    until = max(case.repair_s, costs.collective_timeout_s) if case.lost else case.repair_s
    how = "the job hangs until a collective times out and the node is repaired, then restarts from the checkpoint"
    downtime = until + costs.restart_s + pricing.load_s
    return pricing.option(kind, how, downtime=downtime, share=1.0, gpus=case.gpus, lost_work=case.checkpoint_age_s)


def _rebalance(pricing: _Pricing) -> WeighedAlternative:
    case, kind = pricing.case, AlternativeKind.REBALANCE
    if case.lost and case.in_place:
        return ImpossibleAlternative(kind, "the job has already done that by itself")
    if case.lost:
        return _without(pricing, kind, case.lost * case.pipelines_per_node, case.gpus - case.lost * case.gpus_per_node)
    if not case.slow:
        return ImpossibleAlternative(kind, "no node is slow or lost: there is nothing to balance")
    found = slow_node_effect(case)
    if found.balanced is None:
        return ImpossibleAlternative(kind, "there is a single pipeline: no other one can take its micro-batches")
    counts = [str(count) for count in found.balanced.counts]
    how = f"{', '.join(counts[:8])}{', ...' if len(counts) > 8 else ''} micro-batches from the next iteration on"
    return pricing.option(kind, how, downtime=0.0, share=found.balanced_share, gpus=case.gpus, transition=found.balanced)


def _without(pricing: _Pricing, kind: AlternativeKind, broken: int, gpus: int) -> WeighedAlternative:
    """So many broken pipelines (each node breaks others, at worst) give their micro-batches to the whole ones."""
    case = pricing.case
    if pricing.state_lost:
        return ImpossibleAlternative(kind, pricing.state_lost)
    if case.replicas <= broken:
        return ImpossibleAlternative(kind, f"{broken} of {case.replicas} pipelines are broken: no whole one is left")
    most = -(-case.micro_batches * case.replicas // (case.replicas - broken))
    share = (case.micro_batches + case.stages - 1) / (most + case.stages - 1)
    if kind is AlternativeKind.REBALANCE:
        share *= min(case.slow.values(), default=1.0)
    how = f"{case.replicas - broken} of {case.replicas} pipelines split the micro-batches, at most {most} instead of {case.micro_batches}"
    back = pricing.costs.regroup_s + pricing.node_state_s
    return pricing.option(kind, how, downtime=pricing.costs.regroup_s, share=share, gpus=gpus, lost_work=pricing.torn_s, back=back)


def _swap(pricing: _Pricing) -> WeighedAlternative:
    case, kind = pricing.case, AlternativeKind.SWAP
    if not case.slow or case.lost:
        return ImpossibleAlternative(kind, "only slow nodes have better positions" if case.lost else "no node is slow")
    if case.pipelines is None:
        return ImpossibleAlternative(kind, "no templates are known, and among equal positions none is better")
    plan = reconfigure(case.pipelines, within_oobleck=False)
    if isinstance(plan, CannotReconfigure):
        return ImpossibleAlternative(kind, plan.why)
    if plan.pipelines == case.pipelines.pipelines:
        return ImpossibleAlternative(kind, "each node already has the best position that was found")
    return _reconfigured(pricing, kind, plan, case.pipelines, "nodes swap positions")


def _shrink(pricing: _Pricing) -> WeighedAlternative:
    case, kind = pricing.case, AlternativeKind.SHRINK
    if not case.broken:
        return ImpossibleAlternative(kind, "no node is slow or lost: there is none to remove")
    if case.lost and case.in_place and not case.slow:
        return ImpossibleAlternative(kind, "the job has already done that by itself")
    if case.pipelines is None:
        hit = case.broken * case.pipelines_per_node
        return _without(pricing, kind, hit, case.gpus * max(0, case.replicas - hit) // case.replicas)
    problem = replace(case.pipelines, lost=case.pipelines.lost | set(case.slow), speeds={})
    plan = reconfigure(problem, within_oobleck=False)
    if isinstance(plan, CannotReconfigure):
        return ImpossibleAlternative(kind, plan.why)
    return _reconfigured(pricing, kind, plan, problem, f"continues without {', '.join(sorted(problem.lost))}")


def _reconfigured(pricing: _Pricing, kind: AlternativeKind, plan: Reconfiguration, problem: ReconfigurationProblem, how: str) -> PricedAlternative:
    downtime = pricing.costs.regroup_s + _copying_s(plan, problem, pricing.costs)
    sizes = "+".join(str(len(pipeline)) for pipeline in plan.pipelines)
    share = slow_node_effect(pricing.case).healthy / plan.time
    nodes = sum(len(pipeline) for pipeline in plan.pipelines)
    how = f"{how}: pipelines of {sizes} nodes, {plan.moved_bytes / 1e9:.3g} GB of state move"
    back = downtime if nodes < pricing.case.gpus // pricing.case.gpus_per_node else 0.0
    return pricing.option(kind, how, downtime=downtime, share=share, gpus=nodes * pricing.case.gpus_per_node, lost_work=pricing.torn_s, back=back, transition=plan)


def _copying_s(plan: Reconfiguration, problem: ReconfigurationProblem, costs: TransitionCosts) -> float:
    """Until the node that sends or receives most is done; nodes send and receive at the same time."""
    sent: dict[str, float] = {}
    received: dict[str, float] = {}
    for copy in plan.copies:
        sent[copy.source] = sent.get(copy.source, 0.0) + problem.state[copy.layer]
        received[copy.target] = received.get(copy.target, 0.0) + problem.state[copy.layer]
    return max([*sent.values(), *received.values(), 0.0]) / costs.network_bytes_s


def _spare(pricing: _Pricing) -> WeighedAlternative:
    case, costs, kind = pricing.case, pricing.costs, AlternativeKind.SPARE
    if not case.broken:
        return ImpossibleAlternative(kind, "no node is slow or lost: there is none to replace")
    if case.spares < case.broken and case.in_place and not case.slow:
        return ImpossibleAlternative(kind, "no other job has a worker to give on a node where this job has a launcher")
    if case.spares < case.broken:
        return ImpossibleAlternative(kind, f"{_counted(case.broken, 'node is', 'nodes are')} to be replaced, {_counted(case.spares, 'spare is', 'spares are')} free")
    if pricing.state_lost:
        return ImpossibleAlternative(kind, pricing.state_lost)
    if case.in_place and not case.slow:
        return _spare_in_place(pricing)
    downtime = costs.spare_start_s + costs.regroup_s + pricing.node_state_s
    how = f"{_counted(case.broken, 'spare takes', 'spares take')} over, state comes from {'replicas' if case.lost else 'the slow node'}"
    return pricing.option(kind, how, downtime=downtime, share=1.0, gpus=case.gpus, lost_work=pricing.torn_s, spares=case.broken)


def _spare_in_place(pricing: _Pricing) -> WeighedAlternative:
    """The job runs on while they start, and takes them in between two steps."""
    case, costs = pricing.case, pricing.costs
    from_whom = f"of {case.spare_owner}, which continues on fewer" if case.spare_owner else "that was idle"
    how = f"{_counted(case.broken, 'worker', 'workers')} {from_whom}; starts while the job keeps running"
    downtime = 2 * costs.regroup_s + pricing.node_state_s  # without what was lost, and with what comes
    short = (1 - min(1.0, pricing.share_left)) * costs.spare_start_s
    return pricing.option(AlternativeKind.SPARE, how, downtime=downtime, share=1.0, gpus=case.gpus, lost_work=pricing.torn_s, spares=case.broken, short=short)


def _relayout(pricing: _Pricing) -> WeighedAlternative:
    case, costs, kind = pricing.case, pricing.costs, AlternativeKind.RELAYOUT
    if not case.broken:
        return ImpossibleAlternative(kind, "no node is slow or lost: the layout is for as many nodes as there are")
    gpus, flops = _best_up_to(case, case.healthy_gpus)
    if not gpus:
        return ImpossibleAlternative(kind, _no_layout(case, case.healthy_gpus))
    moved = case.state_bytes * gpus / max(1, case.gpus // case.replicas)  # each GPU may receive its whole part again
    from_peers = not pricing.state_lost
    downtime = costs.restart_s + (moved / (gpus / case.gpus_per_node) / costs.network_bytes_s if from_peers else pricing.load_s)
    source = "survivors" if from_peers else "the checkpoint"
    how = f"another tp × pp × dp on {gpus} GPUs, state from {source}"
    lost = pricing.torn_s if from_peers else case.checkpoint_age_s
    return pricing.option(kind, how, downtime=downtime, share=flops / case.healthy, gpus=gpus, lost_work=lost, back=downtime)


def _restart(pricing: _Pricing) -> WeighedAlternative:
    case, costs, kind = pricing.case, pricing.costs, AlternativeKind.RESTART
    if not case.broken and not case.process_died:
        return ImpossibleAlternative(kind, "nothing is broken")
    taken = min(case.spares, case.broken)
    gpus, flops = case.gpus, case.healthy
    if taken < case.broken:
        there = case.healthy_gpus + taken * case.gpus_per_node
        gpus, flops = _best_up_to(case, there)
        if not gpus:
            return ImpossibleAlternative(kind, _no_layout(case, there))
    downtime = costs.restart_s + pricing.load_s + (costs.spare_start_s if taken else 0.0)
    back = downtime if taken < case.broken else 0.0
    from_whom = f"from {case.spare_owner}" if case.spare_owner else "a spare" if taken == 1 else "spares"
    how = f"restarts all processes on {gpus} GPUs" + (f", {_counted(taken, 'worker' if case.in_place else 'node', 'workers' if case.in_place else 'nodes')} of them {from_whom}" if taken else "")
    return pricing.option(kind, how, downtime=downtime, share=flops / case.healthy, gpus=gpus, lost_work=case.checkpoint_age_s, back=back, spares=taken)


def _wait(pricing: _Pricing) -> WeighedAlternative:
    case, costs, kind = pricing.case, pricing.costs, AlternativeKind.WAIT
    if not case.broken:
        return ImpossibleAlternative(kind, "no node is slow or lost: there is nothing to repair")
    if pricing.state_lost:
        downtime = case.repair_s + costs.restart_s + pricing.load_s
        return pricing.option(kind, "waits for the repair, then restarts from the checkpoint", downtime=downtime, share=1.0, gpus=case.gpus, lost_work=case.checkpoint_age_s)
    downtime = case.repair_s + costs.spare_start_s + costs.regroup_s + pricing.node_state_s
    return pricing.option(kind, "waits for the repair, then the repaired node receives its state", downtime=downtime, share=1.0, gpus=case.gpus, lost_work=pricing.torn_s)


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _best_up_to(case: IncidentCase, gpus: int) -> tuple[int, float]:
    """The count with the highest T, and T; (0, 0) where none is known."""
    if case.throughput is None or gpus < 1:
        return 0, 0.0
    count = int(np.argmax(case.throughput[: gpus + 1]))
    flops = float(case.throughput[count])
    return (count, flops) if flops > 0 else (0, 0.0)


def _no_layout(case: IncidentCase, gpus: int) -> str:
    if case.throughput is None:
        return "T(t, x) is not known: profile the model or measure it"
    return f"no layout is known that fits on {gpus} GPUs or fewer"


_BUILDERS: Mapping[AlternativeKind, Callable[[_Pricing], WeighedAlternative]] = {
    AlternativeKind.NOTHING: _nothing,
    AlternativeKind.REBALANCE: _rebalance,
    AlternativeKind.SWAP: _swap,
    AlternativeKind.SHRINK: _shrink,
    AlternativeKind.SPARE: _spare,
    AlternativeKind.RELAYOUT: _relayout,
    AlternativeKind.RESTART: _restart,
    AlternativeKind.WAIT: _wait,
}
