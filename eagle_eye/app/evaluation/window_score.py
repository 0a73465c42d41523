"""The score of the Numenta Anomaly Benchmark: what alarms are worth that fall into labelled windows, and beside them.

A. Lavin, S. Ahmad, "Evaluating Real-time Anomaly Detection Algorithms: the Numenta Anomaly Benchmark", ICMLA 2015, and the program beside it (numenta/NAB, nab/sweeper.py). An alarm in a window is
worth the more the sooner it comes, and the soonest of a window counts alone; one beside it costs, more and more behind the window's end; a window without any costs. The first part of a
series (`PROBATION`) is for learning, and nothing in it counts. 0 is a detector without an alarm, 100 one that raises one at the first moment of each window. One threshold holds for all series.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eagle_eye.types import Doubles, Integers

PROBATION, LONGEST_PROBATION = 0.15, 5000
"""Share of a series, of at most so many rows."""
STEEPNESS, FAR = 5.0, 3.0
"""Of the sigmoid; behind a window by so many of its widths an alarm costs all that it can."""
OUTSIDE, LEARNING = -1, -2
"""In place of a window's number."""


class Profile(NamedTuple):
    """Weights."""

    hit: float
    false_alarm: float
    miss: float


STANDARD, FEW_FALSE_ALARMS, FEW_MISSES = Profile(1.0, 0.11, 1.0), Profile(1.0, 0.22, 1.0), Profile(1.0, 0.11, 2.0)


class SeriesWindows(NamedTuple):
    """What each row of a series is worth."""

    worth: Doubles
    """−1 to 1, of an alarm in this row."""
    window: Integers
    """Its number, `OUTSIDE` or `LEARNING`."""

    @property
    def labelled(self) -> int:
        """Windows that count."""
        return int(self.window.max(initial=OUTSIDE)) + 1


def windows_of(rows: int, windows: Sequence[tuple[int, int]]) -> SeriesWindows:
    """First and last row of each window, in their order → what each row is worth."""
    worth, number = np.full(rows, -1.0), np.full(rows, OUTSIDE, np.int64)
    places = np.arange(rows)
    for index, (first, last) in enumerate(windows):
        width = last - first + 1
        behind = places > last
        worth[behind] = _sigmoid((places[behind] - last) / max(width - 1.0, 1.0))
        worth[first : last + 1] = _sigmoid((places[first : last + 1] - last - 1) / width) / _sigmoid(np.array([-1.0]))
        number[first : last + 1] = index
    number[: probation(rows)] = LEARNING
    kept = np.unique(number[number >= 0])
    number[number >= 0] = np.searchsorted(kept, number[number >= 0])
    return SeriesWindows(worth, number)


def probation(rows: int) -> int:
    """Rows that are for learning."""
    return math.floor(min(PROBATION * rows, PROBATION * LONGEST_PROBATION))


def score(series: Sequence[tuple[SeriesWindows, Doubles]], threshold: float, profile: Profile) -> float:
    """Windows and anomaly scores of each series → 0 to 100, or below; an alarm is a row whose score reaches the threshold."""
    reached, worth = _gains(series, profile)
    count = sum(windows.labelled for windows, _ in series)
    return _normal(float(worth[reached >= threshold].sum()), count, profile)


def best(series: Sequence[tuple[SeriesWindows, Doubles]], profile: Profile) -> tuple[float, float]:
    """The highest score of any threshold, and that threshold."""
    reached, worth = _gains(series, profile)
    order = np.argsort(-reached, kind="stable")
    sums = np.cumsum(worth[order])
    lasts = np.append(np.diff(reached[order]) < 0.0, True)
    at = int(np.argmax(np.where(lasts, sums, -np.inf)))
    count = sum(windows.labelled for windows, _ in series)
    return _normal(max(float(sums[at]), 0.0), count, profile), float(reached[order[at]]) if sums[at] > 0.0 else math.inf


def _gains(series: Sequence[tuple[SeriesWindows, Doubles]], profile: Profile) -> tuple[Doubles, Doubles]:
    """Thresholds at which the score changes, and by how much it is above that without an alarm."""
    reached, worth = [np.zeros(0)], [np.zeros(0)]
    for windows, scores in series:
        outside = windows.window == OUTSIDE
        reached.append(scores[outside])
        worth.append(profile.false_alarm * windows.worth[outside])
        for number in range(windows.labelled):
            inside = np.flatnonzero(windows.window == number)
            inside = inside[np.argsort(-scores[inside], kind="stable")]
            most = np.maximum.accumulate(profile.hit * windows.worth[inside])
            reached.append(scores[inside])
            worth.append(np.diff(most, prepend=-profile.miss))
    return np.concatenate(reached), np.concatenate(worth)


def _normal(gain: float, count: int, profile: Profile) -> float:
    """`gain`: above the score of a detector without an alarm."""
    return 100.0 * gain / ((profile.hit + profile.miss) * count) if count else math.nan


def _sigmoid(position: Doubles) -> Doubles:
    """1 at the start of a window, 0 at its end, −1 far behind it."""
    value: Doubles = np.where(position > FAR, -1.0, 2.0 / (1.0 + np.exp(STEEPNESS * np.minimum(position, FAR))) - 1.0)
    return value
