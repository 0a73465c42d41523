"""The dynamic programme over tasks: one solution, and all solutions in which a single task differs.

    P(i, j) = best of the first i tasks with j units = max over k of P(i-1, j-k) + G(i, k)        (Unicron's S(i, j))
    S(i, j) = the same of tasks i, i+1, ...

A problem in which only task i differs is max over k of (P(i) combined with S(i+1))(n - k) + G'(k): all such problems
share the two tables.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .convolution import Choices, Keys, best_at, combine, picks

Plan = NDArray[np.intp]
"""Units for each task; with two axes, a row per plan."""


def prefixes(choices: Sequence[Choices], units: int) -> list[Keys]:
    """P(0), P(1), ... for all tasks but the last: of the whole only one entry is ever asked for."""
    tables = [np.zeros(units + 1, dtype=np.int64)]
    for each in choices[:-1]:
        tables.append(_alone(each, units) if len(tables) == 1 else combine(tables[-1], each))
    return tables


def _alone(choices: Choices, units: int) -> Keys:
    """Combined with a table of zeros: the best count that fits."""
    best: Keys = choices.keys[np.searchsorted(choices.counts, np.arange(units + 1), side="right") - 1]
    return best


def best_key(tables: Sequence[Keys], choices: Sequence[Choices], units: int) -> int:
    """The key of the best plan for all tasks."""
    return best_at(tables[-1], choices[-1], units) if choices else 0


def trace(tables: Sequence[Keys], choices: Sequence[Choices], units: int) -> Plan:
    """The best plan for all tasks."""
    plans = np.zeros((1, len(choices)), dtype=np.intp)
    _trace(tables, choices, np.array([len(choices)]), np.array([units]), plans)
    plan: Plan = plans[0]
    return plan


def _trace(tables: Sequence[Keys], choices: Sequence[Choices], tasks: Plan, units: Plan, plans: Plan) -> None:
    """Fill in each row of `plans` the best of its first `tasks` tasks with its `units`; all rows at once."""
    left = units.copy()
    for index in reversed(range(int(tasks.max(initial=0)))):
        rows = np.flatnonzero(tasks > index)
        picked = picks(tables[index], choices[index], left[rows])
        plans[rows, index] = picked
        left[rows] -= picked


def one_changed(base: Sequence[Choices], changes: Sequence[tuple[int, Choices]], units: int) -> Plan:
    """A row per change (task, its other choices): the best plan with that change alone; the last row: with none."""
    size = len(base)
    before = prefixes(base, units)
    after = prefixes(base[::-1], units)
    rows = len(changes) + 1
    plans = np.zeros((rows, size), dtype=np.intp)
    heads, tails = np.zeros(rows, dtype=np.intp), np.zeros(rows, dtype=np.intp)
    heads_left, tails_left = np.zeros(rows, dtype=np.intp), np.zeros(rows, dtype=np.intp)
    unchanged = trace(before, base, units)
    plans[-1] = unchanged
    for row, (task, choices) in enumerate(changes):
        head, tail = before[task], after[size - 1 - task]
        taken = _best_count(head, tail, choices, units, int(unchanged[task]))
        plans[row, task] = taken
        shared = units - taken
        split = int((head[: shared + 1] + tail[shared::-1]).argmax())
        heads[row], heads_left[row] = task, split
        tails[row], tails_left[row] = size - 1 - task, shared - split
    _trace(before, base, heads, heads_left, plans)
    _trace(after, base[::-1], tails, tails_left, plans[:, ::-1])
    return plans


def _best_count(head: Keys, tail: Keys, choices: Choices, units: int, guess: int) -> int:
    """Units for the task between the two tables; a good guess saves time.

    What the others make of j units never falls in j, and the task's keys rise with its count. So a run of counts can
    hold nothing better than the others' best at its first count plus the task's best at its last: runs that cannot
    beat what is known are dropped, the rest are halved.
    """
    counts, keys = choices.counts, choices.keys

    def others(place: int) -> int:
        shared = units - int(counts[place])
        return int((head[: shared + 1] + tail[shared::-1]).max())

    first = others(0)
    best, taken = first + int(keys[0]), 0
    guessed = int(np.searchsorted(counts, guess, side="right")) - 1
    if guessed and (value := others(guessed) + int(keys[guessed])) > best:
        best, taken = value, guessed
    runs = [(0, len(counts) - 1, first)]
    while runs:
        halves = []
        for low, high, above in runs:
            if low == high or above + int(keys[high]) <= best:
                continue
            middle = (low + high + 1) // 2
            reached = others(middle)
            if reached + int(keys[middle]) > best:
                best, taken = reached + int(keys[middle]), middle
            halves += [(low, middle - 1, above), (middle, high, reached)]
        runs = halves
    return int(counts[taken])
