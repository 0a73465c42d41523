"""What to do about a slow node: the live planner's decision, asked as the engine would ask it."""

from collections.abc import Mapping

from remediation.planner.decision.decision import AlternativeKind, IncidentCase, decide
from remediation.planner.decision.decision import TransitionCosts as DecisionCosts

from .simulated_job import MICRO_BATCHES, JobRun

SLOW_LASTS_S = 3600.0
"""How long a node is expected to stay slow: the horizon of the decision (assumed; the traces do not tell the policy)."""
LEFT_OUT = frozenset({AlternativeKind.SHRINK, AlternativeKind.SPARE, AlternativeKind.RELAYOUT, AlternativeKind.RESTART})
"""Ways in which the slow node works no more."""


def about_slow(run: JobRun, speeds: Mapping[int, float], spares: int) -> AlternativeKind:
    """The cheapest for this job, whose slow nodes are those of `speeds`."""
    costs = run.costs
    case = IncidentCase(
        task=run.job.name, gpus=run.gpus, gpus_per_node=run.gpus_per_node, healthy=max(run.rate / run.speed / run.job.weight, 1e-12),
        iteration_s=run.job.iteration_s, repair_s=SLOW_LASTS_S, weight=run.job.weight, slow={str(node): speed for node, speed in speeds.items()},
        spares=spares, replicas=max(1, len(run.nodes) // run.job.replica), stages=run.job.replica, micro_batches=MICRO_BATCHES,
    )  # fmt: skip
    switch_s = costs.switch_s("reconfigure", run.gpus) + costs.load_replica_s
    seconds = DecisionCosts(regroup_s=switch_s, spare_start_s=0.0, restart_s=costs.restart_s + costs.load_storage_s, lost_iterations=0.0)
    return decide(case, seconds).best.kind
