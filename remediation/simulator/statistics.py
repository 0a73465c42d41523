"""Many runs in few figures: means over seeds with intervals, and how policies compare on the same seeds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .simulation import Result
from .time_accounting import Account

RESAMPLES = 2000
"""Of the bootstrap."""
SEED = 0


class Interval(NamedTuple):
    """A mean and where it lies with 95 % confidence (bootstrap over seeds)."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Summary(NamedTuple):
    """One policy on one trace."""

    policy: str
    trace: str
    seeds: int
    waf: Interval
    """Mean weighted FLOP/s."""
    books: dict[str, float]
    events: int
    plans_asked: int
    plans_solved: int


def interval(values: Sequence[float]) -> Interval:
    """Of the mean; a single value has no width."""
    data = np.asarray(values, dtype=np.float64)
    if len(data) == 1:
        return Interval(float(data[0]), float(data[0]), float(data[0]))
    drawn = np.random.default_rng(SEED).integers(len(data), size=(RESAMPLES, len(data)))
    low, high = np.quantile(data[drawn].mean(axis=1), (0.025, 0.975))
    return Interval(float(data.mean()), float(low), float(high))


def ratio(ours: Sequence[Result], theirs: Sequence[Result]) -> Interval:
    """Accumulated WAF of the one over the other, seed by seed."""
    return interval([one.waf_s / other.waf_s if other.waf_s else np.inf for one, other in zip(ours, theirs, strict=True)])


def summarise(results: Sequence[Result]) -> Summary:
    """Of the seeds of one policy and trace."""
    books = {account.word: float(np.mean([result.books[account.word] for result in results])) for account in Account}
    return Summary(
        policy=results[0].policy, trace=results[0].trace, seeds=len(results), waf=interval([result.mean_waf for result in results]), books=books,
        events=sum(result.events for result in results), plans_asked=sum(result.plans_asked for result in results),
        plans_solved=sum(result.plans_solved for result in results),
    )  # fmt: skip
