"""Digests that workers tell of some steps, and who of those that told the same several times in succession does so no more.

A worker tells behind steps whose number is a multiple of its own interval, a power of two (eagle_eye/training/replica_digest.py), so those whose intervals differ meet at the steps of the longest. Replicas
are judged by the steps at which all of them told: one that tells seldom, or no more, delays nobody else's judgement.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle_eye.types import Floats, Integers, Step

Truths = NDArray[np.bool_]

LARGEST = 1 << 24
"""Every digest is below it."""
DOUBLINGS = 20
"""No worker's interval has been doubled more often (MOST of replica_digest.py)."""


class DigestRow(NamedTuple):
    """The digests of one step."""

    number: int
    end: float
    digests: Floats
    """NaN: that worker told none."""


class PartedReplicas(NamedTuple):
    """Replicas whose digests were equal in the row `before` and are no more in `now`."""

    before: DigestRow
    now: DigestRow
    group: Integers
    """Places of all of them."""
    odd: Integers
    """Of those that are not as most of them; empty where most of them do not agree."""


@dataclass
class _IntervalRows:
    """The newest steps whose number is a multiple of one power of two."""

    kept: int
    rows: deque[DigestRow]
    told: Integers
    """Of each worker: rows in succession in which it told, up to `kept`."""

    def add(self, row: DigestRow) -> None:
        self.rows.append(row)
        while len(self.rows) > self.kept:
            self.rows.popleft()
        self.told = np.where(np.isfinite(row.digests), np.minimum(self.told + 1, self.kept), 0)

    @property
    def whole(self) -> Truths:
        """Workers that told in all of them."""
        every: Truths = self.told >= self.kept
        return every


@dataclass
class DigestRows:
    """Of one value of a job's steps. `agreed`: rows in succession that were equal, `differing`: in which one has to differ then."""

    agreed: int
    differing: int
    _intervals: list[_IntervalRows] = field(default_factory=list, init=False, repr=False)
    """By how often the interval was doubled."""
    _newest: int = field(default=0, init=False, repr=False)
    """The number of intervals to which the newest row belongs."""

    def clear(self) -> None:
        """Other workers, or another epoch."""
        self._intervals.clear()
        self._newest = 0

    def add(self, step: Step, digests: Floats) -> bool:
        """Take the digests of a step in; False where there are not two to compare."""
        if int(np.isfinite(digests).sum()) < 2:
            return False
        row, count = DigestRow(step.number, step.end, digests), step.number + 1
        self._newest = min(((count & -count).bit_length() - 1) if count > 0 else DOUBLINGS, DOUBLINGS) + 1
        while len(self._intervals) < self._newest:
            self._intervals.append(_IntervalRows(self.agreed + self.differing, deque(), np.zeros(len(digests), np.int64)))
        for each in self._intervals[: self._newest]:
            each.add(row)
        return True

    def at(self, number: int) -> Floats | None:
        """The digests of the step of that number."""
        return next((row.digests for each in self._intervals for row in each.rows if row.number == number), None)

    def parted(self) -> Iterator[PartedReplicas]:
        """As the newest row has it: of each interval the replicas of which one tells no more often than that, for the others are judged sooner."""
        sooner: Truths | None = None
        for each in self._intervals[: self._newest]:
            whole = each.whole
            seldom = whole if sooner is None else whole & ~sooner
            if seldom.any():
                yield from self._parted(list(each.rows), np.flatnonzero(whole), seldom)
            sooner = whole if sooner is None else sooner | whole

    def _parted(self, rows: list[DigestRow], whole: Integers, seldom: Truths) -> Iterator[PartedReplicas]:
        before, now = rows[: self.agreed], rows[self.agreed :]
        for places in _torn(np.array([row.digests[whole] for row in before]), now[0].digests[whole]):
            group = whole[places]
            if not seldom[group].any():
                continue
            of_most = [digest_of_most(row.digests[group]) for row in now]
            odd = np.ones(len(group), dtype=bool)
            for row, most in zip(now, of_most, strict=True):
                odd &= row.digests[group] != most
            if odd.any():
                yield PartedReplicas(before[-1], now[0], group, group[odd] if all(np.isfinite(of_most)) else group[:0])


def digest_of_most(digests: Floats) -> float:
    """The digest of more than half; NaN, which nothing is equal to, if there is none."""
    values, count = np.unique(digests, return_counts=True)
    most = int(count.argmax())
    return float(values[most]) if 2 * count[most] > len(digests) else float("nan")


def _torn(before: Floats, now: Floats) -> Iterator[Integers]:
    """Places of workers whose digests are equal in each row of `before`, and differ now: replicas that are no more."""
    keys = np.zeros(len(now), dtype=np.uint64)
    for row in before.astype(np.uint64):
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + row  # by wrapping around
    _, group, count = np.unique(keys, return_inverse=True, return_counts=True)
    pairs = np.unique(group.astype(np.int64) * LARGEST + now.astype(np.int64)) // LARGEST
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(count)[:-1])
    for number in np.flatnonzero(np.bincount(pairs) > 1).tolist():
        yield members[number]
