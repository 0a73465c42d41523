"""Slow iterations of a whole job: slow above 1.1 times the median, very slow above 3 times (Unicron, section 4.1)."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio
from eagle_eye.types import Claim, Entity, Evidence, Kind, Step

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps
from .features.robust_deviation import NORMAL_MAD
from .features.step_time import iteration_time


@dataclass
class IterationTime:
    """Claims job.slow and job.very_slow; both inform only: a slow job has no culprit yet.

    The baseline is the median of earlier steps without the slow ones. Waits for data, evaluations, checkpoints and the
    first step of an epoch do not count.
    """

    needs_job: ClassVar[bool] = True
    slow: Ratio = 1.1
    """Times the median: slow ..."""
    very_slow: Ratio = 3.0
    """... and very slow."""
    noise: Ratio = 4.0
    """And above the median by so many (robust) standard deviations: a noisy job is not called slow each minute."""
    sustained: Count = 5
    """So many steps in succession."""
    very_sustained: Count = 3
    """The same for very slow."""
    window: Count = 50
    """Steps whose median is the measure; judged from a fifth of it on."""
    _times: deque[float] = field(default_factory=deque, init=False, repr=False)
    _last: deque[float] = field(default_factory=deque, init=False, repr=False)
    _skipped: int = field(default=-1, init=False, repr=False)
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._times.clear()
            self._last.clear()
            yield from self._claims.withdraw_all(event.time, why)
        for step in self._steps.of(frame):
            if step.epoch > self._skipped:  # the first step of an epoch compiles and fills caches
                self._skipped = step.epoch
            elif step.epoch == self._skipped:
                yield from self._judge(step, Entity(kind=Kind.JOB, name=frame.job))

    def _judge(self, step: Step, job: Entity) -> Iterator[Claim]:
        time = iteration_time(step)
        if not np.isfinite(time):
            return
        if len(self._times) < max(self.window // 5, 2):
            self._times.append(time)
            return
        median = float(np.median(self._times))
        spread = NORMAL_MAD * float(np.median(np.abs(np.array(self._times) - median)))
        bar = max(self.slow * median, median + self.noise * spread)
        self._last.append(time)
        if len(self._last) > self.sustained:
            self._remember(self._last.popleft(), bar)
        yield from self._report(step, job, "job.slow", bar, median, self.sustained)
        yield from self._report(step, job, "job.very_slow", self.very_slow * median, median, self.very_sustained)

    def _remember(self, time: float, bar: float) -> None:
        """Only what was not slow counts for the measure, so that a slow hour does not become the normal."""
        if time <= bar:
            self._times.append(time)
            while len(self._times) > self.window:
                self._times.popleft()

    def _report(
        self, step: Step, job: Entity, kind: str, bar: float, median: float, needed: int
    ) -> Iterator[Claim]:
        last = np.array(self._last)[-needed:]
        if len(last) < needed:
            return
        if (last > bar).all() and (job, kind) not in self._claims:
            ratio = float(np.median(last)) / max(median, 1e-9)
            text = f"{needed} steps up to {step.number} took {ratio:.2f} times the usual {median:.3f} s"
            proof = Evidence(text=text, metric="iteration_ratio", value=ratio, threshold=bar / max(median, 1e-9))
            since = step.end - float(last.sum())
            yield from self._claims.report(
                Claim(entity=job, kind=kind, score=0.7, since=since, evidence=(proof,)), revise=False
            )
        elif len(self._last) == self.sustained and max(self._last) <= bar:
            yield from self._claims.withdraw(job, kind, step.end, "its steps take their usual time again")
