"""The event table: the allocation after each single next event, computed before it happens (Unicron, section 5).

Three sets of shared tables, one for each number of usable workers that the next event can leave: fewer (a loss: one
row per task, whose switch is then forced), the same (a task finishes: its gains are none; one is launched: its gains
replace none), more (a join). About six solutions from scratch for all 2·tasks + 2 events. A table is immutable.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from .allocation import Allocation, GainTable, solve
from .convolution import CandidateCounts
from .dynamic_program import solve_each_change
from .next_events import NextEvent, NextEventKind, problem_after
from .tasks import TaskCluster

NO_WORKERS = CandidateCounts(np.zeros(1, dtype=np.intp), np.zeros(1, dtype=np.int64))
"""The only count of a task that does not run."""


class EventTable:
    """The allocation after each next event of one cluster. Building it takes seconds for large clusters, asking it is a look-up."""

    def __init__(self, cluster: TaskCluster) -> None:
        self.cluster = cluster
        self._allocations: dict[NextEvent, Allocation] = dict(_all_allocations(cluster))

    def __len__(self) -> int:
        return len(self._allocations)

    def allocation_after(self, events: Sequence[NextEvent]) -> Allocation | None:
        """None: not in the table (two events at once, or a task that the cluster does not have)."""
        return self._allocations.get(events[0]) if len(events) == 1 else None


def _all_allocations(cluster: TaskCluster) -> Iterator[tuple[NextEvent, Allocation]]:
    if cluster.workers >= cluster.granularity:
        yield from _after_losses(cluster)
    joined = NextEvent(NextEventKind.JOINED)
    yield joined, solve(problem_after(cluster, [joined]))
    yield from _after_task_changes(cluster)


def _after_losses(cluster: TaskCluster) -> Iterator[tuple[NextEvent, Allocation]]:
    problem = problem_after(cluster, [NextEvent(NextEventKind.LOST)])
    grid, usable = GainTable.of(problem), problem.usable
    base = [grid.choices(index, row) for index, row in enumerate(grid.gains)]
    holders = [index for index, task in enumerate(cluster.tasks) if task.current]
    rows = [grid.after_loss(index) for index in holders]
    changes = [(index, grid.choices(index, row)) for index, row in zip(holders, rows, strict=True)]
    plans = solve_each_change(base, changes, grid.units)
    all_tasks = range(len(cluster.tasks))
    for index, row, units in zip(holders, rows, plans[:-1], strict=True):
        yield NextEvent(NextEventKind.LOST, cluster.tasks[index].name), grid.allocation(units, usable, all_tasks, {index: row})
    yield NextEvent(NextEventKind.LOST), grid.allocation(plans[-1], usable, all_tasks, {})


def _after_task_changes(cluster: TaskCluster) -> Iterator[tuple[NextEvent, Allocation]]:
    running = len(cluster.tasks)
    grid = GainTable.of(problem_after(cluster, [NextEvent(NextEventKind.LAUNCHED, task.name) for task in cluster.queue]))
    real = [grid.choices(index, row) for index, row in enumerate(grid.gains)]
    base = [*real[:running], *[NO_WORKERS] * len(cluster.queue)]
    changes = [(index, NO_WORKERS if index < running else real[index]) for index in range(len(real))]
    plans = solve_each_change(base, changes, grid.units)
    for index, units in enumerate(plans[:-1]):
        finished = index < running
        present = [each for each in range(running) if each != index] + ([] if finished else [index])
        kind = NextEventKind.FINISHED if finished else NextEventKind.LAUNCHED
        yield NextEvent(kind, grid.tasks[index].name), grid.allocation(units, cluster.usable, present, {})
