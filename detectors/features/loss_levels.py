"""A job's loss in blocks of steps: the level that it has, those that it had, how much such levels vary by themselves, and how fast they fall.

A level is a median, so that a spike of a few steps is none; it outlives an epoch, so that a restarted job is measured against what it had reached.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from eagle_eye.types import Doubles

from .robust_deviation import NORMAL_MAD

BLOCK = 20
"""Losses whose median is a level."""
KEPT = 100
"""Blocks."""
FEWEST = 5
"""Blocks from which on anything is known."""
MEDIAN_ERROR = 1.2533
"""Times the standard error of the mean: that of a median, if the values are normally distributed."""
LEAST_NOISE = 0.001
"""Share of a level that it varies by at least."""
STRAIGHT = 5.0
"""Deviations of a level: what is further beside a line is on none."""
YOUNG = 1.0
"""A loss falls like a power of the steps: it is taken for a straight line from so many times its length on."""


class LossBlock(NamedTuple):
    """So many losses in succession."""

    step: float
    """Number of the first step."""
    time: float
    """End of that step."""
    level: float
    error: float
    """Standard error of the level, from how its losses differ."""


class LossFall(NamedTuple):
    """A straight line through levels."""

    slope: float
    """Of the level from block to block; negative where it falls."""
    error: float
    """Standard error of the slope."""


@dataclass(slots=True)
class LossLevels:
    """Of one job."""

    noise: float = 0.0
    """Standard deviation of a level that is where it was; 0.0 while too few are known."""
    since_restart: int = 0
    """Blocks."""
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=BLOCK))
    """Losses."""
    _filled: int = 0
    _first: tuple[float, float] = (0.0, 0.0)
    """Step and time of the first loss of the block that is not whole yet."""
    _blocks: deque[LossBlock] = field(default_factory=lambda: deque(maxlen=KEPT))
    lowest: LossBlock | None = None
    """The lowest but one, so that a single odd block is no measure; None while too few are known."""

    def restart(self, step: float) -> None:
        """Training goes on from this step: what was known of it and those behind it is no past any more."""
        kept = [block for block in self._blocks if block.step + BLOCK <= step]
        self._blocks = deque(kept, KEPT)
        self.since_restart, self._filled = 0, 0
        self.newest.clear()
        self._measure(noise=True)

    def add(self, step: float, time: float, loss: float, *, steady: bool) -> bool:
        """Take the loss of a step; True where a block is whole now. What is not steady says nothing of the noise."""
        if not self._filled:
            self._first = (step, time)
        self.newest.append(loss)
        self._filled += 1
        if self._filled < BLOCK:
            return False
        values = np.array(self.newest)
        level = float(np.median(values))
        deviation = NORMAL_MAD * float(np.median(np.abs(values - level))) or float(values.std())  # 0.0: most are the same
        self._blocks.append(LossBlock(*self._first, level, MEDIAN_ERROR * deviation / np.sqrt(BLOCK)))
        self._filled, self.since_restart = 0, self.since_restart + 1
        self._measure(noise=steady)
        return True

    @property
    def level(self) -> float | None:
        """Of the newest losses; None while they are too few."""
        ordered = sorted(self.newest)
        return (ordered[BLOCK // 2 - 1] + ordered[BLOCK // 2]) / 2.0 if len(ordered) == BLOCK else None

    @property
    def begins(self) -> tuple[float, float]:
        """First step and its time of the newest whole block."""
        return (self._blocks[-1].step, self._blocks[-1].time) if self._blocks else self._first

    def falls(self) -> tuple[LossFall, LossFall] | None:
        """Before and since the last restart, over as many blocks; None while they are fewer than `FEWEST`, where the levels are on no line,
        or while the training is so young that its fall slows down by itself."""
        count = self.since_restart
        blocks = list(self._blocks)
        first = len(blocks) - count
        before, after = blocks[max(first - count, 0) : max(first, 0)], blocks[max(first, 0) :]
        if len(before) < max(count, FEWEST) or len(after) < count or before[0].step < YOUNG * (after[-1].step - before[0].step):
            return None
        lines = self._fall(before), self._fall(after)
        return None if lines[0] is None or lines[1] is None else (lines[0], lines[1])

    def _fall(self, blocks: list[LossBlock]) -> LossFall | None:
        places = np.arange(len(blocks)) - (len(blocks) - 1) / 2.0
        squares = float((places**2).sum())
        levels = np.array([block.level for block in blocks])
        slope = float((places * levels).sum()) / squares
        beside = np.abs(levels - levels.mean() - slope * places)
        return LossFall(slope, self.noise / np.sqrt(squares)) if beside.max() <= STRAIGHT * self.noise else None

    def _measure(self, *, noise: bool) -> None:
        """The lowest level; and the noise, from within the blocks and from how the levels bend, for they fall: a loss may wander more than its steps differ."""
        if len(self._blocks) < FEWEST:
            self.noise, self.lowest = 0.0, None
            return
        self.lowest = sorted(self._blocks, key=lambda block: block.level)[1]
        if not noise and self.noise:
            return
        levels: Doubles = np.array([block.level for block in self._blocks])
        bends = np.diff(levels[-max(FEWEST, len(levels) // 2) :], 2)
        wanders = NORMAL_MAD * float(np.median(np.abs(bends - np.median(bends)))) / np.sqrt(6.0)
        within = float(np.median([block.error for block in self._blocks]))
        self.noise = max(wanders, within, LEAST_NOISE * abs(float(np.median(levels))))
