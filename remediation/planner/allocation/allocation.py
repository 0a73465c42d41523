"""The allocation of workers to tasks that is worth most until the next failure; exact.

    maximise  sum over tasks of G(t, x')   subject to   sum of x' <= n',  x' a multiple of the granularity

The objective is Unicron's (He et al., 2023, section 5): what a task is worth with x workers until the next disturbance, less what the switch costs.

    F(t, x) = w(t)·T(t, x) if x reaches the task's minimum, else 0                     (WAF, weighted achieved FLOP/s)
    G(t, x) = F(t, x)·D_running(n') - [x is not the current count, or a worker failed]·F(t, current)·D_transition
    D_running(n') = MTBF of one worker / n'

Of allocations worth the same (to about 2**-45 of the whole) the one that moves fewer workers
wins, then the order of the tasks decides: the same problem always has the same answer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .convolution import CandidateCounts, KeyScale
from .dynamic_program import UnitCounts, prefix_tables, pruned, trace_back
from .tasks import AllocationProblem, Task

NEVER = -np.inf
"""What a count is worth that a task cannot be given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """How many workers each task gets, and what that is worth."""

    workers: dict[str, int]
    """Task → workers; 0: the task waits."""
    value: float
    """The objective, in WAF·seconds."""
    waf: float
    """Weighted achieved FLOP/s once every task runs on its workers."""
    moved: int
    """Workers that are added to a task or taken from one."""
    idle: int
    """Usable workers that no task gets."""


@dataclass(frozen=True, slots=True)
class GainTable:
    """The gains of a list of tasks at 0..units units, and the scale of their keys."""

    tasks: tuple[Task, ...]
    granularity: int
    units: int
    gains: NDArray[np.float64]
    moves: NDArray[np.int64]
    scale: KeyScale

    @classmethod
    def of(cls, problem: AllocationProblem) -> "GainTable":
        """As if no task had lost a worker; `after_loss` has the row of one that did."""
        tasks, granularity = problem.tasks, problem.granularity
        units = problem.usable // granularity
        worth = gains(tasks, units, granularity, problem.horizon_s)
        moved = workers_moved(tasks, units, granularity)
        most_moved = sum(task.current for task in tasks) + problem.usable
        return cls(tasks, granularity, units, worth, moved, KeyScale.of(worth, most_moved))

    def after_loss(self, index: int) -> NDArray[np.float64]:
        """The gains of a task that lost a worker."""
        return gains_after_loss(self.tasks[index], self.gains[index], self.granularity)

    def choices(self, index: int, row: NDArray[np.float64]) -> CandidateCounts:
        """The counts worth trying for a task, if `row` is what each count is worth."""
        return CandidateCounts.of(self.scale.keys(row, self.moves[index]))

    def allocation(self, units: UnitCounts, usable: int, present: Sequence[int], changed: Mapping[int, NDArray[np.float64]]) -> Allocation:
        """From units to workers and their worth: of the tasks that are `present`; `changed` rows replace those of the table."""
        counts = (units * self.granularity).tolist()
        given = [(self.tasks[index], counts[index]) for index in present]
        worth = self.gains[np.arange(len(units)), units].tolist()
        for index, row in changed.items():
            worth[index] = float(row[units[index]])
        return Allocation(
            workers={task.name: count for task, count in given},
            value=math.fsum(worth[index] for index in present),
            waf=math.fsum(task.waf_at(count) for task, count in given),
            moved=sum(abs(count - task.current) for task, count in given),
            idle=usable - sum(count for _, count in given),
        )


def solve(problem: AllocationProblem) -> Allocation:
    """The best allocation, from scratch. O(tasks · units²) at worst; large problems are pruned first (dynamic_program.pruned)."""
    grid = GainTable.of(problem)
    rows = {index: grid.after_loss(index) for index, task in enumerate(problem.tasks) if task.name in problem.failed}
    all_tasks = range(len(problem.tasks))
    choices = pruned([grid.choices(index, rows.get(index, grid.gains[index])) for index in all_tasks], grid.units)
    units = trace_back(prefix_tables(choices, grid.units), choices, grid.units)
    return grid.allocation(units, problem.usable, all_tasks, rows)


# --- objective; counts are in units of the granularity


def gains(tasks: Sequence[Task], units: int, granularity: int, run_s: float) -> NDArray[np.float64]:
    """G in WAF·seconds, of no failed task: a row per task, columns 0..units in units of the granularity; NEVER where the count is not to be had.

    Zero units are always to be had: the task waits. Between zero and its minimum it would hold workers for nothing.
    """
    table = np.full((len(tasks), units + 1), NEVER)
    for row, task in zip(table, tasks, strict=True):
        last = min(units, task.most // granularity)
        first = max(1, -(-task.minimum // granularity))
        lost = task.waf * task.transition_s
        idle = 0.0 if task.minimum else task.weight * float(task.throughput[0])
        row[0] = idle * run_s - lost
        if first <= last:
            row[first : last + 1] = task.weight * run_s * task.throughput[first * granularity : last * granularity + 1 : granularity] - lost
        stays = task.current // granularity
        if task.current % granularity == 0 and stays <= units and row[stays] != NEVER:
            row[stays] += lost
    return table


def gains_after_loss(task: Task, row: NDArray[np.float64], granularity: int) -> NDArray[np.float64]:
    """The row of a task that lost a worker: even with the same count it has to switch."""
    changed = row.copy()
    stays = task.current // granularity
    if task.current % granularity == 0 and stays < len(row):
        changed[stays] -= task.waf * task.transition_s
    return changed


def workers_moved(tasks: Sequence[Task], units: int, granularity: int) -> NDArray[np.int64]:
    """Workers that come to or leave a task if it gets 0..units units: a row per task."""
    counts = np.arange(units + 1, dtype=np.int64) * granularity
    current = np.array([task.current for task in tasks], dtype=np.int64)
    moved: NDArray[np.int64] = np.abs(counts[None, :] - current[:, None])
    return moved
