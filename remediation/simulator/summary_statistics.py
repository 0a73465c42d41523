"""Summary statistics of many runs: means over seeds with confidence intervals, ratios of policies on the same seeds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .simulation import SimulationResult
from .time_accounting import TimeCategory

RESAMPLES = 2000
"""Of the bootstrap."""
SEED = 0


class ConfidenceInterval(NamedTuple):
    """A mean and its 95 % confidence interval (bootstrap over seeds)."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


class PolicySummary(NamedTuple):
    """One policy on one trace."""

    policy: str
    trace: str
    seeds: int
    waf: ConfidenceInterval
    """Mean weighted FLOP/s."""
    time_shares: dict[str, float]
    events: int
    allocations_asked: int
    allocations_solved: int


def confidence_interval(values: Sequence[float]) -> ConfidenceInterval:
    """Of the mean; a single value has no width."""
    data = np.asarray(values, dtype=np.float64)
    if len(data) == 1:
        return ConfidenceInterval(float(data[0]), float(data[0]), float(data[0]))
    drawn = np.random.default_rng(SEED).integers(len(data), size=(RESAMPLES, len(data)))
    low, high = np.quantile(data[drawn].mean(axis=1), (0.025, 0.975))
    return ConfidenceInterval(float(data.mean()), float(low), float(high))


def summarize(results: Sequence[SimulationResult]) -> PolicySummary:
    """Of the seeds of one policy and trace."""
    shares = {category.label: float(np.mean([result.time_shares[category.label] for result in results])) for category in TimeCategory}
    return PolicySummary(
        policy=results[0].policy, trace=results[0].trace, seeds=len(results), waf=confidence_interval([result.mean_waf for result in results]), time_shares=shares,
        events=sum(result.events for result in results), allocations_asked=sum(result.allocations_asked for result in results),
        allocations_solved=sum(result.allocations_solved for result in results),
    )  # fmt: skip
