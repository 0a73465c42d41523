"""Scores of a detector against labels, over all thresholds: average precision, and the volume under the surface of range-based precision and recall.

J. Paparrizos et al., "Volume Under the Surface", VLDB 2022, in the form in which TSB-AD publishes VUS-PR: around each labelled range a slope of up to a period of the series counts in
part, a range counts as found by any of its moments, and the area is averaged over all widths of the slope. Nothing is point-adjusted.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eagle_eye.types import Doubles, Integers

THRESHOLDS = 250
LAGS, SEARCHED, USUAL_PERIOD, SHORTEST, LONGEST = 400, 20_000, 125, 3, 300
"""Lags and samples in which a period is searched; what is taken without one; and which periods count."""


def average_precision(labels: Integers, scores: Doubles) -> float:
    """Area under precision over recall, in steps."""
    ranked = _Ranked.of(scores)
    found = np.cumsum(labels[ranked.order])[ranked.last - 1].astype(np.float64)
    return float(np.sum(np.diff(found, prepend=0.0) * found / ranked.last) / labels.sum())


def vus_pr(labels: Integers, scores: Doubles, period: int) -> float:
    """Mean of the areas with slopes of 0 to `period` samples. `labels`: 0 or 1, at least one of them 1."""
    ranked = _Ranked.of(scores)
    cuts = np.searchsorted(ranked.last, np.linspace(0, len(scores) - 1, THRESHOLDS).astype(np.int64), side="right")
    taken = ranked.last[cuts]
    lowest = scores[ranked.order[taken - 1]]
    ranges = ranges_of(labels)
    return float(np.mean([_area(labels, scores, (ranked.order, taken, lowest), ranges, width) for width in range(period + 1)]))


def ranges_of(labels: Integers) -> list[tuple[int, int]]:
    """First and last sample of each labelled range."""
    change = np.diff(labels.astype(np.int64), prepend=0, append=0)
    return list(zip(np.flatnonzero(change == 1).tolist(), (np.flatnonzero(change == -1) - 1).tolist(), strict=True))


def period_of(values: Doubles) -> int:
    """The highest peak of the autocorrelation."""
    some = values[:SEARCHED].astype(np.float64) - float(values[:SEARCHED].mean())
    spectrum = np.fft.rfft(some, 2 * len(some))
    correlation = np.fft.irfft(spectrum * np.conj(spectrum))[SHORTEST : min(LAGS, len(some) - 1) + 1]
    inner = correlation[1:-1]
    peaks = np.flatnonzero((inner > correlation[:-2]) & (inner > correlation[2:])) + 1
    if not len(peaks):
        return USUAL_PERIOD
    lag = int(peaks[np.argmax(correlation[peaks])])
    return lag + SHORTEST if SHORTEST <= lag <= LONGEST else USUAL_PERIOD


class _Ranked(NamedTuple):
    order: Integers
    """Samples, highest score first."""
    last: Integers
    """For each different score: how many samples have it or a higher one."""

    @classmethod
    def of(cls, scores: Doubles) -> "_Ranked":
        order = np.argsort(-scores, kind="stable")
        falls = np.flatnonzero(np.diff(scores[order])) + 1
        return cls(order, np.append(falls, len(scores)))


def _area(labels: Integers, scores: Doubles, ranked: tuple[Integers, Integers, Doubles], ranges: Sequence[tuple[int, int]], width: int) -> float:
    order, taken, lowest = ranked
    weights = _sloped(labels, ranges, width)
    right = np.cumsum(weights[order])[taken - 1]
    slopes = np.cumsum(np.where(labels[order] > 0, 0.0, weights[order]))[taken - 1]
    positives = labels.sum() + slopes / 2.0
    highest = np.sort([scores[first : last + 1].max() for first, last in _joined(ranges, width // 2, len(labels))])
    exist = (len(highest) - np.searchsorted(highest, lowest, side="left")) / len(highest)
    recall = np.minimum(right / positives, 1.0) * exist
    return float(np.dot(np.diff(recall, prepend=0.0), right / taken))


def _sloped(labels: Integers, ranges: Sequence[tuple[int, int]], width: int) -> Doubles:
    """1.0 within a range, less and less up to half a width beside it."""
    weights = labels.astype(np.float64)
    for first, last in ranges if width else ():
        after, before = np.arange(last + 1, min(last + width // 2 + 1, len(weights))), np.arange(max(first - width // 2, 0), first)
        weights[after] += np.sqrt(1.0 - (after - last) / width)
        weights[before] += np.sqrt(1.0 - (first - before) / width)
    return np.minimum(weights, 1.0)


def _joined(ranges: Sequence[tuple[int, int]], beside: int, count: int) -> list[tuple[int, int]]:
    """The ranges with so many samples beside them; those that meet are one."""
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        wide = (max(first - beside, 0), min(last + beside, count - 1))
        if joined and wide[0] <= joined[-1][1]:
            wide = (joined.pop()[0], wide[1])
        joined.append(wide)
    return joined
