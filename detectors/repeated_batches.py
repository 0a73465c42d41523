"""Data that come again: a loader that gives one batch again and again, or data that begin anew with a restart.

Neither raises an error, and the loss falls, faster even: on what the model knows already. Workers tell a digest of what a step was given (eagle_eye/training/batch_digest.py). One is a number below 2²⁴, so that two
batches may well have the same: several in succession that agree are judged. Steps that are trained again after a restart are given what they were given before.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count
from eagle_eye.types import Claim, Doubles, Entity, Evidence, Integers, Kind, Step

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps

KIND = "data.repeated"
VALUE = "batch_digest"
SCORE = 0.8
CHANGED = 20
"""Times that a worker's data have to have changed before: what hardly changes is a test with made-up data."""
TIMES = 4
"""So many times as long as ever before: reinforcement learning trains on one batch for some steps."""
KEPT = 10_000
"""Steps whose digest is known, of the first worker alone: so much of a training is recognised."""


@dataclass
class RepeatedBatches:
    """Claims data.repeated of a worker, or of the job where half of them show it or a restart has begun the data anew."""

    needs_job: ClassVar[bool] = True
    lasting: Count = 5
    """Digests in succession of a worker that are the same, ..."""
    again: Count = 4
    """... or, from the first step behind a restart on, those of earlier steps."""
    _epoch: int = field(default=-1, init=False, repr=False)
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _workers: tuple[str, ...] = field(default=(), init=False, repr=False)
    _last: Doubles = field(default_factory=lambda: np.empty(0), init=False, repr=False)
    _same: Integers = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)
    """Digests in succession, of each worker, that were the one before."""
    _longest: Integers = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)
    """The most of them that have ended with other data."""
    _changed: Integers = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)
    _many: bool = field(default=False, init=False, repr=False)
    """The job is told because the loaders of many stand still."""
    _given: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    """Step → its newest digest."""
    _begin: list[tuple[int, float]] = field(default_factory=list, init=False, repr=False)
    """The first steps of this epoch with theirs."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._many = False
            yield from self._claims.withdraw_all(event.time, why)
        for step in self._steps.of(frame):
            digests = step.values.get(VALUE)
            if digests is not None and np.isfinite(digests).any():
                yield from self._take(step, digests.astype(np.float64), Entity(kind=Kind.JOB, name=frame.job))

    def _take(self, step: Step, digests: Doubles, job: Entity) -> Iterator[Claim]:
        if step.epoch != self._epoch or step.workers != self._workers:
            self._begin_anew(step)
        known = np.isfinite(digests)
        same = known & (digests == self._last)
        changed = known & ~same & np.isfinite(self._last)
        self._changed += changed
        self._longest = np.where(changed, np.maximum(self._longest, self._same), self._longest)
        self._same = np.where(known, np.where(same, self._same + 1, 0), self._same)
        self._last = np.where(known, digests, self._last)
        yield from self._judge_each(step, changed, job)
        if known[0]:
            yield from self._judge_begin(step, float(digests[0]), job)

    def _begin_anew(self, step: Step) -> None:
        if step.epoch != self._epoch:
            self._begin = []
        self._epoch, self._workers = step.epoch, step.workers
        self._last = np.full(len(step.workers), np.nan)
        self._same, self._longest, self._changed = (np.zeros(len(step.workers), np.int64) for _ in range(3))

    def _judge_each(self, step: Step, changed: np.ndarray, job: Entity) -> Iterator[Claim]:
        """Whoever is given the same again and again; where half of them are, or more, it is the job."""
        stuck = np.flatnonzero((self._same >= np.maximum(self.lasting - 1, TIMES * self._longest)) & (self._changed >= CHANGED))
        many = len(stuck) > 1 and 2 * len(stuck) >= int(np.isfinite(self._last).sum())
        for place in () if many or self._many else stuck.tolist():
            worker = Entity(kind=Kind.WORKER, name=self._workers[place])
            yield from self._tell(worker, f"worker {worker.name} is given the same data in each step, {self._same[place] + 1} times up to step {step.number}: look at its data loader and at what feeds it", step.end)
        if many and (job, KIND) not in self._claims:
            self._many = True
            yield from self._tell(job, f"{len(stuck)} workers are given the same data in each step, up to step {step.number}: look at the data loader and at what feeds it", step.end)
        elif self._many and not len(stuck):
            self._many = False
            yield from self._claims.withdraw(job, KIND, step.end, "their data change again")
        for entity, kind in list(self._claims.open):
            if entity.kind is Kind.WORKER and entity.name in self._workers and changed[self._workers.index(entity.name)]:
                yield from self._claims.withdraw(entity, kind, step.end, "its data change again")

    def _judge_begin(self, step: Step, digest: float, job: Entity) -> Iterator[Claim]:
        """Whether the first worker's data are, from the first step behind a restart on, those of earlier steps, and not what these steps were given before."""
        if len(self._begin) == self.again:
            self._keep([(step.number, digest)])
            return
        self._begin.append((step.number, digest))
        if len(self._begin) < self.again:
            return
        if behind := self._behind():
            first, last = self._begin[0][0], self._begin[-1][0]
            text = f"since the restart steps {first} to {last} are given the data of steps {first - behind} to {last - behind}, and not those that they were given before it: restore the place in the data with the checkpoint"
            yield from self._tell(job, text, step.end)
        self._keep(self._begin)

    def _keep(self, given: Iterable[tuple[int, float]]) -> None:
        self._given.update(given)
        while len(self._given) > KEPT:
            del self._given[next(iter(self._given))]

    def _behind(self) -> int:
        """So many steps earlier all of them were given before; 0 where that is not so, or where a step is given the same as before."""
        first, digest = self._begin[0]
        if any(self._given.get(number, math.nan) == given for number, given in self._begin) or not any(number in self._given for number, _ in self._begin):
            return 0
        earlier = min((number for number, given in self._given.items() if given == digest), default=first)
        return first - earlier if earlier < first and all(self._given.get(number - first + earlier) == given for number, given in self._begin) else 0

    def _tell(self, entity: Entity, text: str, since: float) -> Iterator[Claim]:
        yield from self._claims.report(Claim(entity=entity, kind=KIND, score=SCORE, since=since, evidence=(Evidence(text=text, metric=VALUE),)), revise=False)
