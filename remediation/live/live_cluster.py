"""The running elastic jobs as the planner sees them: measured throughput of each, and the workers there are.

T(t, x) is measured in steps per second at the worker counts at which a job has run, and counts in *worker-seconds a
second*: a job that runs on all the workers it asked for makes as many. So jobs that cannot be compared by their tokens
share one unit, and a weight says what a worker's time is worth in each (Unicron's w(t), section 5). Where x was never
run, T is the linear share of what the nearest count reached, and of the count itself before anything was measured.

The measured WAF of the jobs (waf_since, waf_before, waf_left) is taken from their committed steps: before a fault, after it,
and after a change of workers. It is NaN where too few steps were seen.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from eagle_eye.types import Demand, Incident, Plan, SnapshotStep
from remediation.engine.job_state import JobState
from remediation.planner.allocation.allocation import Allocation
from remediation.planner.allocation.tasks import Task, TaskCluster

WorkersByNode = Mapping[str, int]
"""Node → workers."""
Jobs = Mapping[str, JobState]
FEWEST = 3
"""Steps that a rate needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """One elastic job."""

    name: str
    epoch: int
    demand: Demand
    measured: Mapping[int, float] = field(default_factory=dict)
    """Workers → steps per second."""
    regroup_s: float
    """Downtime when its workers change, in seconds."""
    start_s: float
    """Until a further worker has joined; the others train on."""

    @property
    def workers(self) -> int:
        """That it is to have now."""
        return self.demand.now

    @property
    def table(self) -> NDArray[np.float64]:
        """T(x) in worker-seconds a second, at x = 0, 1, ... up to what it asked for."""
        most = max(self.demand.most, self.workers)
        return np.array([self.steps_per_s(count) / self.unit for count in range(most + 1)])

    @property
    def unit(self) -> float:
        """Steps per second that count as one worker-second a second."""
        return self.steps_per_s(self.demand.most) / max(1, self.demand.most)

    def steps_per_s(self, workers: int) -> float:
        """Measured, or the linear share of the nearest measured count; before anything was measured: the count itself."""
        if not self.measured:
            return float(workers)
        nearest = min(self.measured, key=lambda count: (abs(count - workers), -count))
        return self.measured[nearest] * workers / nearest

    def source(self, workers: int) -> str:
        """Where its T comes from, for the table of `eagle-eye plan --live`."""
        if workers in self.measured:
            return f"measured on {workers}"
        if not self.measured:
            return "nothing is measured yet: proportional to its workers"
        nearest = min(self.measured, key=lambda count: (abs(count - workers), -count))
        return f"linear share of what {nearest} workers reach"

    def waf(self, workers: int) -> float:
        """Weighted worker-seconds a second; 0 below its minimum."""
        return self.demand.weight * float(self.table[workers]) if workers >= self.demand.workers_min else 0.0

    @property
    def reserved(self) -> int:
        """Workers that are never taken from it: no allocation stops a running job."""
        return min(self.demand.workers_min, self.workers)

    @property
    def task(self) -> Task:
        """The planner's, of what it has and may have above its minimum."""
        least, row = self.reserved, self.table
        return Task(
            name=self.name, throughput=row[least:], weight=self.demand.weight, maximum=max(0, self.demand.most - least),
            current=self.workers - least, transition_s=self.regroup_s,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCluster:
    """All of them, and the workers that they share."""

    jobs: tuple[LiveJob, ...]
    spare: WorkersByNode = field(default_factory=dict)
    """Node → workers that could run there and that no job has: repaired ones."""
    worker_mtbf_s: float
    """Mean time between failures of one worker."""

    def job(self, name: str) -> LiveJob | None:
        """By its name."""
        return next((job for job in self.jobs if job.name == name), None)

    @property
    def workers(self) -> int:
        """n: that can work now."""
        return sum(job.workers for job in self.jobs) + sum(self.spare.values())

    @property
    def planned(self) -> TaskCluster:
        """The allocation's input: the workers above all minima, allocated one by one."""
        tasks, reserved = tuple(job.task for job in self.jobs), sum(job.reserved for job in self.jobs)
        # the minima fail as well: D_running is that of all workers
        mtbf_s = self.worker_mtbf_s * max(1, self.workers - reserved) / max(1, self.workers)
        return TaskCluster(tasks=tasks, workers=self.workers - reserved, gpu_mtbf_s=mtbf_s)

    def counts(self, plan: Allocation) -> dict[str, int]:
        """Job → workers in all, from an allocation of `planned`."""
        return {job.name: job.reserved + plan.workers[job.name] for job in self.jobs}

    @property
    def placement(self) -> dict[str, dict[str, int]]:
        """Job → node → workers that it is to have there."""
        return {job.name: dict(job.demand.workers_per_node) for job in self.jobs}

    def waf(self, workers: Mapping[str, int]) -> float:
        """Of all jobs with so many workers; a job that is not named keeps its own."""
        return sum(job.waf(workers.get(job.name, job.workers)) for job in self.jobs)

    def without(self, job: str, node: str, workers: int = 1) -> "LiveCluster":
        """After a job has lost workers on a node."""
        return self._with(job, {node: max(0, dict(self.placement[job]).get(node, 0) - workers)})

    def without_node(self, node: str) -> "LiveCluster":
        """After a node is gone."""
        cluster = replace(self, spare={other: count for other, count in self.spare.items() if other != node})
        for job in self.jobs:
            if node in job.demand.workers_per_node:
                cluster = cluster._with(job.name, {node: 0})
        return cluster

    def returned(self, node: str, workers: int = 1) -> "LiveCluster":
        """After workers of a node can work again."""
        return replace(self, spare={**self.spare, node: self.spare.get(node, 0) + workers})

    def missing(self, node: str) -> int:
        """Workers with which jobs were started on a node and which no job has now."""
        declared = sum(job.demand.declared.get(node, 0) for job in self.jobs)
        return max(0, declared - sum(job.demand.workers_per_node.get(node, 0) for job in self.jobs) - self.spare.get(node, 0))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes on which a job was started."""
        return tuple(sorted({node for job in self.jobs for node in (*job.demand.declared, *job.demand.workers_per_node)}))

    def _with(self, name: str, workers_per_node: WorkersByNode) -> "LiveCluster":
        return replace(self, jobs=tuple(_placed(job, workers_per_node) if job.name == name else job for job in self.jobs))


def _placed(job: LiveJob, workers_per_node: WorkersByNode) -> LiveJob:
    kept = {node: count for node, count in {**job.demand.workers_per_node, **workers_per_node}.items() if count}
    demand = job.demand
    return replace(job, demand=Demand(declared=demand.declared, workers_per_node=kept, weight=demand.weight, workers_min=demand.workers_min))


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
