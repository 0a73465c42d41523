"""Slow iterations of a whole job: slow above 1.1 times the median, very slow above 3 times (Unicron, section 4.1)."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio
from eagle_eye.types import Claim, Doubles, Entity, Evidence, Kind, Step

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps
from .features.robust_deviation import NORMAL_MAD
from .features.step_estimate import RecentWork
from .features.step_time import iteration_time
from .features.throughput_level import WORK_VARIES

FIXED = 0.5
"""Share of a step, at most, that is taken to stay as it is where its tokens become fewer."""


class _Cost(NamedTuple):
    """One step."""

    seconds: float
    tokens: float
    """Mean over the workers that log them; NaN: nobody does."""
    length: float
    """The same of the length of their sequences."""


@dataclass
class IterationTime:
    """Claims job.slow and job.very_slow; both inform only: a slow job has no culprit yet.

    The baseline is the median of earlier steps without the slow ones. Waits for data, evaluations, checkpoints and the
    first step of an epoch do not count. Where tokens are logged it is the time per token that counts; fewer of them may cost half of a step all the same, and one of a longer sequence
    more in proportion to its length, if that is logged. After a whole window of steps with other work than the measure's it is measured anew.
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
    _costs: deque[_Cost] = field(default_factory=deque, init=False, repr=False)
    _last: deque[_Cost] = field(default_factory=deque, init=False, repr=False)
    _other: int = field(default=0, init=False, repr=False)
    """Successive steps with another amount of work than those of the measure."""
    _skipped: int = field(default=-1, init=False, repr=False)
    _recent: RecentWork = field(default_factory=RecentWork, init=False, repr=False)
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._begin()
            yield from self._claims.withdraw_all(event.time, why)
        for step in self._steps.of(frame):
            if step.epoch > self._skipped:  # the first step of an epoch compiles and fills caches
                self._skipped = step.epoch
            elif step.epoch == self._skipped:
                self._recent.add(step, frame.layout)
                yield from self._judge(step, Entity(kind=Kind.JOB, name=frame.job))

    def _begin(self) -> None:
        self._costs.clear()
        self._last.clear()
        self._recent.forget()
        self._other = 0

    def _judge(self, step: Step, job: Entity) -> Iterator[Claim]:
        cost = _Cost(iteration_time(step), _mean(step, "tokens"), _mean(step, "sequence_length"))
        if not np.isfinite(cost.seconds):
            return
        if len(self._costs) < max(self.window // 5, 2):
            self._costs.append(cost)
            return
        tokens, length = (_median(column) for column in tuple(zip(*self._costs, strict=True))[1:])
        self._other = self._other + 1 if abs(cost.tokens / tokens - 1.0) > WORK_VARIES else 0
        if self._other >= self.window:
            self._begin()
            yield from self._claims.withdraw_all(step.end, "its steps have another amount of work now")
            return
        times = np.array([each.seconds * tokens / each.tokens if each.tokens > 0.0 < tokens else each.seconds for each in self._costs])
        median = float(np.median(times))
        spread = NORMAL_MAD * float(np.median(np.abs(times - median)))
        bar = max(self.slow * median, median + self.noise * spread)
        self._last.append(cost)
        if len(self._last) > self.sustained:
            self._remember(self._last.popleft(), bar, tokens, length)
        last = np.array([each.seconds / _expected(each, tokens, length) for each in self._last])
        yield from self._report(step, job, "job.slow", last, bar, median, self.sustained)
        yield from self._report(step, job, "job.very_slow", last, self.very_slow * median, median, self.very_sustained)

    def _remember(self, cost: _Cost, bar: float, tokens: float, length: float) -> None:
        """Only what was not slow counts for the measure, so that a slow hour does not become the normal."""
        if cost.seconds / _expected(cost, tokens, length) <= bar:
            self._costs.append(cost)
            while len(self._costs) > self.window:
                self._costs.popleft()

    def _report(self, step: Step, job: Entity, kind: str, last: Doubles, bar: float, median: float, needed: int) -> Iterator[Claim]:
        """`last`: seconds of the newest steps, as long as they would have taken with the usual work."""
        newest = last[-needed:]
        if len(newest) < needed:
            return
        if (newest > bar).all() and (job, kind) not in self._claims:
            ratio = float(np.median(newest)) / max(median, 1e-9)
            took_s = [cost.seconds for cost in list(self._last)[-needed:]]
            usual = float(np.median(took_s)) / max(ratio, 1e-9)
            text = f"{needed} steps up to {step.number} took {ratio:.2f} times the usual {usual:.3f} s"
            proof = Evidence(text=text, metric="iteration_ratio", value=ratio, threshold=bar / max(median, 1e-9))
            saved = self._recent.best()
            evidence = (proof, saved) if saved is not None else (proof,)
            yield from self._claims.report(Claim(entity=job, kind=kind, score=0.7, since=step.end - sum(took_s), evidence=evidence), revise=False)
        elif len(last) == self.sustained and last.max() <= bar:
            yield from self._claims.withdraw(job, kind, step.end, "its steps take their usual time again")


def _mean(step: Step, name: str) -> float:
    """Over the workers that logged a positive one; NaN: nobody did."""
    values = step.values.get(name)
    known = values[values > 0.0] if values is not None else ()
    return float(np.mean(known)) if len(known) else float("nan")


def _median(values: Sequence[float]) -> float:
    """Of those that are known; NaN: none is."""
    known = [value for value in values if np.isfinite(value)]
    return float(np.median(known)) if known else float("nan")


def _expected(cost: _Cost, tokens: float, length: float) -> float:
    """Times as long as a usual step, that one with this work may take; `tokens` and `length` are those of a usual one. What is not known is as usual."""
    more, longer = cost.tokens / tokens, cost.length / length
    by_tokens = max(more, FIXED + (1.0 - FIXED) * more) if np.isfinite(more) else 1.0
    return by_tokens * (max(longer, 1.0) if np.isfinite(longer) else 1.0)
