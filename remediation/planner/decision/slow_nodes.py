"""The effect of slow nodes on an iteration: with the micro-batches as they are split now, and balanced by speed."""

from dataclasses import dataclass

from remediation.planner.pipelines.micro_batch_distribution import GroupPace, MicroBatchDistribution, distribute
from remediation.planner.pipelines.pipeline_reconfiguration import ReconfigurationProblem, pace_of

from .incident_case import IncidentCase


@dataclass(frozen=True, slots=True)
class SlowNodeEffect:
    """Iteration times, in one unit, of the same pipelines."""

    healthy: float
    now: float
    """Slow nodes, the micro-batches split as before."""
    balanced: MicroBatchDistribution | None
    """Micro-batches of each pipeline for the least makespan; None with a single pipeline: no other one can take its micro-batches."""
    reduce: float
    """All-reduce between the pipelines, in `healthy` and `now`, beside the makespan."""

    @property
    def share(self) -> float:
        """Of the healthy throughput that is left now."""
        return self.healthy / self.now

    @property
    def balanced_share(self) -> float:
        """The same once the micro-batches are balanced."""
        return self.share if self.balanced is None else self.healthy / (self.balanced.makespan + self.reduce)


def slow_node_effect(case: IncidentCase) -> SlowNodeEffect:
    """Of a case whose nodes are all there."""
    paces, slow, total, reduce = _described(case.pipelines) if case.pipelines is not None else _alike(case)
    shared = distribute(paces, total)
    now = max(pace.time(count) for pace, count in zip(slow, shared.counts, strict=True))
    balanced = distribute(slow, total) if len(slow) > 1 else None
    return SlowNodeEffect(shared.makespan + reduce, now + reduce, balanced, reduce)


def _described(problem: ReconfigurationProblem) -> tuple[list[GroupPace], list[GroupPace], int, float]:
    templates = [problem.templates[len(pipeline)] for pipeline in problem.pipelines]
    paces = [GroupPace(template.pace, template.fill) for template in templates]
    slow = [
        pace_of(template, [problem.speeds.get(node, 1.0) for node in pipeline])
        for template, pipeline in zip(templates, problem.pipelines, strict=True)
    ]
    table, count = problem.reduce, len(paces)
    return paces, slow, problem.micro_batches, table.get(count, table[max(table)]) if table else 0.0


def _alike(case: IncidentCase) -> tuple[list[GroupPace], list[GroupPace], int, float]:
    """Equal pipelines; the slow nodes are in as many of them as can be, the slowest sets its pipeline's speed."""
    pace = GroupPace(1.0, case.stages - 1.0)
    speeds = [1.0] * case.replicas
    for index, speed in enumerate(speed for speed in sorted(case.slow.values()) for _ in range(case.pipelines_per_node)):
        speeds[index % case.replicas] = min(speeds[index % case.replicas], speed)
    return [pace] * case.replicas, [pace.at_speed(speed) for speed in speeds], case.micro_batches * case.replicas, 0.0
