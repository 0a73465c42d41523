"""A linear forecast of a machine's metrics from those of a moment before, and how far from it what came is.

All metrics forecast each metric (ridge regression), so that one that leaves its usual course, or its usual company, stands out, and one that is merely high with the others does not.
The forecast is fitted on healthy moments alone; so is the limit: the peaks over a threshold of the newest quarter of them, as a forecast from the others meets them, are taken for a generalised
Pareto distribution (A. Siffer et al., "Anomaly Detection in Streams with Extreme Value Theory", KDD 2017; by moments).
"""

from typing import NamedTuple

import msgspec
import numpy as np

from eagle_eye.types import Doubles

from .node_metrics import LARGEST

RIDGE = 0.1
"""Of the squares of as many samples, added to each metric's: coefficients that healthy moments do not settle stay small."""
CLIPPED = 30.0
"""Deviations; what is further off counts as this."""
LEAST_SPREAD = 0.05
"""Share of its largest value that a metric varies by at least: one that hardly ever moved is not odd for a hair."""
LEAST_ERROR = 0.01
"""Of a forecast, in deviations of the metric."""
HELD_OUT = 0.25
RATE = 1e-6
"""Healthy moments, one in so many, that are above the limit."""
PEAKS = 0.05
"""Share of the moments that are peaks."""
FEWEST_PEAKS = 20
MARGIN, MARGIN_OF_FEW = 1.1, 1.5
"""Times the highest healthy score: the limit is never below it. The second where the peaks are too few."""
FEWEST = 60


class MetricModel(msgspec.Struct, frozen=True):
    """As it is stored, in msgpack."""

    names: tuple[str, ...]
    mean: list[float]
    spread: list[float]
    """What a metric varies by."""
    weights: list[list[float]]
    """Row: metric of the moment before, and a last row for a constant; column: metric that is forecast."""
    error: list[float]
    """Root mean square error of each forecast, in spreads."""
    limit: float
    """Of `scores_of`."""


class Departures(NamedTuple):
    """Samples × metrics; 0.0 where nothing was read."""

    unforeseen: Doubles
    """From the forecast, in its usual errors."""
    far: Doubles
    """From the mean, in spreads."""

    @property
    def scores(self) -> Doubles:
        """Of each sample: root mean square over the metrics."""
        scores: Doubles = np.sqrt((self.unforeseen**2).mean(axis=1))
        return scores

    @property
    def strengths(self) -> Doubles:
        """How much each metric explains of each sample: both count, each by its order of magnitude."""
        strengths: Doubles = np.log1p(np.abs(self.unforeseen)) + np.log1p(np.abs(self.far))
        return strengths

    def explained(self) -> Doubles:
        """The same of all these samples together: the most of each metric."""
        explained: Doubles = np.log1p(np.abs(self.unforeseen).max(axis=0)) + np.log1p(np.abs(self.far).max(axis=0))
        return explained


def fitted(names: tuple[str, ...], before: Doubles, now: Doubles) -> MetricModel:
    """Samples × metrics of healthy moments, oldest first, and of the moment after each. Raises ValueError for fewer than `FEWEST`.

    The limit is that of a forecast from all but the newest, which those are compared with; the forecast itself is then fitted to all.
    """
    if len(now) < FEWEST:
        raise ValueError(f"a forecast from {len(now)} samples would be worth nothing: collect at least {FEWEST}")
    known = int(len(now) * (1.0 - HELD_OUT))
    held_out = departures(_forecast(names, before[:known], now[:known]), before[known:], now[known:])
    return msgspec.structs.replace(_forecast(names, before, now), limit=limit_of(held_out.scores))


def _forecast(names: tuple[str, ...], before: Doubles, now: Doubles) -> MetricModel:
    """Without a limit."""
    some = np.isfinite(now).any(axis=0)
    read = np.where(np.isfinite(now), now, np.nan)[:, some]
    mean, spread = np.zeros(len(names)), np.zeros(len(names))
    mean[some] = np.nanmean(read, axis=0)
    spread[some] = np.maximum(np.nanstd(read, axis=0), LEAST_SPREAD * np.nanmax(np.abs(read), axis=0))
    spread[spread <= 0.0] = 1.0
    rough = MetricModel(names, mean.tolist(), spread.tolist(), [], [1.0] * len(names), 0.0)
    x, y = _with_constant(_standard(rough, before)), _standard(rough, now)
    weights = np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ y)
    error = np.maximum(np.sqrt(((y - x @ weights) ** 2).mean(axis=0)), LEAST_ERROR)
    return msgspec.structs.replace(rough, weights=weights.tolist(), error=error.tolist())


def departures(model: MetricModel, before: Doubles, now: Doubles) -> Departures:
    """Samples × metrics, in the order of the model's names."""
    far = _standard(model, now)
    errors = (far - _with_constant(_standard(model, before)) @ np.array(model.weights)) / np.array(model.error)
    return Departures(np.where(np.isfinite(now), errors, 0.0), far)


def checked(model: MetricModel) -> MetricModel:
    """Raises ValueError for one that no learner of ours makes: a baseline comes over the stream."""
    count = len(model.names)
    sizes = {len(each) for each in (model.mean, model.spread, model.error)} | {len(row) for row in model.weights}
    if not count or sizes != {count} or len(model.weights) != count + 1:
        raise ValueError("its parts are of unequal sizes")
    if not all((np.abs(np.array(each)) < LARGEST).all() for each in (model.mean, model.spread, model.error, model.weights)):
        raise ValueError("its values are not those of a metric")
    if min(model.spread) <= 0.0 or min(model.error) <= 0.0 or not 0.0 <= model.limit < LARGEST:
        raise ValueError("its spreads, errors or limit are not above zero")
    return model


def limit_of(scores: Doubles) -> float:
    """What one healthy score in 1 / `RATE` is above; at least a margin above the highest that was seen."""
    threshold = float(np.quantile(scores, 1.0 - PEAKS))
    peaks = scores[scores > threshold] - threshold
    highest = float(scores.max())
    if len(peaks) < FEWEST_PEAKS or peaks.var() <= 0.0:
        return MARGIN_OF_FEW * highest
    mean, ratio = float(peaks.mean()), float(peaks.mean() ** 2 / peaks.var())
    shape = min(max(0.5 * (1.0 - ratio), 1e-6), 0.45)
    scale = mean * (1.0 - shape)
    return max(float(threshold + scale / shape * ((RATE / PEAKS) ** -shape - 1.0)), MARGIN * highest)


def _standard(model: MetricModel, values: Doubles) -> Doubles:
    """In spreads from the mean; 0.0 where nothing was read."""
    standard: Doubles = np.clip((values - np.array(model.mean)) / np.array(model.spread), -CLIPPED, CLIPPED)
    return np.where(np.isfinite(values), standard, 0.0)


def _with_constant(values: Doubles) -> Doubles:
    return np.hstack([values, np.ones((len(values), 1))])
