"""How often to save: the interval at which saving costs as much as the work that failures make one do again.

With C the seconds that a save stops the training, M the mean time between failures of the whole job, R the seconds of a
restart, a running time is lengthened by  C / tau + (tau / 2 + R) / M  for each second. Least at

    Young (1974)        tau = sqrt(2·C·M)
    Daly (2006), eq. 37 tau = sqrt(2·C·M) · [1 + sqrt(C / (2·M)) / 3 + (C / (2·M)) / 9] - C   for C < 2·M, else M

Daly's is the better one where saving is not short beside M. Young, "A first order approximation to the optimum
checkpoint interval", CACM 17(9); Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
Future Generation Computer Systems 22(3).
"""

import math
from dataclasses import dataclass

from eagle_eye.errors import ConfigError


@dataclass(frozen=True, slots=True)
class IntervalAdvice:
    """When to save."""

    interval_s: float
    """Daly's, between the ends of two saves."""
    young_s: float
    mtbf_s: float
    """Of the whole job, from what was observed."""
    overhead: float
    """Share of the time that saves, repeated work and restarts take at this interval."""
    observed: str
    """How sure the failure rate is."""


def young(save_s: float, mtbf_s: float) -> float:
    """Seconds."""
    return math.sqrt(2 * save_s * mtbf_s)


def daly(save_s: float, mtbf_s: float) -> float:
    """Seconds."""
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2 * mtbf_s)
    return young(save_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def overhead(interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Seconds lost per second, by the formula above."""
    return save_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s


def advise_interval(save_s: float, failures: int, observed_s: float, restart_s: float = 0.0) -> IntervalAdvice:
    """From failures counted over a time of running. None at all: as if the next one came now, the rate is no higher.

    Raises ConfigError for a time that is not above zero.
    """
    for name, value in (("save_s", save_s), ("observed_s", observed_s)):
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"checkpoint interval: {name} is {value}; it must be a number of seconds above zero")
    if failures < 0 or restart_s < 0:
        raise ConfigError(f"checkpoint interval: {failures} failures and {restart_s} s of restart; neither is negative")
    mtbf = observed_s / max(1, failures)
    spread = f"{failures} failures in {observed_s / 3600:,.1f} h" + (f", the rate is known to about ±{1 / math.sqrt(failures):.0%}" if failures else ": no failure yet, the rate is at most this")
    interval = daly(save_s, mtbf)
    return IntervalAdvice(interval, young(save_s, mtbf), mtbf, overhead(interval, save_s, mtbf, restart_s), spread)
