"""A job's throughput in spans of about a second, and the steady level that it had: what a loss is measured against.

Single steps say little: a CPU quota lets most short steps pass at full speed and stops every tenth one, and an evaluation
makes one step as long as a hundred. A span holds as many steps as fill a second, one at least.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eagle_eye.types import Floats, Step

from .robust_deviation import NORMAL_MAD
from .step_time import phases, zero_if_unknown

LEAST_NOISE = 0.02
"""No job is steadier than that."""
WORK_VARIES = 0.1
"""A step with so much more or less work than any before is of another kind: another batch size or sequence length."""
NOBODY = -1
ALONE = 0.5
"""Of what one worker spends, the others spend less than this share each: it is that worker's alone."""
MOSTLY = 0.75
"""Of the steps, or spans, in which it has to be the same worker."""
_SPENT = ("evaluation_s", "checkpoint_s", "forward_s", "backward_s", "optimizer_s", "communication_s", "data_s")
"""Two pauses, which are no loss of throughput (waiting for data is one, if it goes on); what computes; and both waits."""


class StepCost(NamedTuple):
    """One step of the whole job."""

    end: float
    seconds: float
    """Without pauses."""
    tokens: float
    """Of all workers; NaN if they do not log them."""
    compute_s: float
    """Of the worker that computes longest, less its garbage collection; 0 if the script marks no phases."""
    communication_s: float
    """That all workers spend in it: one that is waited for is not in it."""
    data_s: float
    """Of the worker that waits longest for its data."""
    garbage_s: float
    """Of the worker whose garbage collection takes longest."""
    data_of: int
    """Place of the only worker that waits so long for its data; NOBODY: others do, too."""
    garbage_of: int
    """The same of garbage collection."""


class Span(NamedTuple):
    """Steps of about a second, as their mean."""

    end: float
    seconds: float
    steps: int
    tokens: float
    """Per step; NaN if one of them did not log them."""
    compute_s: float
    communication_s: float
    data_s: float
    garbage_s: float
    data_of: int
    garbage_of: int

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps

    def rate(self, *, tokens: bool) -> float:
        """Tokens or steps per second."""
        return (self.tokens if tokens else 1.0) / max(self.step_s, 1e-9)


class Level(NamedTuple):
    """A job's steady throughput, and what its steps looked like."""

    rate: float
    noise: float
    """Robust standard deviation of a span's rate, as a share of the rate."""
    tokens: tuple[float, float]
    """Least and most of a step; NaN if they are not logged."""
    step: "TypicalStep"

    def is_other_work(self, spans: Sequence[Span]) -> bool:
        """These steps have another amount of work than those of the level."""
        least, most = self.tokens
        usual = float(np.median([span.tokens for span in spans]))
        return usual < least * (1.0 - WORK_VARIES) or usual > most * (1.0 + WORK_VARIES)

    def share(self, spans: Sequence[Span]) -> float:
        """Of this throughput, that these spans have: their median."""
        return float(np.median(self.shares(spans)))

    def shares(self, spans: Sequence[Span]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """The same for each of them."""
        by_tokens = bool(np.isfinite(self.tokens[0]))
        return np.array([span.rate(tokens=by_tokens) for span in spans]) / max(self.rate, 1e-9)


def cost_of(step: Step) -> StepCost | None:
    """None if no worker reported the step."""
    reported = step.values.get("step_s")
    if reported is None or not np.isfinite(reported).any():
        return None
    spent = phases(step, _SPENT)
    paused, computed, (communication, data) = spent[:2].sum(axis=0), spent[2:5].sum(axis=0), spent[5:]
    garbage = zero_if_unknown(step.values["garbage_collection_s"]) if "garbage_collection_s" in step.values else np.zeros(len(reported), np.float32)
    tokens = step.values.get("tokens")
    return StepCost(
        end=step.end,
        seconds=max(float(np.fmin.reduce(reported - paused)), 0.0),  # while one worker pauses the others wait for it
        tokens=float(np.nansum(tokens)) if tokens is not None and np.isfinite(tokens).any() else float("nan"),
        compute_s=float(np.fmax.reduce(np.maximum(computed - garbage, 0.0))),
        communication_s=float(np.fmin.reduce(communication)),
        data_s=float(np.fmax.reduce(data)),
        garbage_s=float(garbage.max(initial=0.0)),
        data_of=_alone(zero_if_unknown(data)),
        garbage_of=_alone(garbage),
    )


def _alone(seconds: Floats) -> int:
    """Place of the worker that spends far more than each of the others; NOBODY."""
    if len(seconds) < 2:
        return NOBODY
    next_most, most = np.partition(seconds, -2)[-2:].tolist()
    return int(seconds.argmax()) if next_most < ALONE * most else NOBODY


def _mostly(places: Sequence[int]) -> int:
    """The one that most of these are; NOBODY."""
    place, count = Counter(places).most_common(1)[0]
    return place if count >= MOSTLY * len(places) else NOBODY


_MEASURED = StepCost._fields.index("data_of")


def span_of(costs: Sequence[StepCost]) -> Span:
    """The steps as one span."""
    table = np.array([cost[:_MEASURED] for cost in costs], dtype=np.float64)
    _, seconds, tokens, compute_s, communication_s, data_s, garbage_s = table.mean(axis=0).tolist()
    return Span(
        costs[-1].end, seconds * len(costs), len(costs), tokens, compute_s, communication_s, data_s, garbage_s,
        data_of=_mostly([cost.data_of for cost in costs]), garbage_of=_mostly([cost.garbage_of for cost in costs]),
    )  # fmt: skip


def level_of(spans: Sequence[Span]) -> Level:
    """The level of some spans: medians, which a few pauses among them do not move."""
    tokens = np.array([span.tokens for span in spans])
    logged = bool(np.isfinite(tokens).all())
    rates = np.array([span.rate(tokens=logged) for span in spans])
    rate = float(np.median(rates))
    spread = NORMAL_MAD * float(np.median(np.abs(rates - rate)))
    return Level(
        rate=rate,
        noise=max(LEAST_NOISE, spread / max(rate, 1e-9)),
        tokens=(float(tokens.min()), float(tokens.max())) if logged else (float("nan"), float("nan")),
        step=typical(spans),
    )


class TypicalStep(NamedTuple):
    """Medians over spans."""

    step_s: float
    compute_s: float
    communication_s: float
    data_s: float
    garbage_s: float
    data_of: int
    """The worker that is mostly the only one to wait for its data; NOBODY."""
    garbage_of: int


def typical(spans: Sequence[Span]) -> TypicalStep:
    """How long the steps of some spans are, and what they spend their time with."""
    rows = [(span.step_s, span.compute_s, span.communication_s, span.data_s, span.garbage_s) for span in spans]
    step_s, compute_s, communication_s, data_s, garbage_s = np.median(np.array(rows), axis=0).tolist()
    return TypicalStep(
        step_s, compute_s, communication_s, data_s, garbage_s,
        data_of=_mostly([span.data_of for span in spans]), garbage_of=_mostly([span.garbage_of for span in spans]),
    )  # fmt: skip
