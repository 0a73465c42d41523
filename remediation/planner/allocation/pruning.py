"""Which counts can still be part of a best plan: a proof by prices that leaves the dynamic programme little to do.

Put a price on a unit. A task then gives up `gap(k)` = max over x of (G(x) - price·x) - (G(k) - price·k) by taking k, and
no plan is worth more than the sum of those maxima plus price·n (Lagrange's bound). So a plan that is as good as a known
one can only be made of counts whose gap is at most bound - known. Source: Lagrangian reduced-cost fixing, textbook.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .convolution import KEY_BITS, Choices
from .dynamic_program import best_key, prefixes

WORTH_IT = 10**8
"""With fewer pairs (a state, a count) than this, the proof costs more than it saves."""
FIRST_TRY = 24
"""Counts per task in the first, unproved attempt."""
HALVINGS = 48
ROUNDING = 2.0**-40
"""Keys as floats are rounded; as a share of the bound, far more than that adds up to."""


def pruned(choices: Sequence[Choices], units: int) -> list[Choices]:
    """The same problem with the same best key, and with fewer counts. Unchanged if it is small."""
    if not choices or sum(len(each.counts) for each in choices) * units < WORTH_IT:
        return list(choices)
    price = _price(choices, units)
    worths = [each.keys - price * each.counts for each in choices]
    bound = sum(float(worth.max()) for worth in worths) + price * units
    gaps = [worth.max() - worth for worth in worths]
    everything = np.sort(np.concatenate(gaps))
    tried = float(everything[min(FIRST_TRY * len(choices), len(everything) - 1)])
    few = _within(choices, gaps, tried)
    known = best_key(prefixes(few, units), few, units)
    needed = bound - known + ROUNDING * (abs(bound) + float(2**KEY_BITS))
    return few if needed <= tried else _within(choices, gaps, needed)


def _price(choices: Sequence[Choices], units: int) -> float:
    """The price at which the tasks together ask for just about all units: the bound is least there."""
    low, high = 0.0, max(float(each.keys[-1] - each.keys[0]) for each in choices) + 1.0
    tasks = [(each.counts, each.counts.astype(np.float64), each.keys.astype(np.float64)) for each in choices]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        asked = sum(int(counts[(keys - middle * numbers).argmax()]) for counts, numbers, keys in tasks)
        low, high = (middle, high) if asked > units else (low, middle)
    return high


def _within(choices: Sequence[Choices], gaps: Sequence[NDArray[np.float64]], most: float) -> list[Choices]:
    """Count 0 always stays: it is what makes every number of units possible."""
    kept = []
    for each, gap in zip(choices, gaps, strict=True):
        wanted = gap <= most
        wanted[0] = True
        kept.append(Choices(each.counts[wanted], each.keys[wanted]))
    return kept
