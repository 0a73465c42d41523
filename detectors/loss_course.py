"""The course of a loss: it has risen and stays there, or a restart has ended its fall. Both inform only, and accuse nobody.

A level is the median of 20 steps. A loss that jumps is `loss.spike` at once (detectors/loss.py), and `loss.risen` where it does not come back. That a loss falls no further is told after a restart
alone: a training that has learned what there is to learn does the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio, Share
from eagle_eye.types import Claim, Entity, Evidence, Kind, Step

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps
from .features.loss_levels import BLOCK, LossLevels
from .features.printed_losses import PrintedLosses

RISEN, PLATEAU = "loss.risen", "loss.plateau"
SCORE = 0.7


@dataclass
class LossCourse:
    """Claims loss.risen and loss.plateau of the job.

    What it is measured against outlives epochs: a restarted job is expected to go on from where it was. Steps that are trained again are compared with what was before them.
    """

    needs_job: ClassVar[bool] = True
    deviations: Ratio = 10.0
    """A level is risen that is so many standard deviations of a level above the lowest but one of the newest 100 ..."""
    rise: Share = 0.01
    """... and by this share of it ..."""
    lasting: Count = BLOCK
    """... in so many steps in succession."""
    flatter: Share = 0.2
    """Share of the fall before a restart that is left of it at a plateau ..."""
    sure: Ratio = 6.0
    """... which is so many standard errors flatter than half of it."""
    _epoch: int = field(default=-1, init=False, repr=False)
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _logged: bool = field(default=False, init=False, repr=False)
    """The script has logged a loss: what it prints does not count."""
    _printed: PrintedLosses = field(default_factory=lambda: PrintedLosses(1, 1), init=False, repr=False)
    _begins: bool = field(default=False, init=False, repr=False)
    """The next loss that is printed is the first of an epoch."""
    _above: int = field(default=0, init=False, repr=False)
    """Steps in succession."""
    _since: tuple[float, float] = field(default=(0.0, 0.0), init=False, repr=False)
    """Step and time of the first of them."""
    _flat: float = field(default=0.0, init=False, repr=False)
    """The level of the plateau that was told."""
    _levels: LossLevels = field(default_factory=LossLevels, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        job = Entity(kind=Kind.JOB, name=frame.job)
        for event, why in self._steps.ends(frame):
            self._printed.begin_epoch(event.time)
            self._begins, self._above = True, 0
            yield from self._claims.withdraw_all(event.time, why)
        for step in self._steps.of(frame):
            if (loss := _mean_of(step)) is not None:
                self._logged = True
                yield from self._take(step.epoch != self._epoch, (float(step.number), step.end), loss, job)
                self._epoch = step.epoch
        if frame.tick and not self._logged and (printed := self._printed.update(frame)) is not None and np.isfinite(printed.loss) and np.isfinite(printed.step):
            begins, self._begins = self._begins, False
            yield from self._take(begins, (printed.step, frame.time), printed.loss, job)

    def _take(self, begins: bool, at: tuple[float, float], loss: float, job: Entity) -> Iterator[Claim]:
        """`at`: number and end of the step. `begins`: it is the first of an epoch."""
        if begins:
            self._levels.restart(at[0])
        whole = self._levels.add(*at, loss, steady=not self._above)
        yield from self._judge_level(at, job)
        if whole:
            yield from self._judge_fall(at, job)

    def _judge_level(self, at: tuple[float, float], job: Entity) -> Iterator[Claim]:
        level, lowest = self._levels.level, self._levels.lowest
        if level is None or lowest is None:
            return
        limit = lowest.level + max(self.deviations * self._levels.noise, self.rise * abs(lowest.level))
        if level <= limit or limit <= lowest.level:  # a loss that was exactly zero all the time has no measure
            self._above = 0
            if level <= (lowest.level + limit) / 2.0:
                yield from self._claims.withdraw(job, RISEN, at[1], "the loss is where it was")
            return
        if not self._above:
            self._since = self._levels.begins
        self._above += 1
        if self._above < self.lasting:
            return
        off = (level - lowest.level) / max(self._levels.noise, 1e-12)
        text = f"the loss of {BLOCK} steps up to step {at[0]:.0f} is {level:.4g}, {off:.0f} standard deviations above {lowest.level:.4g}, which it had about step {lowest.step:.0f}"
        yield from self._tell(job, RISEN, Evidence(text=text, metric="loss", value=level, threshold=limit), self._since[1])

    def _judge_fall(self, at: tuple[float, float], job: Entity) -> Iterator[Claim]:
        level = self._levels.level or 0.0
        if (job, PLATEAU) in self._claims:
            if level < self._flat - self.sure * self._levels.noise:
                yield from self._claims.withdraw(job, PLATEAU, at[1], "the loss falls again")
            return
        falls = self._levels.falls()
        if falls is None:
            return
        before, after = falls
        error = float(np.hypot(after.error, before.error / 2.0))
        if before.slope > -self.sure * before.error:
            return
        if after.slope >= self.flatter * before.slope and after.slope - before.slope / 2.0 >= self.sure * error:
            self._flat = level
            text = f"since the restart the loss falls by {_in_thousand_steps(after.slope):.2g} in 1,000 steps, up to step {at[0]:.0f}; before it by {_in_thousand_steps(before.slope):.2g}"
            yield from self._tell(job, PLATEAU, Evidence(text=text, metric="loss_fall", value=_in_thousand_steps(after.slope), threshold=_in_thousand_steps(before.slope) * self.flatter), at[1])

    def _tell(self, job: Entity, kind: str, proof: Evidence, since: float) -> Iterator[Claim]:
        yield from self._claims.report(Claim(entity=job, kind=kind, score=SCORE, since=since, evidence=(proof,)), revise=False)


def _in_thousand_steps(slope: float) -> float:
    """From block to block → how far it falls in 1,000 steps."""
    return -slope * 1000.0 / BLOCK + 0.0


def _mean_of(step: Step) -> float | None:
    """Over the workers that logged a finite one; None: nobody did."""
    loss = step.values.get("loss")
    known = loss[np.isfinite(loss)] if loss is not None else ()
    return float(np.mean(known)) if len(known) else None
