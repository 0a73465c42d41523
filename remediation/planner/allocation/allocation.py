"""Who gets how many workers: the plan that is worth most until the next disturbance, exact.

    maximise  sum over tasks of G(t, x')   subject to   sum of x' <= n',  x' a multiple of the granularity

G as in objective.py. Of plans worth the same (to about 2**-45 of the whole) the one that moves fewer workers wins; what
is then left to chance is settled by the order of the tasks, so the same question always has the same answer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .convolution import CandidateCounts, KeyScale
from .dynamic_program import UnitCounts, prefix_tables, pruned, trace_back
from .objective import gains, gains_after_loss, workers_moved
from .tasks import AllocationProblem, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One plan."""

    workers: dict[str, int]
    """For each task; 0: it waits."""
    value: float
    """The objective, in WAF·seconds."""
    waf: float
    """Weighted achieved FLOP/s once the plan runs."""
    moved: int
    """Workers that come to a task or leave one."""
    idle: int
    """Usable workers that nobody gets."""


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
        """As if no task had failed; see `forced`."""
        tasks, granularity = problem.tasks, problem.granularity
        units = problem.usable // granularity
        worth = gains(tasks, units, granularity, problem.horizon_s)
        moved = workers_moved(tasks, units, granularity)
        most_moved = sum(task.current for task in tasks) + problem.usable
        return cls(tasks, granularity, units, worth, moved, KeyScale.of(worth, most_moved))

    def forced(self, index: int) -> NDArray[np.float64]:
        """The gains of a task that lost a worker."""
        return gains_after_loss(self.tasks[index], self.gains[index], self.granularity)

    def choices(self, index: int, row: NDArray[np.float64]) -> CandidateCounts:
        """What the task may be given, if `row` is what each count is worth."""
        return CandidateCounts.of(self.scale.keys(row, self.moves[index]))

    def allocation(self, units: UnitCounts, usable: int, there: Sequence[int], changed: Mapping[int, NDArray[np.float64]]) -> Allocation:
        """A plan in words: of the tasks that are `there`, with the gains of the `changed` ones in place of the grid's."""
        counts = (units * self.granularity).tolist()
        given = [(self.tasks[index], counts[index]) for index in there]
        worth = self.gains[np.arange(len(units)), units].tolist()
        for index, row in changed.items():
            worth[index] = float(row[units[index]])
        return Allocation(
            workers={task.name: count for task, count in given},
            value=math.fsum(worth[index] for index in there),
            waf=math.fsum(task.waf_at(count) for task, count in given),
            moved=sum(abs(count - task.current) for task, count in given),
            idle=usable - sum(count for _, count in given),
        )


def solve(problem: AllocationProblem) -> Allocation:
    """The best plan, from scratch. O(tasks · units²) at worst; large problems are first cut down by a proof (pruning.py)."""
    grid = GainTable.of(problem)
    rows = {index: grid.forced(index) for index, task in enumerate(problem.tasks) if task.name in problem.failed}
    everyone = range(len(problem.tasks))
    choices = pruned([grid.choices(index, rows.get(index, grid.gains[index])) for index in everyone], grid.units)
    units = trace_back(prefix_tables(choices, grid.units), choices, grid.units)
    return grid.allocation(units, problem.usable, everyone, rows)
