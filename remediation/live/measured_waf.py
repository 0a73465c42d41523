"""The measured WAF of running jobs, from their committed steps: before a fault, after it, and after a change of workers.

In weighted worker-seconds a second, the unit of live_cluster.py. NaN where too few steps were seen.
"""

import math
from collections.abc import Mapping, Sequence

from eagle_eye.types import Incident, Plan, SnapshotStep
from remediation.engine.job_state import JobState

from .live_cluster import LiveCluster, LiveJob

Jobs = Mapping[str, JobState]
FEWEST = 3
"""Steps that a rate needs."""


def waf_since(cluster: LiveCluster, jobs: Jobs, epochs: Mapping[str, int], steps: int) -> float:
    """Of all jobs, by their newest steps; of those named by steps of later epochs alone, of which each must have shown so many."""
    found = []
    for live in cluster.jobs:
        named = live.name in epochs
        later = [step for step in jobs[live.name].steps if step.epoch > epochs.get(live.name, -1)]
        found.append(_of(live, later[-steps - 1 :], steps + 1 if named else FEWEST, named))
    return math.fsum(found)


def waf_before(cluster: LiveCluster, jobs: Jobs, since: float, steps: int) -> float:
    """By the last steps that ended before a fault."""
    earlier = {live.name: _one_epoch([step for step in jobs[live.name].steps if step.end <= since]) for live in cluster.jobs}
    return math.fsum(_of(live, earlier[live.name][-steps - 1 :], FEWEST, True) for live in cluster.jobs)


def waf_left(cluster: LiveCluster, jobs: Jobs, plan: Plan, incident: Incident) -> float:
    """Between the fault and the plan: its job in the epoch for which the plan was made, the others meanwhile."""
    mine = [step for step in jobs[incident.job].steps if step.epoch == plan.target_of(incident.job).epoch and step.end > incident.since]
    if len(mine) < FEWEST:
        return math.nan
    begin, end = mine[0].end, mine[-1].end
    meanwhile = {live.name: [step for step in jobs[live.name].steps if begin <= step.end <= end] for live in cluster.jobs}
    meanwhile[incident.job] = mine
    return math.fsum(_of(live, meanwhile[live.name], FEWEST, live.name == incident.job) for live in cluster.jobs)


def _of(live: LiveJob, steps: Sequence[SnapshotStep], fewest: int, measured: bool) -> float:
    """The rate of the steps; with too few of them T, or NaN where it has to be measured."""
    if len(steps) < fewest or steps[-1].end <= steps[0].end:
        return math.nan if measured else live.waf(live.workers)
    rate = (len(steps) - 1) / (steps[-1].end - steps[0].end)
    return live.demand.weight * rate / live.unit


def _one_epoch(steps: Sequence[SnapshotStep]) -> list[SnapshotStep]:
    return [step for step in steps if step.epoch == steps[-1].epoch]

