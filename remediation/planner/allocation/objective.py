"""Unicron's objective: what a task is worth with x workers until the next disturbance, less what the switch costs.

    F(t, x) = w(t)·T(t, x) if x reaches the task's minimum, else 0                     (WAF, weighted achieved FLOP/s)
    G(t, x) = F(t, x)·D_running(n') - [x is not the current count, or a worker failed]·F(t, current)·D_transition
    D_running(n') = MTBF of one worker / n'

Source: Unicron (He et al., 2023), section 5. All counts here are in units of the granularity.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .tasks import Task

NEVER = -np.inf
"""What a count is worth that a task cannot be given."""


def gains(tasks: Sequence[Task], units: int, granularity: int, run_s: float) -> NDArray[np.float64]:
    """G in WAF·seconds, of no failed task: a row per task, columns 0..units; NEVER where the count is not to be had.

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
