"""A cache of the live planner's allocations: the same problem comes again and again in a simulated year.

A problem is how many nodes each task has, how many there are, and which tasks lost one; the allocation is exact
(remediation.planner.allocation.allocation). Workers of the planner are nodes here.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from remediation.planner.allocation.allocation import solve
from remediation.planner.allocation.tasks import AllocationProblem, Task

from .job_mix import JobMixEntry
from .recovery_policy import RecoveryConstants

Problem = tuple[tuple[int, ...], int, frozenset[int]]


class AllocationCache:
    """For one cluster and one policy."""

    def __init__(
        self, jobs: Sequence[JobMixEntry], costs: RecoveryConstants, unit: int, node_mtbf_s: float, gpus_per_node: int, timer: Callable[[], float] = time.process_time
    ) -> None:
        """unit: nodes are allocated in groups of so many. timer: what measures `seconds`."""
        self._costs, self._unit, self._mtbf_s, self._gpus = costs, unit, node_mtbf_s, gpus_per_node
        self._tasks = [
            Task(
                name=f"{index} {job.name}", throughput=costs.efficiency * (job.template_rates if costs.templates else job.rates),
                weight=job.weight, minimum=max(1, job.minimum), maximum=job.maximum,
            )
            for index, job in enumerate(jobs)
        ]  # fmt: skip
        self._timer = timer
        self._known: dict[Problem, tuple[int, ...]] = {}
        self.asked = 0
        self.seconds = 0.0
        """Spent in the planner."""

    @property
    def solved(self) -> int:
        """Distinct problems."""
        return len(self._known)

    def allocate(self, current: Sequence[int], usable: int, failed: frozenset[int] = frozenset()) -> tuple[int, ...]:
        """Nodes for each task, given what each has, how many nodes there are, and which tasks (by index) lost one."""
        self.asked += 1
        problem = (tuple(current), usable // self._unit * self._unit, failed)
        allocation = self._known.get(problem)
        if allocation is None:
            began = self._timer()
            allocation = self._known[problem] = self._solve(problem)
            self.seconds += self._timer() - began
        return allocation

    def _solve(self, problem: Problem) -> tuple[int, ...]:
        current, usable, failed = problem
        tasks = tuple(replace(task, current=count, transition_s=self._transition_s(count)) for task, count in zip(self._tasks, current, strict=True))
        situation = AllocationProblem(
            tasks=tasks, usable=usable, gpu_mtbf_s=self._mtbf_s, granularity=self._unit, failed=frozenset(tasks[index].name for index in failed)
        )
        found = solve(situation)
        return tuple(found.workers[task.name] for task in tasks)

    def _transition_s(self, nodes: int) -> float:
        """The planner's estimate of a transition; the simulated one may take longer or shorter."""
        load_s = self._costs.load_replica_s if self._costs.replica else self._costs.load_storage_s
        return self._costs.detection_lost_s + self._costs.switch_s("reconfigure", nodes * self._gpus) + load_s
