"""Micro-batches of the steps to come and of the step in flight: by speed, in one piece each, and cut where the fixed binary tree is cut.

The tree halves the micro-batches 0 .. M-1 again and again; a worker keeps one sum of gradients for each maximal subtree of
its share, so of all shares that end a step equally early those with the fewest subtrees are cheapest to keep and reduce.

For the step in flight, contributions: partial results are reused (Unicron, section 6.2). Micro-batches that surviving workers
have done stay where they are, what was lost with a worker is reassigned, and with k micro-batches each and one of DP workers
gone every worker does k' = k + k / (DP - 1).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heapreplace

SEARCH_LIMIT = 16
"""Workers up to which all cuts are looked into; beyond them the first ranks just get more."""
HELD_BACK = 2
"""Micro-batches at most by which a worker stays below what it could do in the time."""
RELATIVE_TOLERANCE = 1e-9
"""Times that are relatively as close are equal."""


@dataclass(frozen=True, slots=True)
class Contributions:
    """Which worker contributes which micro-batches to the step in flight, by rank."""

    current: tuple[tuple[int, ...], ...]
    dropped: tuple[tuple[int, ...], ...]
    """Done by it, and by a lower rank too, which keeps it."""


def deduplicated(done: Sequence[Collection[int]]) -> Contributions:
    """What surviving workers have done, each micro-batch once."""
    taken: set[int] = set()
    current, dropped = [], []
    for mine in done:
        current.append(tuple(sorted(set(mine) - taken)))
        dropped.append(tuple(sorted(set(mine) & taken)))
        taken |= set(mine)
    return Contributions(tuple(current), tuple(dropped))


def contributions_of(
    micro_batches: int, done: Sequence[Collection[int]], owned: Sequence[Collection[int]], receivers: Sequence[int], speeds: Sequence[float]
) -> Contributions:
    """All micro-batches, each once. By rank: done, owned (what it was to do anyway) and speeds; receivers: ranks that may get more.

    A receiver keeps what it was to do and no worker has done; the rest goes to the worker that is done first, in pieces as contiguous as possible.
    """
    kept = deduplicated(done)
    current = [set(mine) for mine in kept.current]
    left = set(range(micro_batches)).difference(*current)
    ahead = dict.fromkeys(receivers, 0)
    for rank in receivers:
        mine = left & set(owned[rank])
        current[rank] |= mine
        left -= mine
        ahead[rank] = len(mine)
    loads = {rank: len(current[rank]) for rank in receivers}
    counts = _counts(len(left), ahead, loads, speeds)
    rest = iter(sorted(left))
    for rank in receivers:
        current[rank].update(next(rest) for _ in range(counts[rank]))
    return Contributions(tuple(tuple(sorted(mine)) for mine in current), kept.dropped)


def _counts(total: int, ahead: Mapping[int, int], loads: Mapping[int, int], speeds: Sequence[float]) -> dict[int, int]:
    """One after another to the rank that has done it first; of these the one with the least in this step, then the lowest."""
    counts = dict.fromkeys(ahead, 0)
    for _ in range(total):
        rank = min(counts, key=lambda each: ((ahead[each] + counts[each] + 1) / speeds[each], loads[each] + counts[each], each))
        counts[rank] += 1
    return counts


@lru_cache(maxsize=256)
def shares_of(micro_batches: int, speeds: tuple[float, ...]) -> tuple[tuple[int, ...], ...]:
    """Contiguous shares by rank, the last worker done as early as can be. speeds: above zero, 1 is healthy.

    No worker that can do one in that time gets none, as long as there are as many micro-batches as workers.
    """
    most = _most(micro_batches, speeds)
    sizes = (_sizes(micro_batches, most) if len(most) <= SEARCH_LIMIT else None) or _plain(micro_batches, most)
    ends = [sum(sizes[: rank + 1]) for rank in range(len(sizes))]
    return tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True))


def subtrees(first: int, end: int, total: int) -> int:
    """How many maximal subtrees of the tree over `total` leaves, halved at (first + end) // 2, make up first .. end-1."""
    return _subtrees(first, end, 0, total)


def _subtrees(first: int, end: int, left: int, right: int) -> int:
    if end <= left or right <= first:
        return 0
    if first <= left and right <= end:
        return 1
    middle = (left + right) // 2
    return _subtrees(first, end, left, middle) + _subtrees(first, end, middle, right)


def _most(micro_batches: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """What each can do in the time in which all together can just do all: one after another to who is done first."""
    ready = [(1 / speed, rank) for rank, speed in enumerate(speeds)]
    heapify(ready)
    time = 0.0
    counts = [0] * len(speeds)
    for _ in range(micro_batches):
        time, rank = ready[0]
        counts[rank] += 1
        heapreplace(ready, ((counts[rank] + 1) / speeds[rank], rank))
    return tuple(int(time * speed * (1 + RELATIVE_TOLERANCE)) for speed in speeds)


def _least(micro_batches: int, workers: int) -> int:
    return 1 if micro_batches >= workers else 0


def _sizes(micro_batches: int, most: tuple[int, ...]) -> tuple[int, ...] | None:
    """Over all cuts: fewest subtrees, of these the most even. By how many were held back so far: the best beginning."""
    slack, least = sum(most) - micro_batches, _least(micro_batches, len(most))
    best: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, 0, ())}
    for rank, limit in enumerate(most):
        before = sum(most[:rank])
        longer: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        for held, (trees, squares, sizes) in best.items():
            first = before - held
            for back in range(max(0, min(limit - least, slack - held, HELD_BACK)) + 1):
                size = limit - back
                found = (trees + subtrees(first, first + size, micro_batches), squares + size * size, (*sizes, size))
                if held + back not in longer or found[:2] < longer[held + back][:2]:
                    longer[held + back] = found
        best = longer
    return best[slack][2] if slack in best else None


def _plain(micro_batches: int, most: tuple[int, ...]) -> tuple[int, ...]:
    """The last ranks do less."""
    slack, least = sum(most) - micro_batches, _least(micro_batches, len(most))
    sizes = list(most)
    while slack:
        for rank in reversed(range(len(sizes))):
            if slack and sizes[rank] > least:
                sizes[rank] -= 1
                slack -= 1
    return tuple(sizes)
