"""Since when a rule's conditions have been true of each entity, in the columns of the frames."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from eagle_eye.types import Doubles, Floats, Integers

from .condition import RISES, ConditionResult, Flags, RuleCondition
from .rule import MetricRule

GAP_S = 90.0
"""Between two readings; after a longer one nobody knows what was in between. Mounts are written to once a minute."""
READINGS = 3
"""Of which a mean is made, at least."""

RuleColumns = Mapping[str, Floats]
"""Metric → its values."""


class RuleReading(NamedTuple):
    """What one condition read of an entity."""

    condition: RuleCondition
    value: float
    limit: float
    """What it was compared with; of what rises the value before."""


class Fired(NamedTuple):
    """A rule came true of the entity at `place`."""

    place: int
    since: float
    readings: tuple[RuleReading, ...]


class Change(NamedTuple):
    """What a tick changed."""

    fired: tuple[Fired, ...] = ()
    cleared: tuple[int, ...] = ()
    """Places of entities of which it is over."""


NO_CHANGE = Change()


@dataclass
class _Mean:
    """The mean of the readings of one metric in a span; NaN until the span is over."""

    total: Doubles
    count: Doubles

    def add(self, values: Floats) -> None:
        read = np.isfinite(values)
        self.total += np.where(read, values, 0.0)
        self.count += read

    def take(self) -> Floats:
        """The mean, and the next span begins."""
        mean = np.where(self.count >= READINGS, self.total / np.maximum(self.count, 1.0), np.nan).astype(np.float32)
        self.total[:], self.count[:] = 0.0, 0.0
        return mean


@dataclass
class RuleState:
    """One rule over all entities of its kind. Where it was never true nothing is kept, but for what compares with before."""

    rule: MetricRule
    firing: Flags = field(default_factory=lambda: np.empty(0, np.bool_))
    """Of which it is told; set by who tells."""
    since: Doubles = field(default_factory=lambda: np.empty(0))
    """NaN: it is not true now."""
    _last: Doubles = field(default_factory=lambda: np.empty(0))
    """When it was true last."""
    _read: Doubles = field(default_factory=lambda: np.empty(0))
    """When it was read last, of those that fire."""
    _before: dict[str, Floats] = field(default_factory=dict)
    """Metric that must rise → its last values."""
    _false_before: Flags = field(default_factory=lambda: np.empty(0, np.bool_))
    """Of a rule for what is new: it was read without it."""
    _means: dict[str, _Mean] = field(default_factory=dict)
    _span_began: float = float("nan")

    @property
    def gap_s(self) -> float:
        """After so many seconds without a reading a condition must begin anew."""
        return max(GAP_S, 2.5 * self.rule.table.mean_s)

    def update(self, now: float, columns: RuleColumns, count: int, stale_s: float, most: int) -> Change:
        """`columns`: of `count` entities; `most`: that may fire now, the others do so at a later tick."""
        if not all(condition.metric in columns for condition in self.rule.conditions):
            return self._unread(now, stale_s)
        if self.rule.table.mean_s:
            columns = self._mean(now, columns, count)
            if not columns:
                return NO_CHANGE
        before = dict(self._before)
        outcomes = self._outcomes(columns, count)
        true, false = self._joined(outcomes, count)
        if not len(self.since):
            if not true.any():
                return NO_CHANGE
            self._begin(count)
        fires, cleared = self._pass(now, true, false, stale_s)
        limits = [(outcome.limit, before.get(condition.metric)) for condition, outcome in zip(self.rule.conditions, outcomes, strict=True)]
        fired = tuple(Fired(place, float(self.since[place]), self._readings(columns, limits, place)) for place in fires[:most])
        self._forget()
        return Change(fired, cleared)

    # --- conditions

    def _outcomes(self, columns: RuleColumns, count: int) -> list[ConditionResult]:
        return [self._outcome(condition, columns[condition.metric], count) for condition in self.rule.conditions]

    def _joined(self, outcomes: Sequence[ConditionResult], count: int) -> tuple[Flags, Flags]:
        """Of which entities all are true, and of which one is false."""
        true, false = outcomes[0].true, outcomes[0].false
        for outcome in outcomes[1:]:
            true, false = true & outcome.true, false | outcome.false
        if self.rule.table.new:
            if len(self._false_before) != count:
                self._false_before = np.zeros(count, np.bool_)
            self._false_before |= false
            true, false = true & self._false_before, false | (true & ~self._false_before)
        return true, false

    def _readings(self, columns: RuleColumns, limits: Sequence[tuple[float, Floats | None]], place: int) -> tuple[RuleReading, ...]:
        return tuple(
            RuleReading(condition, float(columns[condition.metric][place]), float(before[place]) if condition.op == RISES and before is not None else limit)
            for condition, (limit, before) in zip(self.rule.conditions, limits, strict=True)
        )

    def _outcome(self, condition: RuleCondition, values: Floats, count: int) -> ConditionResult:
        if condition.op != RISES:
            return condition.judge(values)
        before = self._before.get(condition.metric)
        if before is None or len(before) != count:
            before = np.full(count, np.nan, np.float32)
        outcome = condition.judge(values, before)
        self._before[condition.metric] = np.where(np.isfinite(values), values, before).astype(np.float32)
        return outcome

    def _mean(self, now: float, columns: RuleColumns, count: int) -> RuleColumns:
        """Metric → its mean of the span that is over; nothing while it is not."""
        if not now - self._span_began < 4 * self.rule.table.mean_s:  # the first one, or nobody knows what was in between
            self._span_began, self._means = now, {}
        for metric in {condition.metric for condition in self.rule.conditions}:
            mean = self._means.get(metric)
            if mean is None or len(mean.count) != count:
                mean = self._means[metric] = _Mean(np.zeros(count), np.zeros(count))
            mean.add(columns[metric])
        if now - self._span_began < self.rule.table.mean_s:
            return {}
        self._span_began = now
        return {metric: mean.take() for metric, mean in self._means.items()}

    # --- for how long

    def _begin(self, count: int) -> None:
        self.since, self._last, self._read = (np.full(count, np.nan) for _ in range(3))
        self.firing = np.zeros(count, np.bool_)

    def _pass(self, now: float, true: Flags, false: Flags, stale_s: float) -> tuple[list[int], tuple[int, ...]]:
        """Places of which it has been true for long enough, and of which it is over."""
        table, firing = self.rule.table, self.firing
        anew = true & ~firing & ~(now - self._last <= self.gap_s)  # NaN: it was never true
        self.since[(true & np.isnan(self.since)) | anew] = now
        self._last[true] = now
        self._read[true | false] = now
        self.since[false & ~firing] = np.nan
        fires = np.flatnonzero(true & ~firing & (now - self.since >= table.for_s))
        over = firing & false & ~(now - self._last < table.clear_s)
        return fires.tolist(), tuple(np.flatnonzero(over | self._silent(now, stale_s)).tolist())

    def _silent(self, now: float, stale_s: float) -> Flags:
        """Of which it is told, and nothing was read for too long."""
        return self.firing & ~(now - self._read <= max(stale_s, self.gap_s))

    def _unread(self, now: float, stale_s: float) -> Change:
        """A metric that is in no reading of this tick."""
        return Change((), tuple(np.flatnonzero(self._silent(now, stale_s)).tolist())) if len(self.since) else NO_CHANGE

    def _forget(self) -> None:
        """Nothing is true any more, and nothing is told."""
        if not self.firing.any() and np.isnan(self.since).all():
            self.since = self._last = self._read = np.empty(0)
            self.firing = np.empty(0, np.bool_)

    def fire(self, place: int) -> None:
        """It is told of the entity at `place`."""
        self.firing[place] = True

    def clear(self, place: int) -> None:
        """It is withdrawn."""
        self.firing[place] = False
        self.since[place] = np.nan

    def resume(self, place: int, count: int, now: float) -> None:
        """It is told of an entity that was in no frame for a while."""
        if not len(self.since):
            self._begin(count)
        self.firing[place], self.since[place], self._read[place] = True, now, now

    # --- columns that move

    def move(self, moved: Integers) -> None:
        """Each entity's column in the tick before, −1: it is new."""
        if len(self.since):
            self.since, self._last, self._read = (_carried(each, moved, np.nan) for each in (self.since, self._last, self._read))
            self.firing = _carried(self.firing, moved, False)
        self._before = {metric: _carried(values, moved, np.nan) for metric, values in self._before.items()}
        if len(self._false_before):
            self._false_before = _carried(self._false_before, moved, False)
        for mean in self._means.values():
            mean.total, mean.count = _carried(mean.total, moved, 0.0), _carried(mean.count, moved, 0.0)


def _carried(before: np.ndarray, moved: Integers, new: float | bool) -> np.ndarray:
    if not len(before):
        return np.full(len(moved), new, before.dtype)
    kept = np.where(moved >= 0, before[np.clip(moved, 0, len(before) - 1)], new)
    return kept.astype(before.dtype)
