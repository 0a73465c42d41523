"""Which worker contributes which micro-batches to the step in flight (Unicron, section 6.2: partial results are reused).

Gradients are a sum over micro-batches: those that surviving workers have done stay where they are, what was lost with a worker is
reassigned, and with k micro-batches each and one of DP workers gone every worker does k' = k + k / (DP - 1).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Contributions:
    """By rank."""

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
    micro_batches: int, done: Sequence[Collection[int]], owned: Sequence[Collection[int]], takers: Sequence[int], speeds: Sequence[float]
) -> Contributions:
    """All micro-batches, each once. By rank: done, owned (what it was to do anyway) and speeds; takers: ranks that may get more.

    A taker keeps what it was to do and no worker has done; the rest goes to the worker that is done first, in pieces as contiguous as possible.
    """
    kept = deduplicated(done)
    current = [set(mine) for mine in kept.current]
    left = set(range(micro_batches)).difference(*current)
    ahead = dict.fromkeys(takers, 0)
    for rank in takers:
        mine = left & set(owned[rank])
        current[rank] |= mine
        left -= mine
        ahead[rank] = len(mine)
    loads = {rank: len(current[rank]) for rank in takers}
    counts = _counts(len(left), ahead, loads, speeds)
    rest = iter(sorted(left))
    for rank in takers:
        current[rank].update(next(rest) for _ in range(counts[rank]))
    return Contributions(tuple(tuple(sorted(mine)) for mine in current), kept.dropped)


def _counts(total: int, ahead: Mapping[int, int], loads: Mapping[int, int], speeds: Sequence[float]) -> dict[int, int]:
    """One after another to the rank that has done it first; of these the one with the least in this step, then the lowest."""
    counts = dict.fromkeys(ahead, 0)
    for _ in range(total):
        rank = min(counts, key=lambda each: ((ahead[each] + counts[each] + 1) / speeds[each], loads[each] + counts[each], each))
        counts[rank] += 1
    return counts
