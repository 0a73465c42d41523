"""Micro-batches over unequal groups (pipelines, or nodes of unequal speed): least makespan, exact, without a solver.

A group takes fill + each·b for b micro-batches. Within a time Z it finishes floor((Z - fill) / each) of them, so Z is
bisected until the groups together just fail to finish all; the few that are left go one by one to the group that is
done first, which is optimal because every group's time grows with each micro-batch.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle_eye.errors import ConfigError

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
HALVINGS = 200
"""More than a float has bits and binades in use; bisection ends by itself when no float is left between the ends."""


@dataclass(frozen=True, slots=True)
class GroupPace:
    """How long a group takes."""

    each: float
    """Time of a further micro-batch, above zero."""
    fill: float = 0.0
    """Time beside the micro-batches; may be negative in Oobleck's formula."""
    most: int | None = None
    """Micro-batches that its memory holds."""

    def time(self, micro_batches: int) -> float:
        """With so many."""
        return self.fill + self.each * micro_batches

    def at_speed(self, speed: float) -> "GroupPace":
        """The same group on nodes of this speed, 1 being healthy."""
        if not speed > 0:
            raise ConfigError(f"a speed is above zero, not {speed}: exclude a node that makes no progress")
        return GroupPace(self.each / speed, self.fill / speed, self.most)


@dataclass(frozen=True, slots=True)
class MicroBatchDistribution:
    """Micro-batches of each group."""

    counts: tuple[int, ...]
    makespan: float


def distribute(groups: Sequence[GroupPace], total: int) -> MicroBatchDistribution:
    """Exactly `total` micro-batches, at least one each, none beyond its memory, the last group done as early as can be.

    Of equal plans the one that gives more to the first groups. Raises ConfigError where none is possible.
    """
    each = np.array([group.each for group in groups])
    fill = np.array([group.fill for group in groups])
    most = np.array([total if group.most is None else min(group.most, total) for group in groups], dtype=np.int64)
    _check(each, fill, most, total)
    counts = _nearly(each, fill, most, total)
    left = total - int(counts.sum())
    waiting = [(fill[index] + each[index] * (counts[index] + 1), index) for index in np.flatnonzero(counts < most)]
    heapq.heapify(waiting)
    for _ in range(left):
        _, index = heapq.heappop(waiting)
        counts[index] += 1
        if counts[index] < most[index]:
            heapq.heappush(waiting, (fill[index] + each[index] * (counts[index] + 1), index))
    return MicroBatchDistribution(tuple(counts.tolist()), float((fill + each * counts).max()))


def _check(each: Floats, fill: Floats, most: Integers, total: int) -> None:
    if not len(each):
        raise ConfigError("there is no group to give micro-batches to")
    if not (np.isfinite(each).all() and np.isfinite(fill).all() and (each > 0).all()):
        raise ConfigError("the time of a micro-batch is a number above zero: measure the groups again")
    if total < len(each):
        raise ConfigError(f"{total} micro-batches for {len(each)} groups: each needs one; use fewer groups or smaller micro-batches")
    if (most < 1).any():
        raise ConfigError(f"group {int(np.argmin(most))} has memory for no micro-batch: give it more nodes")
    if int(most.sum()) < total:
        raise ConfigError(f"memory holds {int(most.sum())} of {total} micro-batches: use more groups or smaller micro-batches")


def _nearly(each: Floats, fill: Floats, most: Integers, total: int) -> Integers:
    """What all finish within the greatest time in which they do not finish more than `total`."""
    low = float((fill + each).min())
    high = float((fill + each * most).max())
    counts = np.ones(len(each), dtype=np.int64)
    if int(finished(high, each, fill, most).sum()) <= total:
        return finished(high, each, fill, most)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        at = finished(middle, each, fill, most)
        done = int(at.sum())
        if done > total:
            high = middle
            continue
        low, counts = middle, at
        if total - done <= len(each) // 8:
            break
    return counts


def finished(time: float, each: Floats, fill: Floats, most: Integers) -> Integers:
    """(groups,) micro-batches that are done within the time, but at least one; the rounding of the division is corrected."""
    counts = np.floor((time - fill) / each)
    counts += fill + each * (counts + 1) <= time
    counts -= fill + each * counts > time
    return np.asarray(np.clip(counts, 1, most)).astype(np.int64)


def lower_bound(groups: Sequence[GroupPace], total: int) -> float:
    """No distribution, not even of parts of micro-batches, is done earlier (memory and the minimum set aside)."""
    rate = math.fsum(1 / group.each for group in groups)
    work = total + math.fsum(group.fill / group.each for group in groups)
    return work / rate
