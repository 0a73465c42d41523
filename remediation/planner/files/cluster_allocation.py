"""The allocation for a cluster file after what-if events, with the layouts that run now and the slow nodes.

A job that does not run its best layout keeps the throughput of its present layout as long as its nodes stay, and gets the
best one when they change. Where (F of the best - F now) · D_running is above F of the best · D_transition it changes its layout, even
on as many nodes.

A slow node stays in its job, which then keeps what balanced micro-batches leave of F (slow_nodes.py; on x GPUs in place
of n the harm is n / x of that), or it is evicted as if it were lost: a spare replaces it, or the nodes are allocated
again. For each the way that is worth more until the repair is chosen, the slowest node first, given the choices
before it: exact for one slow node, not proved for several.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from remediation.planner.allocation.allocation import Allocation, solve
from remediation.planner.allocation.next_events import NextEvent, NextEventKind, problem_after
from remediation.planner.allocation.tasks import AllocationProblem, Task, TaskCluster
from remediation.planner.decision.slow_nodes import slow_node_effect

from .cluster_file import ClusterFile, JobSpec
from .job_case import estimate_now, incident_case_of
from .what_if import WhatIf


@dataclass(frozen=True, slots=True)
class SlowNodeVerdict:
    """Whether a slow node stays in its job."""

    node: str
    job: str
    speed: float
    kept: bool
    """False: it is evicted until it is healthy."""
    gain: float
    """WAF·seconds that the other way would cost, until the repair."""


@dataclass(frozen=True, slots=True)
class ClusterAllocation:
    """The allocation, and the problem that it solves."""

    problem: AllocationProblem
    allocation: Allocation
    slow: tuple[SlowNodeVerdict, ...]
    relayouts: frozenset[str]
    """Jobs that change to their best layout, whatever their nodes."""


def allocate(file: ClusterFile, cluster: TaskCluster, happens: WhatIf, owners: Mapping[str, str]) -> ClusterAllocation:
    """owners: node -> job before anything happened. Raises ConfigError for events that cannot be."""
    search = _Search(file, cluster, happens, owners)
    evicted: frozenset[str] = frozenset()
    best, found = search.plan(evicted), []
    for node in sorted(search.slow, key=lambda one: search.slow[one]):
        without = search.plan(evicted | {node})
        gain = without[1].value - best[1].value
        found.append(SlowNodeVerdict(node, owners[node], search.slow[node], gain <= 0, abs(gain)))
        if gain > 0:
            evicted, best = evicted | {node}, without
    return ClusterAllocation(*best, tuple(found), search.relayouts)


class _Search:
    """The cluster with what its jobs make now; the same but for the slow nodes that are evicted."""

    def __init__(self, file: ClusterFile, cluster: TaskCluster, happens: WhatIf, owners: Mapping[str, str]) -> None:
        self._file, self._happens, self._owners = file, happens, owners
        self._jobs = {job.name: job for job in file.jobs}
        there = problem_after(cluster, happens.events)
        names = {task.name for task in there.tasks}
        self.slow = {node: speed for node, speed in happens.slow.items() if owners[node] in names and speed < 1 and node not in happens.lost}
        repair_s = file.machines.repair_hours * 3600
        self._running_s = min(there.horizon_s, repair_s) if self.slow else there.horizon_s
        self.relayouts = frozenset(task.name for task in there.tasks if self._worth_another_layout(task))
        self._cluster = replace(cluster, tasks=tuple(self._as_it_runs(task) for task in cluster.tasks))

    def plan(self, evicted: Collection[str]) -> tuple[AllocationProblem, Allocation]:
        """The best allocation with these slow nodes evicted and the others kept."""
        tasks = tuple(self._slowed(task, evicted) for task in self._cluster.tasks)
        out = [NextEvent(NextEventKind.LOST, self._owners[node]) for node in sorted(evicted)]
        problem = problem_after(replace(self._cluster, tasks=tasks), [*self._happens.events, *out])
        problem = replace(problem, failed=problem.failed | self.relayouts, running_s=self._running_s)
        return problem, solve(problem)

    def _worth_another_layout(self, task: Task) -> bool:
        job, best = self._jobs[task.name], float(task.throughput[task.current])
        if job.layout is None:
            return False
        return (best - estimate_now(self._file, job).flops) * self._running_s > best * task.transition_s

    def _as_it_runs(self, task: Task) -> Task:
        job = self._jobs[task.name]
        if job.layout is None or task.name in self.relayouts:
            return task
        row = task.throughput.copy()
        row[task.current] = estimate_now(self._file, job).flops
        return replace(task, throughput=row)

    def _slowed(self, task: Task, evicted: Collection[str]) -> Task:
        speeds = {node: speed for node, speed in self.slow.items() if self._owners[node] == task.name and node not in evicted}
        if not speeds:
            return task
        counts = np.maximum(1, np.arange(len(task.throughput)))
        harm = 1 - self._share_left(self._jobs[task.name], task, speeds)
        return replace(task, throughput=task.throughput * np.maximum(min(speeds.values()), 1 - harm * task.current / counts))

    def _share_left(self, job: JobSpec, task: Task, speeds: Mapping[str, float]) -> float:
        return slow_node_effect(replace(incident_case_of(self._file, job, task), slow=speeds)).balanced_share


def describe_slow_nodes(slow: Sequence[SlowNodeVerdict]) -> list[str]:
    """A sentence for each."""
    return [
        f"{one.node} at {one.speed:.0%} of its speed {f'stays in {one.job}' if one.kept else f'is evicted from {one.job}'} until it is healthy: "
        f"to {'evict' if one.kept else 'keep'} it would cost {one.gain:.2g} WAF·s more"
        for one in slow
    ]
