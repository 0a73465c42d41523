"""The dynamic program over tasks: the best allocation, and every best allocation in which a single task differs.

    P(i, j) = best of the first i tasks with j units = max over k of P(i-1, j-k) + G(i, k)        (Unicron's S(i, j))
    S(i, j) = the same of tasks i, i+1, ...

A problem in which only task i differs is max over k of (P(i) combined with S(i+1))(n - k) + G'(k): all such problems
share the two tables.

Pruning makes large problems small by a proof. Put a price on a unit. A task then gives up
`gap(k)` = max over x of (G(x) - price·x) - (G(k) - price·k) by taking k, and no allocation is worth more than the sum of
those maxima plus price·n (Lagrange's bound). So an allocation that is as good as a known one can only be made of counts
whose gap is at most bound - known. Source: Lagrangian reduced-cost fixing, textbook.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .convolution import KEY_BITS, CandidateCounts, Keys, chosen_counts, combine, combine_at

UnitCounts = NDArray[np.intp]
"""Units for each task; with two axes, a row per allocation."""
MINIMUM_PAIRS = 10**8
"""With fewer pairs (a state, a count) than this, the proof costs more than it saves."""
FIRST_ATTEMPT_COUNTS = 24
"""Counts per task in the first, unproved attempt."""
HALVINGS = 48
ROUNDING = 2.0**-40
"""Keys as floats are rounded; as a share of the bound, far more than that adds up to."""


def prefix_tables(choices: Sequence[CandidateCounts], units: int) -> list[Keys]:
    """P(0), P(1), ... for all tasks but the last: of the whole only one entry is ever asked for."""
    tables = [np.zeros(units + 1, dtype=np.int64)]
    for each in choices[:-1]:
        tables.append(_first_table(each, units) if len(tables) == 1 else combine(tables[-1], each))
    return tables


def _first_table(choices: CandidateCounts, units: int) -> Keys:
    """Combined with a table of zeros: the best count that fits."""
    best: Keys = choices.keys[np.searchsorted(choices.counts, np.arange(units + 1), side="right") - 1]
    return best


def best_key(tables: Sequence[Keys], choices: Sequence[CandidateCounts], units: int) -> int:
    """The key of the best allocation for all tasks."""
    return combine_at(tables[-1], choices[-1], units) if choices else 0


def trace_back(tables: Sequence[Keys], choices: Sequence[CandidateCounts], units: int) -> UnitCounts:
    """The best allocation for all tasks."""
    plans = np.zeros((1, len(choices)), dtype=np.intp)
    _trace(tables, choices, np.array([len(choices)]), np.array([units]), plans)
    plan: UnitCounts = plans[0]
    return plan


def _trace(tables: Sequence[Keys], choices: Sequence[CandidateCounts], tasks: UnitCounts, units: UnitCounts, plans: UnitCounts) -> None:
    """Fill in each row of `plans` the best of its first `tasks` tasks with its `units`; all rows at once."""
    left = units.copy()
    for index in reversed(range(int(tasks.max(initial=0)))):
        rows = np.flatnonzero(tasks > index)
        picked = chosen_counts(tables[index], choices[index], left[rows])
        plans[rows, index] = picked
        left[rows] -= picked


def solve_each_change(base: Sequence[CandidateCounts], changes: Sequence[tuple[int, CandidateCounts]], units: int) -> UnitCounts:
    """A row per change (task, its other choices): the best allocation with that change alone; the last row: with none."""
    size = len(base)
    before = prefix_tables(base, units)
    after = prefix_tables(base[::-1], units)
    rows = len(changes) + 1
    plans = np.zeros((rows, size), dtype=np.intp)
    heads, tails = np.zeros(rows, dtype=np.intp), np.zeros(rows, dtype=np.intp)
    heads_left, tails_left = np.zeros(rows, dtype=np.intp), np.zeros(rows, dtype=np.intp)
    unchanged = trace_back(before, base, units)
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


def _best_count(head: Keys, tail: Keys, choices: CandidateCounts, units: int, guess: int) -> int:
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


def pruned(choices: Sequence[CandidateCounts], units: int) -> list[CandidateCounts]:
    """The same problem with the same best key, and with fewer counts. Unchanged if it is small."""
    if not choices or sum(len(each.counts) for each in choices) * units < MINIMUM_PAIRS:
        return list(choices)
    price = _price(choices, units)
    worths = [each.keys - price * each.counts for each in choices]
    bound = sum(float(worth.max()) for worth in worths) + price * units
    gaps = [worth.max() - worth for worth in worths]
    everything = np.sort(np.concatenate(gaps))
    tried = float(everything[min(FIRST_ATTEMPT_COUNTS * len(choices), len(everything) - 1)])
    few = _within(choices, gaps, tried)
    known = best_key(prefix_tables(few, units), few, units)
    needed = bound - known + ROUNDING * (abs(bound) + float(2**KEY_BITS))
    return few if needed <= tried else _within(choices, gaps, needed)


def _price(choices: Sequence[CandidateCounts], units: int) -> float:
    """The price at which the tasks together ask for just about all units: the bound is least there."""
    low, high = 0.0, max(float(each.keys[-1] - each.keys[0]) for each in choices) + 1.0
    tasks = [(each.counts, each.counts.astype(np.float64), each.keys.astype(np.float64)) for each in choices]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        asked = sum(int(counts[(keys - middle * numbers).argmax()]) for counts, numbers, keys in tasks)
        low, high = (middle, high) if asked > units else (low, middle)
    return high


def _within(choices: Sequence[CandidateCounts], gaps: Sequence[NDArray[np.float64]], most: float) -> list[CandidateCounts]:
    """Count 0 always stays: it is what makes every number of units possible."""
    kept = []
    for each, gap in zip(choices, gaps, strict=True):
        wanted = gap <= most
        wanted[0] = True
        kept.append(CandidateCounts(each.counts[wanted], each.keys[wanted]))
    return kept
