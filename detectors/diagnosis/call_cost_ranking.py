"""Which of many elements that call one another a slowness or failures come from: a ranking of suspects, worst first.

What an element loses is how much worse each of its calls went than usual, times its calls: seconds, or failed calls. So one that is a little slow for everybody counts
more than one that is very slow for hardly anybody. Who waits for another element loses what that one loses, too: what is left of its loss beyond the losses of all that it
needs is its own, as the self time of a profiler, and ranks it. It is the narrowest element that explains what those that need it lose.

*Usual* is the worse of two: the median of healthy times and `TOLERATED` robust deviations beside it, and the median of the moments before. What was so before is no cause of
what came now, and what happens in healthy times is none either.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from detectors.features.robust_deviation import NORMAL_MAD
from eagle_eye.types import Doubles

TOLERATED = 3.0
"""Robust deviations of healthy times that are nothing unusual."""
FEWEST = 20
"""Healthy values of which a median and a deviation say something."""


class CallCosts(NamedTuple):
    """What is known of one element; NaN where nothing was measured. A larger cost is worse: seconds of a call, share of calls that failed."""

    costs: Doubles
    """Of a call, in each moment since the fault."""
    calls: Doubles
    """In the same moments."""
    before: Doubles
    """Costs of a call right before the fault."""
    healthy: Doubles
    """Costs of a call in healthy times; none = not known."""


class Suspect(NamedTuple):
    """One element of a ranking."""

    name: str
    own: float
    """What it loses by itself."""
    loss: float
    """The same with what it loses by those that it needs."""


def loss_of(element: CallCosts) -> float:
    """What it loses in all: 0.0 while it is as usual, NaN where nobody knows what is usual or what it does now."""
    usual = max((each for each in (_ordinary(element.healthy), _median(element.before)) if np.isfinite(each)), default=np.nan)
    beyond = (element.costs - usual) * element.calls
    read = np.isfinite(beyond)
    return max(0.0, float(beyond[read].sum())) if read.any() else np.nan


def ranking(losses: Mapping[str, float], needs: Mapping[str, Collection[str]], target: str) -> Sequence[Suspect]:
    """Who of all that `target` needs, and itself, loses most by itself. `needs`: element → whom it calls. Of equal ones the name decides."""
    known = {name: loss for name in _needed(needs, target) if np.isfinite(loss := losses.get(name, np.nan))}
    suspects = [Suspect(name, max(0.0, loss - sum(known.get(other, 0.0) for other in set(needs.get(name, ())) - {name})), loss) for name, loss in known.items()]
    return sorted(suspects, key=lambda each: (-each.own, -each.loss, each.name))


def _needed(needs: Mapping[str, Collection[str]], target: str) -> set[str]:
    """It, and all that it calls, and that these call."""
    found, new = {target}, [target]
    while new:
        further = set(needs.get(new.pop(), ())) - found
        found |= further
        new += further
    return found


def _ordinary(healthy: Doubles) -> float:
    """The most that is nothing unusual; NaN of too few values."""
    read = healthy[np.isfinite(healthy)]
    if len(read) < FEWEST:
        return np.nan
    middle = float(np.median(read))
    return middle + TOLERATED * NORMAL_MAD * float(np.median(np.abs(read - middle)))


def _median(values: Doubles) -> float:
    read = values[np.isfinite(values)]
    return float(np.median(read)) if len(read) else np.nan
