"""When a checkpoint in memory goes to storage: after so many steps, from the seconds that the configuration names, or from what was measured.

All nodes of a job have to store the same steps, and do not ask one another: the interval is a power of two of steps, and stored is the first checkpoint
in memory at or behind each multiple of it. Where two nodes differ for a while the multiples of the larger one are stored by both.

Measured are the seconds until a step is whole in storage, and what that costs the training: how many steps it does meanwhile, beside how many it does
in as long without (until that is known: as if it stood still). With the failures of the job so far, Young's and Daly's formula gives the best interval.
"""

import math
from collections import deque
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from eagle_eye.types import Layout
from remediation.planner.decision.checkpoint_interval import IntervalAdvice, advise_interval, overhead

FAILURES = frozenset({"death", "node lost", "stall", "broken"})
"""Reasons of epochs that a fault has begun."""
STEPS_SEEN = 20
"""So many steps, with storing and without, say what storing costs."""
LEAST_COST = 0.01
"""Of the seconds that storing takes: a cost that cannot be told from none counts as this."""
LEAST_INTERVAL = 2.0
"""Times the seconds that storing takes: the storage has a pause as long."""
_KEPT = 5
"""Durations whose median counts."""
_STAYS = 0.8, 2.5
"""The interval in steps stays as long as the one in seconds is so many times as long: a step that takes a little longer moves nothing."""


class _Rate(NamedTuple):
    """Steps that were done in so many seconds."""

    steps: int = 0
    seconds: float = 0.0

    def plus(self, steps: int, seconds: float) -> "_Rate":
        half = self.steps > 1000 * STEPS_SEEN  # older ones count less and less
        return _Rate((self.steps + steps) // (1 + half), (self.seconds + seconds) / (1 + half))


@dataclass(frozen=True, slots=True)
class StorageCost:
    """What storing one checkpoint was measured to take."""

    seconds: float
    """Until it is whole in storage."""
    cost_s: float
    """By which it held training up."""
    measured: bool
    """False: too few steps were seen, and it counts as if training stood still."""


class StorageInterval:
    """Of one job, on one node. Times are monotonic seconds."""

    def __init__(self, interval_s: float, *, tuned: bool, now: float) -> None:
        """`interval_s`: the longest time between two that are stored; `tuned`: the advised one, if that is shorter or longer."""
        self._interval_s, self._tuned, self._begun = interval_s, tuned, now
        self.every = 0
        """Steps; 0: not known yet."""
        self._epoch = 0
        self._failures = 0
        self._newest: tuple[int, float] | None = None
        """Step, and when it was seen."""
        self._quiet, self._busy = _Rate(), _Rate()
        self._took: deque[float] = deque(maxlen=_KEPT)

    def epoch_began(self, layout: Layout) -> None:
        """May be called again for the same."""
        if layout.epoch != self._epoch:
            self._failures += self._epoch > 0 and layout.reason in FAILURES
            self._epoch, self._newest = layout.epoch, None

    def step_seen(self, step: int, now: float, *, busy: bool) -> bool:
        """A step is whole in memory; True: it is the first one behind a multiple of the interval. `busy`: another one is on its way to storage."""
        before, self._newest = self._newest, (step, now)
        if before is None or step <= before[0]:
            return False
        if busy:
            self._busy = self._busy.plus(step - before[0], now - before[1])
        else:
            self._quiet = self._quiet.plus(step - before[0], now - before[1])
        crossed = self.every > 0 and step // self.every > before[0] // self.every
        self._set_every()
        return crossed

    def stored(self, seconds: float) -> None:
        """It took so long until a step was whole in storage."""
        self._took.append(seconds)

    @property
    def step_s(self) -> float:
        """Mean seconds between two steps; NaN: none was seen."""
        rate = self._quiet if self._quiet.steps else self._busy
        return rate.seconds / rate.steps if rate.steps else math.nan

    @property
    def interval_s(self) -> float:
        """That is aimed at."""
        advice = self.advice(self._newest[1]) if self._tuned and self._newest is not None else None
        return self._interval_s if advice is None else advice.interval_s

    def cost(self) -> StorageCost | None:
        """None: nothing was stored yet."""
        if not self._took:
            return None
        seconds = median(self._took)
        if min(self._quiet.steps, self._busy.steps) < STEPS_SEEN or not self._quiet.seconds or not self._busy.seconds:
            return StorageCost(seconds, seconds, measured=False)
        slowed = 1 - (self._busy.steps / self._busy.seconds) / (self._quiet.steps / self._quiet.seconds)
        return StorageCost(seconds, seconds * max(LEAST_COST, slowed), measured=True)

    def advice(self, now: float) -> IntervalAdvice | None:
        """The best interval for this cost and these failures, and what is lost at it. None before something was stored."""
        cost, observed_s = self.cost(), now - self._begun
        if cost is None or cost.cost_s <= 0 or observed_s <= 0:
            return None
        advice = advise_interval(cost.cost_s, self._failures, observed_s)
        interval = max(advice.interval_s, LEAST_INTERVAL * cost.seconds)
        return replace(advice, interval_s=interval, overhead=overhead(interval, cost.cost_s, advice.mtbf_s))

    def _set_every(self) -> None:
        steps = self.interval_s / self.step_s if self.step_s > 0 else math.nan
        if math.isfinite(steps) and not (self.every and _STAYS[0] <= steps / self.every < _STAYS[1]):
            self.every = 1 << int(math.log2(max(1.0, steps)))
