"""A sequential test of whether a worker is slower than it should be, whose power grows with the steps, with a stated rate of false alarms.

An observation z of a worker is the logarithm of its compute, less that of its peers (or of its own past). Healthy, z varies around something below
a margin m: workers differ a little and are not sick. For each slowness d of SLOWNESSES the worker has a likelihood ratio

    L = f((z - d) / s) / f((z - m) / s),        f = Student's t of 4 degrees of freedom (heavy tails: one outlier says little),

whose mean is 1 where z is centred at m, and less where it is centred below. With C = max(1, C) L, C being at most the sum of the products of the L
over all moments at which the slowness may have begun (Shiryaev and Roberts), it takes a healthy worker A observations on average until C reaches A
(Ville's inequality for e-detectors: Shin, Ramdas, Rinaldo, 2022). The mean of such C for several d has the same bound, so that each alone must reach A times their number.

Two things that break this in practice are provided for. Noise that lasts: L is raised to the power of (1 - r) / (1 + r), r being the correlation of
successive observations, which is what that many observations are worth if they follow one another so; a power below 1 keeps the mean below 1 (Jensen).
One observation counts for at most MOST nats, so that it takes several. The scale s is robust, and never smaller than that of the worker's own jitter.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eagle_eye.types import Doubles, Floats, Integers

from .peer_roles import median_of_role

SLOWNESSES = np.log([1.05, 1.10, 1.25, 1.6, 2.5])
FREEDOM = 4.0
MOST = 4.0
ENOUGH = 40.0
"""No C is above e to this power: it must be able to fall again when the worker recovers."""
MEMORY = 64
"""Observations over which noise is averaged."""
_MAD = 0.6745
"""Median absolute deviation / standard deviation of a normal distribution."""
_JITTER = 1.1284
"""Mean absolute difference of two independent observations / standard deviation."""
_FIRST_SCALE, _FIRST_WEIGHT = 0.05, 5.0
"""Noise that is assumed before any was seen, and for how many observations that counts."""
_UNCORRELATED = 20.0
"""As many observations without correlation are assumed before any was seen."""
_LEAST_SCALE = 0.003


@dataclass
class Noise:
    """Scale and correlation of the observations around each worker's own level; the medians over its peers, which one sick one does not move."""

    level: Floats
    """Of each worker: what it is used to, NaN before the first observation."""
    jitter: Floats
    """Mean difference of successive observations of each worker."""
    agreement: Floats
    """How often successive deviations of each worker are on the same side: 1 always, 0 every other time."""
    last: Floats
    side: Floats
    scale: Floats
    """Of each worker: that of its role."""
    count: int = 0

    @classmethod
    def of(cls, workers: int) -> "Noise":
        unknown, none = np.full(workers, np.nan, np.float32), np.zeros(workers, np.float32)
        return cls(unknown.copy(), none.copy(), none.copy(), unknown.copy(), none.copy(), np.full(workers, _FIRST_SCALE, np.float32))

    def scales(self) -> Doubles:
        """Of each worker."""
        weight = min(self.count, MEMORY)
        common = (_FIRST_SCALE * _FIRST_WEIGHT + self.scale * weight) / (_FIRST_WEIGHT + weight)
        scale: Doubles = np.maximum(np.maximum(common, self.jitter / _JITTER if self.count > 2 else 0.0), _LEAST_SCALE)
        return scale

    def worth(self, role: Integers) -> Doubles:
        """Of an observation of each worker, as a share of an independent one."""
        weight = self.count / (self.count + _UNCORRELATED)
        r = np.clip(np.sin(np.pi / 2.0 * median_of_role(self.agreement.astype(np.float64), role)) * weight, 0.0, 0.95)
        worth: Doubles = (1.0 - r) / (1.0 + r)
        return worth

    def update(self, z: Doubles, role: Integers) -> None:
        """Take an observation of each worker in; NaN of those that have none."""
        seen = np.isfinite(z)
        self.count += 1
        weight = max(1.0 / self.count, 1.0 / MEMORY)
        fresh = seen & np.isnan(self.level)
        self.level[fresh] = z[fresh]
        away = np.where(seen & ~fresh, z - self.level, 0.0)
        spread = median_of_role(np.where(seen & ~fresh, np.abs(away), np.nan), role) / _MAD
        known = np.isfinite(spread)
        self.scale[known] += max(1.0 / max(self.count - 1, 1), 1.0 / MEMORY) * (spread - self.scale)[known]
        bound = 3.0 * self.scale
        side, again = np.sign(away), seen & np.isfinite(self.last)
        jitter = np.minimum(np.abs(z - self.last), 2.0 * bound)
        self.jitter[again] += weight * (jitter - self.jitter)[again]
        self.agreement[again] += weight * (side * self.side - self.agreement)[again]
        self.level += weight * np.clip(away, -bound, bound)
        self.last[seen], self.side[seen] = z[seen], side[seen]


@dataclass
class SlownessTest:
    """The test of some workers: call `update` with each observation."""

    noise: Noise
    evidence: Floats
    """SLOWNESSES × workers: ln C."""
    since: Floats
    """SLOWNESSES × workers: seconds after `began` at which each C was last no more than 1."""
    steps: NDArray[np.int32]
    """SLOWNESSES × workers: observations since then."""
    began: float = math.nan
    """Time of the first observation."""

    @classmethod
    def of(cls, workers: int) -> "SlownessTest":
        shape = (len(SLOWNESSES), workers)
        return cls(Noise.of(workers), np.zeros(shape, np.float32), np.zeros(shape, np.float32), np.zeros(shape, np.int32))

    def update(self, z: Doubles, margin: Doubles, role: Integers, begin: float) -> None:
        """`begin`: when these observations began. `margin`: so much slower may each worker be."""
        if math.isnan(self.began):
            self.began = begin
        scale, worth = self.noise.scales(), self.noise.worth(role)
        seen = np.isfinite(z)
        slowness = SLOWNESSES[:, None]
        gain = worth * (_log_density((z - slowness) / scale) - _log_density((z - margin) / scale))
        gain = np.where(slowness > margin, np.clip(gain, -MOST, MOST), -MOST)
        fresh = (self.evidence <= 0.0) & seen
        self.since = np.where(fresh, np.float32(begin - self.began), self.since)
        self.steps = np.where(fresh, np.int32(0), self.steps) + seen.astype(np.int32)
        self.evidence = np.where(seen, np.minimum(np.maximum(self.evidence, 0.0) + np.nan_to_num(gain), ENOUGH), self.evidence).astype(np.float32)
        self.noise.update(z, role)

    def strongest(self) -> tuple[Floats, Doubles, NDArray[np.int32]]:
        """Of each worker: ln C of the slowness that is borne out best less the number of slownesses, since when, over how many observations."""
        best = self.evidence.argmax(axis=0)
        at = np.arange(self.evidence.shape[1])
        return self.evidence[best, at] - math.log(len(SLOWNESSES)), self.began + self.since[best, at].astype(np.float64), self.steps[best, at]

    def is_over(self, which: int, index: int) -> bool:
        """Whether the C of that slowness of a worker, which was high, is down at 1."""
        return bool(self.evidence[which, index] <= 0.0)

    def forget(self, index: int) -> None:
        """What spoke against a worker."""
        self.evidence[:, index] = 0.0


def _log_density(t: Doubles) -> Doubles:
    """Of Student's t, but for a constant."""
    density: Doubles = -(FREEDOM + 1.0) / 2.0 * np.log1p(t * t / FREEDOM)
    return density
