"""Data that come again: a loader that gives the same batch in each step, data that begin anew with a restart, data-parallel workers that all read the same.

None of it raises an error, and the loss falls, faster even: on what it knows already. Workers tell a digest of what a step was given (eagle_eye/training/batch_digest.py). One is a number below 2²⁴, so that two
batches may well have the same: several in succession that agree are judged. Steps that are trained again after a restart have the data that they had before. Who hold the same parameters is
seen by their digests (eagle_eye/training/replica_digest.py): workers that hold parts of a model are given the same data by right.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count
from eagle_eye.types import Claim, Doubles, Entity, Evidence, Floats, Integers, Kind, Layout, Step

from .features.active_claims import ActiveClaims, ends_epoch, epoch_over

REPEATED, SHARED = "data.repeated", "data.shared"
VALUE, PARAMETERS = "batch_digest", "replica_digest"
SCORE = 0.8
CHANGED = 3
"""Times that a worker's data have to have changed before: what is the same from the first step on is a test with made-up data."""
KEPT = 50_000
"""Steps whose digest is known, of the first worker alone: so much of a training is recognised."""
BEGIN = 64
"""Steps of an epoch in which data of the one before are looked for."""


class _Match(NamedTuple):
    """Steps in succession that have the data of others, so many steps earlier."""

    first: int = 0
    """The first of them."""
    behind: int = 0
    steps: int = 0

    def then(self, step: int, earlier: int) -> "_Match":
        """With the next step, whose data those of `earlier` were; itself, where they are new."""
        behind = step - earlier
        goes_on = behind > 0 and behind == self.behind
        return _Match(self.first, behind, self.steps + 1) if goes_on else _Match(step, behind, int(behind > 0))


@dataclass
class RepeatedBatches:
    """Claims data.repeated of a worker, or of the job where many do or a restart has begun the data anew; and data.shared of the job."""

    needs_job: ClassVar[bool] = True
    lasting: Count = 5
    """Steps in succession in which a worker has the same data, or all replicas have."""
    again: Count = 4
    """Steps in succession, behind a restart, that have the data of earlier ones."""
    _epoch: int = field(default=-1, init=False, repr=False)
    _over: int = field(default=-1, init=False, repr=False)
    """Newest epoch that is over: its last steps arrive late and are ignored."""
    _workers: tuple[str, ...] = field(default=(), init=False, repr=False)
    _last: Doubles = field(default_factory=lambda: np.empty(0), init=False, repr=False)
    _same: Integers = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)
    """Steps in succession in which a worker has had the data of the step before."""
    _changed: Integers = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)
    _alike: int = field(default=0, init=False, repr=False)
    """Steps in succession in which all replicas had the same."""
    _replicas: tuple[Integers, ...] = field(default=(), init=False, repr=False)
    """Places of workers that hold the same parameters."""
    _known: dict[float, int] = field(default_factory=dict, init=False, repr=False)
    """Of epochs that are over: digest → step."""
    _now: dict[float, int] = field(default_factory=dict, init=False, repr=False)
    """Of this one."""
    _steps: int = field(default=0, init=False, repr=False)
    """Of this epoch."""
    _passes: bool = field(default=False, init=False, repr=False)
    """Data have come again within an epoch: they are read in several passes, each in the same order."""
    _within: _Match = field(default=_Match(), init=False, repr=False)
    _match: _Match = field(default=_Match(), init=False, repr=False)
    """With steps of epochs that are over."""
    _many: bool = field(default=False, init=False, repr=False)
    """The job was told because the loaders of many stand still."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if why := ends_epoch(event):
                self._over = max(self._over, epoch_over(event))
                yield from self._claims.withdraw_all(event.time, why)
        for step in sorted(frame.steps, key=lambda step: (step.epoch, step.number)):
            digests = step.values.get(VALUE)
            if step.epoch > self._over and digests is not None and np.isfinite(digests).any():
                yield from self._take(step, digests.astype(np.float64), frame)

    def _take(self, step: Step, digests: Doubles, frame: Frame) -> Iterator[Claim]:
        if step.epoch != self._epoch or step.workers != self._workers:
            self._begin(step)
        known = np.isfinite(digests)
        same = known & (digests == self._last)
        self._changed += known & ~same & np.isfinite(self._last)
        self._same = np.where(known, np.where(same, self._same + 1, 0), self._same)
        self._last = np.where(known, digests, self._last)
        job = Entity(kind=Kind.JOB, name=frame.job)
        yield from self._judge_each(step, known, job)
        if (parameters := step.values.get(PARAMETERS)) is not None and np.isfinite(parameters).sum() > 1:
            self._replicas = _replicas(step.workers, parameters, frame.layout)
        yield from self._judge_replicas(step, digests, job)
        if known[0]:
            yield from self._judge_begin(step, float(digests[0]), job)

    def _begin(self, step: Step) -> None:
        if step.epoch != self._epoch:
            self._known = dict(list((self._known | self._now).items())[-KEPT:])
            self._now, self._steps, self._within, self._match, self._many = {}, 0, _Match(), _Match(), False
        self._epoch, self._workers, self._alike, self._replicas = step.epoch, step.workers, 0, ()
        self._last = np.full(len(step.workers), np.nan)
        self._same, self._changed = np.zeros(len(step.workers), np.int64), np.zeros(len(step.workers), np.int64)

    def _judge_each(self, step: Step, known: np.ndarray, job: Entity) -> Iterator[Claim]:
        """One that is given the same again and again; where half of them are, or more, it is the job."""
        stuck = np.flatnonzero((self._same >= self.lasting - 1) & (self._changed >= CHANGED))
        many = len(stuck) > 1 and 2 * len(stuck) >= int(known.sum())
        for place in () if many else stuck.tolist():
            worker = Entity(kind=Kind.WORKER, name=self._workers[place])
            yield from self._tell(worker, REPEATED, f"worker {worker.name} is given the same data in each step, {self._same[place] + 1} times up to step {step.number}: its loader stands still", step.end)
        if self._many and not len(stuck):
            yield from self._claims.withdraw(job, REPEATED, step.end, "their data change again")
        self._many = many
        if many:
            yield from self._tell(job, REPEATED, f"{len(stuck)} workers are given the same data in each step, up to step {step.number}: their loaders stand still", step.end)
        for entity, kind in list(self._claims.open):
            place = self._workers.index(entity.name) if kind == REPEATED and entity.kind is Kind.WORKER and entity.name in self._workers else -1
            if place >= 0 and known[place] and not self._same[place]:
                yield from self._claims.withdraw(entity, kind, step.end, "its data change again")

    def _judge_replicas(self, step: Step, digests: Doubles, job: Entity) -> Iterator[Claim]:
        groups = [group for group in self._replicas if np.isfinite(digests[group]).all()]
        alike = bool(groups) and all((digests[group] == digests[group[0]]).all() and not self._same[group[0]] for group in groups)
        self._alike = self._alike + 1 if alike else 0
        if self._alike >= self.lasting:
            text = f"{len(groups[0])} workers that hold the same parameters were given the same data in {self._alike} steps in succession, up to step {step.number}: the data are not divided among them"
            yield from self._tell(job, SHARED, text, step.end)
        elif groups and not alike:
            yield from self._claims.withdraw(job, SHARED, step.end, "their data differ")

    def _judge_begin(self, step: Step, digest: float, job: Entity) -> Iterator[Claim]:
        """Whether the first worker's data, behind a restart, are those of steps that count as done."""
        self._steps += 1
        self._within = self._within.then(step.number, self._now.get(digest, step.number))
        self._passes = self._passes or (self._within.steps >= self.again and self._within.behind > 1)  # 1: a loader that stands still
        if len(self._now) < KEPT:
            self._now[digest] = step.number
        if self._passes or self._steps > BEGIN:
            return
        self._match = self._match.then(step.number, self._known.get(digest, step.number))
        if self._match.steps >= self.again:
            first, behind = self._match.first, self._match.behind
            text = f"since the restart steps {first} to {step.number} are given the data of steps {first - behind} to {step.number - behind} again: the place in the data was not restored with the checkpoint"
            yield from self._tell(job, REPEATED, text, step.end)

    def _tell(self, entity: Entity, kind: str, text: str, since: float) -> Iterator[Claim]:
        proof = Evidence(text=text, metric=VALUE)
        yield from self._claims.report(Claim(entity=entity, kind=kind, score=SCORE, since=since, evidence=(proof,)), revise=False)


def _replicas(workers: tuple[str, ...], parameters: Floats, layout: Layout | None) -> tuple[Integers, ...]:
    """Places of workers whose digests of their parameters are equal. Who split sequences among them (context parallelism) have the same by right, where the layout says so."""
    places = {place.worker: (place.pp, place.tp, place.cp) for place in (layout.placements if layout is not None else ())}
    groups: dict[tuple[object, ...], list[int]] = {}
    for place in np.flatnonzero(np.isfinite(parameters)).tolist():
        groups.setdefault((float(parameters[place]), places.get(workers[place])), []).append(place)
    return tuple(np.array(group, np.int64) for group in groups.values() if len(group) > 1)
