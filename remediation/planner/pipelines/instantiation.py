"""Which templates, how many pipelines of each, how many micro-batches for each: the exact best, without enumeration.

For a time Z each pipeline of a template finishes a known number of micro-batches, so the most that all nodes together
can finish is a knapsack over (pipelines, nodes). It grows with Z: Z is bisected, and every feasible answer brings Z
down to the time that it really takes, until no answer is left below.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eagle_eye.errors import ConfigError

from .micro_batch_distribution import GroupPace, Integers, MicroBatchDistribution, distribute, finished

NEVER = np.int64(-(2**60))
CLOSE = 1e-12
"""Bisection ends when the ends are relatively as close."""


@dataclass(frozen=True, slots=True)
class Instantiation:
    """The pipelines of a job."""

    sizes: tuple[int, ...]
    """Nodes of each pipeline, ascending."""
    batches: MicroBatchDistribution
    time: float
    """Makespan and the all-reduce between the pipelines."""


def instantiate(
    paces: Mapping[int, GroupPace], nodes: int, total: int, least: int = 1, reduce: Mapping[int, float] | None = None
) -> Instantiation:
    """Pipelines that use all nodes, with the least iteration time.

    paces: nodes of a template -> its pace. least: pipelines. reduce: pipelines -> time of their all-reduce, if known;
    numbers of pipelines beyond the table take its last time. Raises ConfigError where nothing uses all the nodes.
    """
    problem = _Problem(paces, nodes, total, least)
    best: Instantiation | None = None
    for pipelines in problem.numbers(exact=bool(reduce)):
        extra = _reduce_time(reduce, pipelines)
        below = math.inf if best is None else best.time - extra
        found = problem.solve(pipelines if reduce else None, below)
        if found is not None and (best is None or found[1].makespan + extra < best.time):
            best = Instantiation(found[0], found[1], found[1].makespan + extra)
    if best is None:
        raise ConfigError(
            f"no {least} or more pipelines of {sorted(paces)} nodes use all {nodes} nodes with {total} micro-batches:"
            " use other node counts, fewer faults or more micro-batches"
        )
    return best


def _reduce_time(reduce: Mapping[int, float] | None, pipelines: int) -> float:
    if not reduce:
        return 0.0
    return reduce[pipelines] if pipelines in reduce else reduce[max(reduce)]


class _Problem:
    """The knapsack."""

    def __init__(self, paces: Mapping[int, GroupPace], nodes: int, total: int, least: int) -> None:
        self._paces = paces
        self._sizes = tuple(sorted(size for size in paces if size <= nodes))
        chosen = [paces[size] for size in self._sizes]
        self._each = np.array([pace.each for pace in chosen])
        self._fill = np.array([pace.fill for pace in chosen])
        self._most: Integers = np.array([total if pace.most is None else min(pace.most, total) for pace in chosen], dtype=np.int64)
        self._nodes, self._total, self._least = nodes, total, max(1, least)
        self._top = min(nodes // self._sizes[0], total) if self._sizes else 0

    def numbers(self, exact: bool) -> range:
        """Numbers of pipelines to look into; one look serves all when they need not be distinguished."""
        if self._top < self._least:
            return range(0)
        return range(self._least, self._top + 1) if exact else range(self._least, self._least + 1)

    def solve(self, pipelines: int | None, below: float) -> tuple[tuple[int, ...], MicroBatchDistribution] | None:
        """The best with exactly so many pipelines (None: at least the least), if it is below the time."""
        high = min(below, float((self._fill + self._each * self._most).max()))
        best = self._plan(np.nextafter(high, -math.inf) if high == below else high, pipelines)
        if best is None:
            return None
        low = float((self._fill + self._each).min())
        while True:
            high = best[1].makespan
            middle = (low + high) / 2 if high - low > CLOSE * abs(high) else np.nextafter(high, -math.inf)
            found = self._plan(float(middle), pipelines)
            if found is not None and found[1].makespan < high:
                best = found
            elif middle == np.nextafter(high, -math.inf):
                return best
            else:
                low = float(middle)

    def _plan(self, time: float, pipelines: int | None) -> tuple[tuple[int, ...], MicroBatchDistribution] | None:
        usable = self._fill + self._each <= time
        if not usable.any():
            return None
        done = finished(time, self._each, self._fill, self._most)
        items = [(size, int(count)) for size, count, use in zip(self._sizes, done, usable, strict=True) if use]
        # pipelines beyond the least only need telling apart where there may be more of them than micro-batches
        exact = pipelines is not None or self._nodes // self._sizes[0] > self._total
        table = _Table.filled(items, (pipelines or self._top) if exact else self._least, self._nodes, exact)
        rows = len(table.most) - 1
        ends = [rows] if pipelines is not None or not exact else list(range(self._least, rows + 1))
        end = max(ends, key=lambda row: int(table.most[row, self._nodes]))
        if table.most[end, self._nodes] < self._total:
            return None
        sizes = tuple(sorted(table.trace(end, self._nodes)))
        return sizes, distribute([self._paces[size] for size in sizes], self._total)


@dataclass(frozen=True, slots=True)
class _Table:
    """The knapsack for one time."""

    items: list[tuple[int, int]]
    """(nodes, micro-batches finished) per template, by nodes."""
    most: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    """(pipelines + 1, nodes + 1) micro-batches. Where not exact the last row means so many pipelines or more."""
    choice: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    """The item put in last."""
    exact: bool

    @classmethod
    def filled(cls, items: list[tuple[int, int]], rows: int, nodes: int, exact: bool) -> "_Table":
        most = np.full((rows + 1, nodes + 1), NEVER, dtype=np.int64)
        choice = np.zeros((rows + 1, nodes + 1), dtype=np.int64)
        most[0, 0] = 0
        sizes = np.array([size for size, _ in items])
        counts = np.array([count for _, count in items])
        for count in range(1, nodes + 1):
            fits = int(np.searchsorted(sizes, count, side="right"))
            if not fits:
                continue
            before = most[:, count - sizes[:fits]]
            source = before[:-1].copy()
            if not exact:
                source[-1] = np.maximum(before[-2], before[-1])
            value = source + counts[:fits]
            at = np.argmax(value, axis=1)
            most[1:, count] = np.maximum(value[np.arange(rows), at], NEVER)
            choice[1:, count] = at
        return cls(items, most, choice, exact)

    def trace(self, row: int, nodes: int) -> list[int]:
        """Nodes of each pipeline."""
        sizes = []
        last = len(self.most) - 1
        while nodes:
            size = self.items[int(self.choice[row, nodes])][0]
            sizes.append(size)
            nodes -= size
            stays = not self.exact and row == last and self.most[row, nodes] > self.most[row - 1, nodes]
            row = row if stays else row - 1
        return sizes
