"""Silent corruption: replicas that held the same parameters do so no more.

Data-parallel workers apply the same gradients to the same parameters, so behind each step they hold the same bits. Workers that do tell a digest of them now and then
(eagle_eye/training/replica_digest.py). Who are replicas of one another is seen, not declared: those whose digests were equal several times in succession; shards differ, and so
do replicas that the script lets drift apart. Where most of them still agree, those that do not are named: a bit was turned in their memory, or their device computed wrongly.
Half against half names nobody.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count
from eagle_eye.types import Claim, Doubles, Entity, Evidence, Integers, Kind, Step

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps

KIND = "replica.differs"
VALUE = "replica_digest"
LARGEST = 1 << 24
"""Every digest is below it."""


class _Row(NamedTuple):
    """The digests behind one step."""

    number: int
    end: float
    digests: Doubles


@dataclass
class ReplicaDigests:
    """Claims replica.differs of a worker, or of the job where it is not seen whose parameters are wrong; until the next epoch, which loads them anew."""

    needs_job: ClassVar[bool] = True
    agreed: Count = 3
    """Digests in succession that were equal: those workers are replicas."""
    differing: Count = 2
    """Digests in succession in which one has to differ then."""
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _epoch: int = field(default=-1, init=False, repr=False)
    _workers: tuple[str, ...] = field(default=(), init=False, repr=False)
    _most: int = field(default=0, init=False, repr=False)
    """Workers that have told a digest of one step: of a step with fewer not all are due."""
    _rows: deque[_Row] = field(default_factory=deque, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._workers = ()
            yield from self._claims.withdraw_all(event.time, why)
        for step in self._steps.of(frame):
            digests = step.values.get(VALUE)
            if digests is not None and self._add(step, digests.astype(np.float64)):
                yield from self._judge(frame.job)

    def _add(self, step: Step, digests: Doubles) -> bool:
        """Take the digests of a step in; True if there are enough to judge."""
        if step.epoch != self._epoch or step.workers != self._workers:
            self._epoch, self._workers, self._most = step.epoch, step.workers, 0
            self._rows.clear()
        known = int(np.isfinite(digests).sum())
        if known < self._most:
            return False
        if known > self._most:
            self._most = known
            self._rows.clear()
        self._rows.append(_Row(step.number, step.end, digests))
        while len(self._rows) > self.agreed + self.differing:
            self._rows.popleft()
        return len(self._rows) == self.agreed + self.differing

    def _judge(self, job: str) -> Iterator[Claim]:
        rows = list(self._rows)
        before, now = rows[: self.agreed], rows[self.agreed :]
        for group in _torn(np.array([row.digests for row in before]), now[0].digests):
            odd = np.ones(len(group), dtype=bool)
            for row in now:
                odd &= np.isfinite(row.digests[group]) & (row.digests[group] != _of_most(row.digests[group]))
            if not odd.any():
                continue
            if _agree(now, group):
                for place in group[odd].tolist():
                    yield from self._tell(Entity(kind=Kind.WORKER, name=self._workers[place]), before[-1], now[0], int(len(group) - odd.sum()))
            else:
                yield from self._tell(Entity(kind=Kind.JOB, name=job), before[-1], now[0], len(group))

    def _tell(self, entity: Entity, before: _Row, now: _Row, others: int) -> Iterator[Claim]:
        since = f"since a step from {before.number + 1} to {now.number}"
        if entity.kind is Kind.JOB:
            text = f"the parameters of {others} replicas, which were the same, are no more, {since}; it is not seen which of them are right"
        else:
            text = f"the parameters of worker {entity.name} are not those of the {others} others any more that hold the same, {since}: they were changed in its memory, or it computed wrongly"
        proof = Evidence(text=text, metric="differs_since_step", value=float(before.number + 1))
        yield from self._claims.report(Claim(entity=entity, kind=KIND, score=0.9, since=now.end, evidence=(proof,)), revise=False)


def _torn(before: Doubles, now: Doubles) -> Iterator[Integers]:
    """Places of workers whose digests are equal in each row of `before`, and differ now: replicas that are no more."""
    known = np.flatnonzero(np.isfinite(before).all(axis=0) & np.isfinite(now))
    keys = np.zeros(len(known), dtype=np.uint64)
    for row in before[:, known].astype(np.uint64):
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + row  # by wrapping around
    _, group = np.unique(keys, return_inverse=True)
    pairs = np.unique(group.astype(np.int64) * LARGEST + now[known].astype(np.int64)) // LARGEST
    for number in np.flatnonzero(np.bincount(pairs) > 1).tolist():
        yield known[group == number]


def _of_most(digests: Doubles) -> float:
    """The digest of more than half; NaN, which nothing is equal to, if there is none."""
    values, count = np.unique(digests, return_counts=True)
    most = int(count.argmax())
    return float(values[most]) if 2 * count[most] > len(digests) else float("nan")


def _agree(rows: list[_Row], group: Integers) -> bool:
    """More than half of the group agree in each row."""
    return all(np.isfinite(_of_most(row.digests[group])) for row in rows)
