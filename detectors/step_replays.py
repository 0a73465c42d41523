"""Silent corruption that a worker sees alone: it ran a step again from the same state, and its gradient was another one, twice in succession.

Workers that do tell with the step behind (`replay_differs`, eagle_eye/training/step_replay.py), having seen before that their kernels give the same bits. One that differs from itself while others do not
computes wrongly. It needs no majority: it is what tells two replicas apart that differ from each other (replica_digests.py). Where several differ from themselves the program has come to kernels that are not
deterministic, as other lengths of a batch may bring, and nobody is named; a difference is remembered for so many replays of its worker; nor is a worker of which no peer has run a step again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Doubles, Entity, Evidence, Kind, Step

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps
from .features.gpu_of_worker import GpuOfWorker

KIND = "replay.differs"
VALUE = "replay_differs"
TWICE = 2.0
SHARE = 4
"""One of so many may differ from itself, and one of fewer; of more that do the program is the cause."""
REMEMBERED = 512
"""Replays of a worker after which a difference counts no more: over months each of many workers differs once, of which nothing follows."""
TOLD = 64
"""Workers that are named, at most."""


@dataclass
class StepReplays:
    """Claims replay.differs of a worker, until the next epoch or until others differ from themselves, too."""

    needs_job: ClassVar[bool] = True
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _epoch: int = field(default=-1, init=False, repr=False)
    _workers: tuple[str, ...] = field(default=(), init=False, repr=False)
    _known: Doubles = field(default_factory=lambda: np.empty(0), init=False, repr=False)
    """Of each worker what its newest replay has shown; NaN: it has made none."""
    _equal: Doubles = field(default_factory=lambda: np.empty(0), init=False, repr=False)
    """Of each worker its replays since the one that differed last, also once alone; infinite: none has."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)
    _gpus: GpuOfWorker = field(default_factory=GpuOfWorker, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._workers = ()
            yield from self._claims.withdraw_all(event.time, why)
        for step in self._steps.of(frame):
            values = step.values.get(VALUE)
            if values is not None:
                yield from self._take(step, values.astype(np.float64), frame)

    def _take(self, step: Step, values: Doubles, frame: Frame) -> Iterator[Claim]:
        if step.epoch != self._epoch or step.workers != self._workers:
            self._epoch, self._workers = step.epoch, step.workers
            self._known = np.full(len(step.workers), np.nan)
            self._equal = np.full(len(step.workers), np.inf)
        told = np.isfinite(values)
        self._known[told] = values[told]
        self._equal[told] += 1.0
        self._equal[told & (values > 0.0)] = 0.0
        replaying, differing = int(np.isfinite(self._known).sum()), int((self._equal < REMEMBERED).sum())
        if differing > max(1, replaying // SHARE):
            yield from self._claims.withdraw_all(step.end, "other workers differ from themselves, too: the program's kernels are not deterministic any more")
            return
        agreeing = int((self._known == 0.0).sum())
        for place in np.flatnonzero(told & (values >= TWICE)).tolist() if agreeing else ():
            if len(self._claims.open) < TOLD and (Entity(kind=Kind.WORKER, name=step.workers[place]), KIND) not in self._claims:
                yield from self._tell(step, place, agreeing, frame)

    def _tell(self, step: Step, place: int, agreeing: int, frame: Frame) -> Iterator[Claim]:
        worker = step.workers[place]
        text = (
            f"worker {worker} ran a step again from the same state and its gradient was another one, twice in succession until step {step.number - 1}, as it was not before and is not on "
            f"{agreeing} other worker{'s' if agreeing > 1 else ''}: its device or memory computes wrongly"
        )
        evidence = (Evidence(text=text, metric="differs_in_step", value=float(step.number - 1)), *self._gpus.evidence(worker, frame.layout))
        yield from self._claims.report(Claim(entity=Entity(kind=Kind.WORKER, name=worker), kind=KIND, score=0.9, since=step.end, evidence=evidence), revise=False)
