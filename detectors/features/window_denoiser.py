"""How far a machine keeps apart from its peers once the noise is taken off: a denoising autoencoder over windows of readings, trained on the job's own healthy hours.

Z. Deng et al., "Minder: Faulty Machine Detection for Large-scale Distributed Model Training", NSDI 2025, denoise windows of each metric before machines are compared. A window holds the
newest readings of one machine, each beside the median of its peers and its own level (peer_levels.py), in deviations of what all show in one moment; one network serves all metrics.
The noise is that of the job itself: steps are written into its healthy windows, and the network tells the steps. (A plain autoencoder of healthy windows takes the steps off with the noise.)

A network that was trained well need not find more. What counts is the least of its newest values, as of the readings themselves; its limit is the one that healthy windows, which it has not
seen, are above no more often than they are by the readings alone; and it is used of a metric only where it then finds clearly more of written steps.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from eagle_eye.types import Doubles, Floats

from .hidden_layer import HiddenLayer, checked_layer, trained
from .node_metrics import LARGEST

VERSION = 1
LENGTH = 16
"""Readings of a window."""
JUDGED = 4
"""Of them, the newest, which must all be to one side."""
UNITS = 8
LOUDEST = 3.0
"""Deviations: a window with a larger reading is made so small, and what comes of it large again."""
HELD_OUT = 0.25
FEWEST, MOST = 400, 20_000
"""Windows of a metric that are enough, and of all metrics that are trained on."""
WRITTEN, LOWEST, HIGHEST = 0.6, 0.5, 8.0
"""Share of the windows that are trained on with a step in them, and how many deviations that has."""
STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
"""Deviations of the steps that it is tried with, to both sides."""
LASTING = (4, 8)
"""Readings since the step."""
MARGIN = 1.25
"""Times what healthy windows reach: those of one machine that follow one another are alike, and tell less than their number says."""
CLEARLY = 1.05
"""Times what the readings alone find."""


class WindowDenoiser(msgspec.Struct, frozen=True):
    """As it is stored, in msgpack."""

    version: int
    layer: HiddenLayer | None
    """None: it was of no use, or torch is not there."""
    limits: dict[str, float]
    """Kind/metric → deviations by which its windows must keep apart. Without those of which the readings alone find as much."""


def denoised(layer: HiddenLayer, windows: Doubles) -> Doubles:
    """Windows × readings, in deviations."""
    loud = _loudness(windows)
    calm: Doubles = layer.forecast(windows / loud) * loud
    return calm


def _loudness(windows: Doubles) -> Doubles:
    loud: Doubles = np.maximum(np.abs(windows).max(axis=1, keepdims=True) / LOUDEST, 1.0)
    return loud


def one_sided(windows: Doubles) -> Doubles:
    """Of each: the least of its newest readings, with their sign; 0.0 where they are on both sides."""
    low, high = windows[:, -JUDGED:].min(axis=1), windows[:, -JUDGED:].max(axis=1)
    return np.where(low > 0.0, low, np.where(high < 0.0, high, 0.0))


def learned(windows: Mapping[str, Doubles], alone: float) -> WindowDenoiser:
    """Kind/metric → healthy windows, oldest first. alone: deviations by which the readings alone must keep apart. Of too few windows nothing is learned."""
    many = {name: rows for name, rows in windows.items() if len(rows) >= FEWEST}
    if not many:
        return WindowDenoiser(VERSION, None, {})
    layer = _trained(np.concatenate([rows[: _cut(rows)] for rows in many.values()]))
    limits = {} if layer is None else {name: limit for name, rows in many.items() if (limit := _limit(layer, rows[_cut(rows) :], alone)) is not None}
    return WindowDenoiser(VERSION, layer if limits else None, limits)


def _cut(rows: Doubles) -> int:
    return int(len(rows) * (1.0 - HELD_OUT))


def _trained(known: Doubles) -> HiddenLayer | None:
    rng = np.random.default_rng(0)
    chosen = known[rng.permutation(len(known))[:MOST]]
    count = len(chosen)
    size = rng.choice([-1.0, 1.0], count) * rng.uniform(LOWEST, HIGHEST, count) * (rng.random(count) < WRITTEN)
    steps = size[:, None] * (np.arange(LENGTH) >= rng.integers(2, LENGTH - 1, count)[:, None])
    loud = _loudness(chosen + steps)
    return trained((chosen + steps) / loud, steps / loud, UNITS)


def _limit(layer: HiddenLayer, unseen: Doubles, alone: float) -> float | None:
    """None where it does not find clearly more than the readings alone, at the same rate of healthy windows."""
    healthy = np.sort(np.abs(one_sided(denoised(layer, unseen))))
    above = int(np.count_nonzero(np.abs(one_sided(unseen)) > alone))
    limit = MARGIN * max(float(healthy[len(healthy) - 1 - above]), LOWEST)
    found = found_alone = 0.0
    for step in (side * size for size in STEPS for side in (1.0, -1.0)):
        for lasting in LASTING:
            struck = unseen.copy()
            struck[:, -lasting:] += step
            found += float((np.sign(step) * one_sided(denoised(layer, struck)) > limit).mean())
            found_alone += float((np.sign(step) * one_sided(struck) > alone).mean())
    return limit if found > CLEARLY * found_alone else None


def denoiser_of(data: bytes) -> WindowDenoiser:
    """What a baseline holds. Raises what msgspec does, and ValueError for what no learner of this release writes."""
    stored = msgspec.msgpack.decode(data, type=WindowDenoiser)
    if stored.version != VERSION:
        raise ValueError(f"it is of version {stored.version}, and this release reads {VERSION}")
    if stored.layer is not None:
        checked_layer(stored.layer, LENGTH)
    if not all(0.0 < limit < LARGEST for limit in stored.limits.values()):
        raise ValueError("its limits are not above zero")
    return stored


def windows_of(names: tuple[str, ...], matrix: Floats) -> dict[str, Doubles]:
    """Samples, as the learner of `peer_metrics` takes them: a column for each metric, 1 where the window is of it, and behind them the windows."""
    labels = names[:-LENGTH]
    return {label: matrix[matrix[:, place] == 1.0][:, -LENGTH:].astype(np.float64) for place, label in enumerate(labels)}
