"""The live planner's answers, remembered: the same question is asked again and again in a year.

A question is who has how many nodes, how many there are, and which tasks must switch; the answer is exact
(remediation.planner.allocation.allocation). Workers of the planner are nodes here.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from remediation.planner.allocation.allocation import solve
from remediation.planner.allocation.tasks import AllocationProblem, Task

from .job_mix import JobMixEntry
from .recovery_policy import RecoveryConstants

Question = tuple[tuple[int, ...], int, frozenset[int]]


class AllocationCache:
    """For one cluster and one policy."""

    def __init__(
        self, jobs: Sequence[JobMixEntry], costs: RecoveryConstants, unit: int, node_mtbf_s: float, gpus_per_node: int, timer: Callable[[], float] = time.process_time
    ) -> None:
        """unit: nodes are handed out by so many. timer: what measures `seconds`."""
        self._costs, self._unit, self._mtbf_s, self._gpus = costs, unit, node_mtbf_s, gpus_per_node
        self._tasks = [
            Task(
                name=f"{index} {job.name}", throughput=costs.efficiency * (job.template_rates if costs.templates else job.rates),
                weight=job.weight, minimum=max(1, job.minimum), maximum=job.maximum,
            )
            for index, job in enumerate(jobs)
        ]  # fmt: skip
        self._timer = timer
        self._known: dict[Question, tuple[int, ...]] = {}
        self.asked = 0
        self.seconds = 0.0
        """Spent in the planner."""

    @property
    def solved(self) -> int:
        """Questions that were new."""
        return len(self._known)

    def allocate(self, current: Sequence[int], usable: int, failed: frozenset[int] = frozenset()) -> tuple[int, ...]:
        """Nodes for each task, given what each has, how many nodes there are, and which tasks (by index) lost one."""
        self.asked += 1
        question = (tuple(current), usable // self._unit * self._unit, failed)
        answer = self._known.get(question)
        if answer is None:
            began = self._timer()
            answer = self._known[question] = self._solve(question)
            self.seconds += self._timer() - began
        return answer

    def _solve(self, question: Question) -> tuple[int, ...]:
        current, usable, failed = question
        tasks = tuple(replace(task, current=count, transition_s=self._transition_s(count)) for task, count in zip(self._tasks, current, strict=True))
        situation = AllocationProblem(
            tasks=tasks, usable=usable, gpu_mtbf_s=self._mtbf_s, granularity=self._unit, failed=frozenset(tasks[index].name for index in failed)
        )
        found = solve(situation)
        return tuple(found.workers[task.name] for task in tasks)

    def _transition_s(self, nodes: int) -> float:
        """What the plan counts a switch with: an estimate, not what the switch will take."""
        load_s = self._costs.load_replica_s if self._costs.replica else self._costs.load_storage_s
        return self._costs.detection_lost_s + self._costs.switch_s("reconfigure", nodes * self._gpus) + load_s
