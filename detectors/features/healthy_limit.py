"""The limit of a score, from healthy moments alone: what one of them in a million is above.

The peaks over a threshold are taken for a generalised Pareto distribution (A. Siffer et al., "Anomaly Detection in Streams with Extreme Value Theory", KDD 2017; by moments).
"""

from typing import NamedTuple

import numpy as np

from eagle_eye.types import Doubles

RATE = 1e-6
"""Healthy moments, one in so many, that are above the limit."""
PEAKS = 0.05
"""Share of the moments that are peaks."""
FEWEST_PEAKS = 20
HEAVIEST = 0.45
"""Shape of a tail beyond which moments say nothing of it."""


class ScoreScale(NamedTuple):
    """What kind of score it is."""

    lightest: float = 1e-6
    """Shape of its tail at least: below zero where the score has an end."""
    margin: float = 1.1
    """Times the highest healthy score: the limit is never below it."""
    margin_of_few: float = 1.5
    """The same where the peaks are too few."""


OPEN = ScoreScale()
"""A score without an end."""


def limit_of(scores: Doubles, scale: ScoreScale = OPEN) -> float:
    """What one healthy score in 1 / `RATE` is above; at least a margin above the highest that was seen."""
    threshold = float(np.quantile(scores, 1.0 - PEAKS))
    peaks = scores[scores > threshold] - threshold
    highest = float(scores.max())
    if len(peaks) < FEWEST_PEAKS or peaks.var() <= 0.0:
        return scale.margin_of_few * highest
    mean, ratio = float(peaks.mean()), float(peaks.mean() ** 2 / peaks.var())
    shape = min(max(0.5 * (1.0 - ratio), scale.lightest), HEAVIEST)
    if shape == 0.0:
        shape = 1e-6
    width = mean * (1.0 - shape)
    return max(float(threshold + width / shape * ((RATE / PEAKS) ** -shape - 1.0)), scale.margin * highest)
