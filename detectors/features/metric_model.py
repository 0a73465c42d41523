"""A linear forecast of a machine's metrics from those of a moment before, and how far from it what came is.

All metrics forecast each metric (ridge regression), so that one that leaves its usual course, or its usual company, stands out, and one that is merely high with the others does not.
The forecast is fitted on healthy moments alone; so is the limit (healthy_limit.py), by the newest quarter of them, as a forecast from the others meets them.

A network of one hidden layer (hidden_layer.py) nearly always forecasts healthy moments better, and that alone does not make it find more: it is used only where it tells departures that are
written into the newest quarter clearly better from the rest of that quarter than the linear forecast does.
"""

from typing import NamedTuple

import msgspec
import numpy as np

from eagle_eye.types import Doubles

from .healthy_limit import limit_of
from .hidden_layer import HiddenLayer, checked_layer, trained
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
FEWEST = 60
VERSION = 2
"""Of what is stored: the first knew no hidden layer."""
CLEARLY = 1.05
"""Times the average precision of the linear forecast."""
WRITTEN, LASTING = 400, 5
"""Departures that are written; moments that each lasts."""
METRICS_OFF, SPREADS_OFF = (1, 3), (1.0, 5.0)
"""Of such a departure: how many metrics, and how many of their spreads, at least and at most."""


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
    """Of the scores."""
    version: int = 1
    hidden: HiddenLayer | None = None
    """What it adds to the forecast, in its errors; None: nothing."""


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


def fitted(names: tuple[str, ...], before: Doubles, now: Doubles, *, network: bool = False) -> MetricModel:
    """Samples × metrics of healthy moments, oldest first, and of the moment after each. Raises ValueError for fewer than `FEWEST`.

    The limit is that of a forecast from all but the newest, which those are compared with; the forecast itself is then fitted to all. network: also train one, and use it where it finds more.
    """
    if len(now) < FEWEST:
        raise ValueError(f"a forecast from {len(now)} samples would be worth nothing: collect at least {FEWEST}")
    known = int(len(now) * (1.0 - HELD_OUT))
    tried, model = _forecast(names, before[:known], now[:known]), _forecast(names, before, now)
    if network and _finds_more(other := _with_network(tried, before[:known], now[:known]), tried, before[known:], now[known:]):
        tried, model = other, _with_network(model, before, now)
    return msgspec.structs.replace(model, limit=limit_of(departures(tried, before[known:], now[known:]).scores))


def _with_network(model: MetricModel, before: Doubles, now: Doubles) -> MetricModel:
    """The same without a network where none can be trained."""
    hidden = trained(_standard(model, before), departures(model, before, now).unforeseen)
    return msgspec.structs.replace(model, hidden=hidden)


def _finds_more(network: MetricModel, linear: MetricModel, before: Doubles, now: Doubles) -> bool:
    """Whether it is clearly better at departures that are written into these healthy moments; drawn from a seed."""
    moving = np.flatnonzero((np.array(linear.spread) > 0.0) & (np.nanstd(np.where(np.isfinite(now), now, 0.0), axis=0) > 0.0))
    if network.hidden is None or len(now) < 2 * LASTING or not len(moving):
        return False
    rng, spread, cases = np.random.default_rng(0), np.array(linear.spread), []
    for begin in rng.integers(0, len(now) - LASTING, WRITTEN).tolist():
        metrics = rng.choice(moving, min(len(moving), int(rng.integers(METRICS_OFF[0], METRICS_OFF[1] + 1))), replace=False)
        off = rng.choice([-1.0, 1.0], len(metrics)) * rng.uniform(*SPREADS_OFF, len(metrics)) * spread[metrics]
        then, later = before[begin : begin + LASTING].copy(), now[begin : begin + LASTING].copy()
        later[:, metrics] += off
        then[1:, metrics] += off
        cases.append((then, later))
    struck = np.concatenate([then for then, _ in cases]), np.concatenate([later for _, later in cases])
    found = [_precision(departures(model, before, now).scores, departures(model, *struck).scores.reshape(-1, LASTING).mean(axis=1)) for model in (network, linear)]
    return found[0] > CLEARLY * found[1]


def _precision(healthy: Doubles, struck: Doubles) -> float:
    """Average precision: how far what was struck stands before what is healthy, by the mean of so many moments."""
    means = np.convolve(healthy, np.full(LASTING, 1.0 / LASTING), "valid")
    order = np.argsort(-np.concatenate([struck, means]), kind="stable")
    hit = order < len(struck)
    return float((np.cumsum(hit) / np.arange(1, len(hit) + 1))[hit].mean())


def _forecast(names: tuple[str, ...], before: Doubles, now: Doubles) -> MetricModel:
    """Without a limit."""
    some = np.isfinite(now).any(axis=0)
    read = np.where(np.isfinite(now), now, np.nan)[:, some]
    mean, spread = np.zeros(len(names)), np.zeros(len(names))
    mean[some] = np.nanmean(read, axis=0)
    spread[some] = np.maximum(np.nanstd(read, axis=0), LEAST_SPREAD * np.nanmax(np.abs(read), axis=0))
    spread[spread <= 0.0] = 1.0
    rough = MetricModel(names, mean.tolist(), spread.tolist(), [], [1.0] * len(names), 0.0, VERSION)
    x, y = _with_constant(_standard(rough, before)), _standard(rough, now)
    weights = np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ y)
    error = np.maximum(np.sqrt(((y - x @ weights) ** 2).mean(axis=0)), LEAST_ERROR)
    return msgspec.structs.replace(rough, weights=weights.tolist(), error=error.tolist())


def departures(model: MetricModel, before: Doubles, now: Doubles) -> Departures:
    """Samples × metrics, in the order of the model's names."""
    far = _standard(model, now)
    errors = (far - _with_constant(_standard(model, before)) @ np.array(model.weights)) / np.array(model.error)
    if model.hidden is not None:
        errors = errors - model.hidden.forecast(_standard(model, before))
    return Departures(np.where(np.isfinite(now), errors, 0.0), far)


def checked(model: MetricModel) -> MetricModel:
    """Raises ValueError for one that no learner of ours makes: a baseline comes over the stream."""
    count = len(model.names)
    if not 1 <= model.version <= VERSION:
        raise ValueError(f"it is of version {model.version}, and this release reads {VERSION}")
    sizes = {len(each) for each in (model.mean, model.spread, model.error)} | {len(row) for row in model.weights}
    if not count or sizes != {count} or len(model.weights) != count + 1:
        raise ValueError("its parts are of unequal sizes")
    if not all((np.abs(np.array(each)) < LARGEST).all() for each in (model.mean, model.spread, model.error, model.weights)):
        raise ValueError("its values are not those of a metric")
    if min(model.spread) <= 0.0 or min(model.error) <= 0.0 or not 0.0 <= model.limit < LARGEST:
        raise ValueError("its spreads, errors or limit are not above zero")
    if model.hidden is not None:
        checked_layer(model.hidden, count)
    return model


def _standard(model: MetricModel, values: Doubles) -> Doubles:
    """In spreads from the mean; 0.0 where nothing was read."""
    standard: Doubles = np.clip((values - np.array(model.mean)) / np.array(model.spread), -CLIPPED, CLIPPED)
    return np.where(np.isfinite(values), standard, 0.0)


def _with_constant(values: Doubles) -> Doubles:
    return np.hstack([values, np.ones((len(values), 1))])
