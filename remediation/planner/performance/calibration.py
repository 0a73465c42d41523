"""Fits the performance model to what was measured: robust least squares with what the data sheet lets one expect.

Minimised over z, the coefficients' logarithms in standard deviations (coefficients.UNCERTAINTY) from what is expected:

    mean over measurements of huber(log predicted - log measured) + (WEIGHT · |z|)²

Gauss-Newton with a numerical Jacobian and reweighted residuals. With few measurements the expectation holds what they
say nothing about; with none the answer is the expectation itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eagle_eye.errors import ConfigError

from .coefficients import UNCERTAINTY, Coefficients
from .hardware import Hardware
from .iteration_model import iteration_times
from .parallel_layout import ParallelLayout, ParallelLayouts
from .training_run import TrainingRun

Floats = NDArray[np.float64]
Residuals = Callable[[Floats], Floats]
HUBER = 0.08
"""A residual beyond 8 % counts linearly: single bad runs do not bend the model."""
WEIGHT = 0.02
FURTHEST = 3.0
"""Standard deviations that a coefficient may go."""
STEPS = 60
SMALL = 1e-4


@dataclass(frozen=True, slots=True)
class MeasuredIteration:
    """One measured iteration."""

    run: TrainingRun
    layout: ParallelLayout
    seconds: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result, and how well it fits."""

    coefficients: Coefficients
    error: float
    """Mean absolute relative error on the measurements themselves; NaN without any."""
    measurements: int


def calibrate(hardware: Hardware, measured: Sequence[MeasuredIteration]) -> Calibration:
    """Raises ConfigError for a time that is not above zero."""
    expected = Coefficients.expected(hardware)
    if not measured:
        return Calibration(expected, float("nan"), 0)
    bad = next((one for one in measured if not one.seconds > 0), None)
    if bad is not None:
        raise ConfigError(f"the measured iteration of {bad.layout} took {bad.seconds} s; leave out what was not measured")
    start = expected.values()

    def residuals(z: Floats) -> Floats:
        return _errors(hardware, Coefficients.of(start * np.exp(z * UNCERTAINTY)), measured)

    coefficients = Coefficients.of(start * np.exp(_minimum(residuals, len(start)) * UNCERTAINTY))
    error = float(np.abs(np.expm1(_errors(hardware, coefficients, measured))).mean())
    return Calibration(coefficients, error, len(measured))


def predict(hardware: Hardware, coefficients: Coefficients, measured: Sequence[MeasuredIteration]) -> Floats:
    """(measurements,) seconds that the model says."""
    seconds = np.empty(len(measured))
    for run, indices in _by_run(measured):
        layouts = ParallelLayouts.of(measured[index].layout for index in indices)
        seconds[indices] = iteration_times(run, hardware, coefficients, layouts).total
    return seconds


def _errors(hardware: Hardware, coefficients: Coefficients, measured: Sequence[MeasuredIteration]) -> Floats:
    actual = np.array([one.seconds for one in measured])
    return np.asarray(np.log(predict(hardware, coefficients, measured) / actual))


def _by_run(measured: Sequence[MeasuredIteration]) -> Iterator[tuple[TrainingRun, list[int]]]:
    groups: dict[TrainingRun, list[int]] = {}
    for index, one in enumerate(measured):
        groups.setdefault(one.run, []).append(index)
    yield from groups.items()


def _minimum(residuals: Residuals, size: int) -> Floats:
    z = np.zeros(size)
    for _ in range(STEPS):
        now = residuals(z)
        weights = 1 / np.maximum(1.0, np.abs(now) / HUBER)
        slopes = np.stack([(residuals(z + SMALL * unit) - now) / SMALL for unit in np.eye(size)], axis=1)
        curvature = (slopes.T * weights) @ slopes / len(now) + WEIGHT**2 * np.eye(size)
        gradient = (slopes.T * weights) @ now / len(now) + WEIGHT**2 * z
        step = np.linalg.solve(curvature, gradient)
        z = np.clip(z - 0.7 * step, -FURTHEST, FURTHEST)
        if float(np.abs(step).max()) < SMALL:
            break
    return z
