"""One metric of all GPUs, or all nodes, of a job: how far each is from the median of all, beside how far it used to be; and whose readings do not change any more.

Z. Deng et al., "Minder: Faulty Machine Detection for Large-scale Distributed Model Training", NSDI 2025: in a synchronous job healthy machines show the same, and a faulty one keeps
apart from them for a while. An observation is the logarithm of a reading less that of the median of all in the same moment, less the level that this machine had until then: GPUs of
another pipeline stage, or on a warmer rack, are compared with how they always were. Of the newest `READINGS` observations the smallest counts, and all must be to one side: what swings
with the phase of a step, or is read a moment late, is on both.

Compared is only while the job is at work, as told by its own median: in an evaluation, a save or a start machines do different things.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from eagle_eye.types import Doubles, Floats, Integers

from .hidden_layer import HiddenLayer
from .robust_deviation import NORMAL_MAD
from .window_denoiser import LENGTH, denoised, one_sided

READINGS = 4
"""In succession that must be to one side."""
EQUAL = 6
"""In succession that must be the same, while those of nearly all others change."""
LEARNED = 20
"""Readings at work from which a level is believed."""
MEMORY = 60
"""Readings that make a level."""
AT_WORK = 0.8
"""Share of the highest median of late."""
FORGOTTEN = 1.0 / 3600.0
"""Of that highest median, at each reading: a job that does less for good is compared again after a quarter of an hour."""
HARDER = 1.2
"""A median so many times the highest of late is other work than before: levels begin anew."""
CHANGING = 0.75
"""Share of the others whose readings must change, so that one that does not is odd."""
LOWEST = 0.01
"""Share of the median: a reading below counts as this."""
LEAST_NOISE = 1e-6
BACK = 0.5
"""Share of a limit below which something is like the others again."""
CANDIDATE = 0.25
"""Share of a denoiser's limit by which the mean of the newest must be off, so that the window is worth its time."""
_NOISE_MEMORY = 30


@dataclass
class PeerLevels:
    """State of one metric; columns are entities, and move with them."""

    level: Doubles = field(default_factory=lambda: np.zeros(0))
    """Of each, the logarithm of what it usually is beside the median."""
    learned: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Readings that its level is made of."""
    newest: Doubles = field(default_factory=lambda: np.zeros((READINGS, 0)))
    """Its newest observations, before its level is taken off; NaN before there are so many."""
    recent: Floats = field(default_factory=lambda: np.zeros((LENGTH, 0), np.float32))
    """The same of a longer while, for a denoiser: the oldest is overwritten by the next."""
    row: int = 0
    """Of `recent`, that is overwritten next."""
    smooth: Doubles = field(default_factory=lambda: np.zeros(0))
    """Of each, how far it keeps apart by the denoiser; 0.0 where that is little."""
    smooth_limit: float = math.inf
    """So far it must be."""
    last: Doubles = field(default_factory=lambda: np.zeros(0))
    equal: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Newest readings of it that are the same."""
    since: Doubles = field(default_factory=lambda: np.zeros(0))
    """Since when it keeps apart; NaN: it does not."""
    deviations: deque[float] = field(default_factory=lambda: deque(maxlen=_NOISE_MEMORY))
    """Robust deviation of what all showed in each of the newest moments."""
    highest: float = 0.0
    times: deque[float] = field(default_factory=lambda: deque(maxlen=EQUAL))
    """Of the newest readings."""
    medians: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    at_work: bool = False

    @property
    def noise(self) -> float:
        """Robust deviation of what all show in one moment, of late."""
        return statistics.median(self.deviations) if self.deviations else 0.0

    def move(self, moved: Integers) -> None:
        """`moved`: for each present column the one of before, −1 = new."""
        known = moved >= 0
        self.level = np.where(known, self.level[moved], 0.0) if len(self.level) else np.zeros(len(moved))
        self.learned = np.where(known, self.learned[moved], 0) if len(self.learned) else np.zeros(len(moved), np.int64)
        self.newest = np.where(known, self.newest[:, moved], np.nan) if self.newest.shape[1] else np.full((READINGS, len(moved)), np.nan)
        self.recent = np.where(known, self.recent[:, moved], np.nan).astype(np.float32) if self.recent.shape[1] else np.full((LENGTH, len(moved)), np.nan, np.float32)
        self.smooth = np.where(known, self.smooth[moved], 0.0) if len(self.smooth) else np.zeros(len(moved))
        self.last = np.where(known, self.last[moved], np.nan) if len(self.last) else np.full(len(moved), np.nan)
        self.equal = np.where(known, self.equal[moved], 0) if len(self.equal) else np.zeros(len(moved), np.int64)
        self.since = np.where(known, self.since[moved], np.nan) if len(self.since) else np.full(len(moved), np.nan)

    def update(self, values: Floats, time: float, least: int) -> bool:
        """Take the readings of a moment; False where nothing is compared: too few were read, or the job is not at work."""
        read = np.isfinite(values)
        if np.count_nonzero(read) < least:
            return False
        now = values.astype(np.float64)
        median = float(np.median(now[read]))
        self._count_equal(now, read)
        self.times.append(time)
        self.medians.append(median)
        if not self._works() or median <= 0.0:
            self.at_work = False
            return False
        self.at_work = True
        self._learn(read)
        seen = np.log(np.maximum(now, LOWEST * median) / median)
        self.newest[:-1, read] = self.newest[1:, read]
        self.newest[-1, read] = seen[read]
        self.recent[self.row] = np.where(read, seen, np.nan)
        self.row = (self.row + 1) % LENGTH
        off = np.abs(seen - self.level)[read & (self.learned >= LEARNED)]
        if len(off):
            self.deviations.append(NORMAL_MAD * float(np.median(off)))
        return True

    def keep_apart(self, limit: float, seconds: float) -> tuple[Doubles, Integers]:
        """Of each, how far it keeps apart, and the columns that have been doing so by `limit` or more, or by the denoiser, for so long. Once for each `update`."""
        apart = self.apart()
        by_readings, by_denoiser = np.abs(apart) >= limit, np.abs(self.smooth) >= self.smooth_limit
        far = by_readings | by_denoiser
        apart = np.where(by_denoiser & ~by_readings, self.smooth, apart)
        first = self.times[max(0, len(self.times) - READINGS)]
        first_seen = np.where(by_readings, first, self.times[-1])  # the denoiser may be quick: what it shows must last by itself
        self.since = np.where(far, np.fmin(self.since, first_seen), np.nan)
        return apart, np.flatnonzero(far & (self.times[-1] - self.since >= seconds))

    def apart(self) -> Doubles:
        """Of each: the smallest of its newest observations, with their sign; 0.0 where they are on both sides, or its level is not known."""
        beside = self.newest - self.level
        low, high = beside.min(axis=0), beside.max(axis=0)
        one_sided: Doubles = np.where(low > 0.0, low, np.where(high < 0.0, high, 0.0))
        return np.where(self.learned >= LEARNED, one_sided, 0.0)

    def windows(self, columns: Integers) -> Doubles:
        """Columns × readings, oldest first, each beside its level and in deviations of what all show in one moment; NaN where one is missing."""
        order = np.arange(self.row, self.row + LENGTH) % LENGTH
        windows: Doubles = (self.recent[order][:, columns].astype(np.float64) - self.level[columns]).T / max(self.noise, LEAST_NOISE)
        return windows

    def denoise(self, layer: HiddenLayer | None, deviations: float, told: float) -> None:
        """Which keep apart by what the denoiser makes of their windows: by `told` (a logarithm) and so many deviations. Only those are looked at that could."""
        self.smooth[:] = 0.0
        self.smooth_limit = limit = max(told, deviations * self.noise)
        if layer is None:
            return
        with np.errstate(invalid="ignore"):
            columns = np.flatnonzero((self.learned >= LEARNED) & (np.abs(self.newest.mean(axis=0) - self.level) >= CANDIDATE * limit))
        windows = self.windows(columns)
        whole = np.isfinite(windows).all(axis=1)
        columns, windows = columns[whole], windows[whole]
        if len(columns):
            apart = one_sided(denoised(layer, windows)) * max(self.noise, LEAST_NOISE)
            self.smooth[columns] = np.where(np.abs(apart) >= BACK * limit, apart, 0.0)

    def stuck(self) -> Integers:
        """Columns whose readings do not change any more."""
        return np.flatnonzero((self.equal >= EQUAL) & (self.learned >= LEARNED))

    def _count_equal(self, now: Doubles, read: Integers) -> None:
        known = read & np.isfinite(self.last)
        same = known & (now == self.last)
        if np.count_nonzero(same) - 1 <= (1.0 - CHANGING) * (np.count_nonzero(known) - 1):
            self.equal[same] += 1
        self.equal[read & ~same] = 1
        self.last[read] = now[read]

    def _works(self) -> bool:
        mean = math.fsum(self.medians) / len(self.medians)
        if mean > HARDER * self.highest:
            self.learned[:] = 0
            self.newest[:] = self.recent[:] = np.nan
            self.smooth[:] = 0.0
            self.deviations.clear()
        self.highest = max(mean, self.highest * (1.0 - FORGOTTEN))
        return len(self.medians) == READINGS and mean >= AT_WORK * self.highest

    def _learn(self, read: Integers) -> None:
        """What leaves the newest observations goes into the level: so that the level does not follow what is just being judged. Nor does it where that keeps apart."""
        oldest = self.newest[0]
        wide = 3.0 * self.noise if self.noise else np.inf
        takes = read & np.isfinite(oldest) & ((self.learned < LEARNED) | (np.abs(self.apart()) <= wide)) & (self.smooth == 0.0)
        self.learned[takes] += 1
        change = np.where(self.learned <= LEARNED, oldest - self.level, np.clip(oldest - self.level, -wide, wide))
        self.level[takes] += change[takes] / np.minimum(self.learned[takes], MEMORY)
