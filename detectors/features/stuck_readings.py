"""One metric of all GPUs, or all nodes, of a job: which of its readings say nothing any more, because they are 0 or the same for as long as they never were while the job trains.

That something is wrong with what is read, and not with the machine, shows in three ways: a training GPU cannot have 0 watts, 0 MHz or 0 degrees; numbers that changed with nearly
every look do not stand still; and what stands still on all machines at once is the reading. How long is long each column has shown itself: five times its longest
run of equal readings so far, so that whole degrees, and what a driver tells every ten seconds, have their time. A value at the top of what was ever seen is a bound, and may stay.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle_eye.types import Doubles, Floats, Integers, Kind

Truths = NDArray[np.bool_]

LEARNED = 20
"""Readings above 0, or changes, from which it is known what a column does."""
LONGER = 5
"""Times the longest run so far."""
STEPS = 3
"""Of the job, which must have been completed meanwhile: the first ones may have been told late."""
AS_USUAL = 0.7
"""Share of its usual power from which a GPU computes."""
NEAR = 0.05
"""So close to the usual clock one that stands still is a reading; further off it may be a clock that is held there."""
CHANGING = 0.75
"""Of the others, that must change meanwhile."""
_MEMORY = 60


class StuckWatch(NamedTuple):
    """A metric, and after how many looks at least it is stuck."""

    kind: Kind
    metric: str
    zero: int
    """Looks at 0."""
    frozen: int = 0
    """Looks at one other value; 0: it may stand still for ever."""
    held: bool = False
    """It may be held where it is, on one machine or on all (clocks): only a value near the usual one is a stuck reading, and only beside others that change."""
    beside_peers: bool = True
    """It stands still by itself now and then: it is stuck only beside others that change."""
    computing: bool = False
    """0 is stuck only while the power says that the GPU computes."""
    quiet: bool = False
    """0 is stuck only while the others are not at 0."""


WATCHES = (
    StuckWatch(Kind.GPU, "power_watts", 10, 30),
    StuckWatch(Kind.GPU, "sm_clock_mhz", 10, 60, held=True),
    StuckWatch(Kind.GPU, "utilisation_percent", 10, 45, computing=True),
    StuckWatch(Kind.GPU, "temperature_celsius", 10, 120),
    StuckWatch(Kind.GPU, "memory_used_bytes", 10),
    StuckWatch(Kind.NODE, "power_watts", 10, 30),
    StuckWatch(Kind.NODE, "cpu_percent", 10, 20, beside_peers=False),
    StuckWatch(Kind.NODE, "context_switches_per_s", 10, 10, beside_peers=False),
    StuckWatch(Kind.NODE, "net_received_bytes_per_s", 30, 10, beside_peers=False, quiet=True),
    StuckWatch(Kind.NODE, "net_sent_bytes_per_s", 30, 10, beside_peers=False, quiet=True),
)


def _integers() -> Integers:
    return np.zeros(0, np.int64)


def _doubles() -> Doubles:
    return np.zeros(0)


@dataclass
class StuckReadings:
    """State of one metric; columns are entities, and move with them."""

    watch: StuckWatch
    last: Doubles = field(default_factory=_doubles)
    since: Doubles = field(default_factory=_doubles)
    """When its newest reading was read first."""
    usual: Doubles = field(default_factory=_doubles)
    """Of its readings above 0, without those that stand still."""
    run: Integers = field(default_factory=_integers)
    """Newest readings that are the same."""
    steps_then: Integers = field(default_factory=_integers)
    """Steps that the job had completed when its newest reading was read first."""
    above_zero: Integers = field(default_factory=_integers)
    changes: Integers = field(default_factory=_integers)
    longest: Integers = field(default_factory=_integers)
    """Run of a value above 0 before this one."""
    longest_zero: Integers = field(default_factory=_integers)
    stuck: Integers = field(default_factory=_integers)
    """1: its readings are stuck, and those of others are not."""
    everywhere: bool = False
    """All of them are stuck."""
    _highest: float = 0.0

    def move(self, moved: Integers) -> None:
        """`moved`: for each present column the one of before, −1 = new."""
        known = moved >= 0
        for name in ("last", "since", "usual"):
            values = getattr(self, name)
            setattr(self, name, np.where(known, values[moved], np.nan) if len(values) else np.full(len(moved), np.nan))
        for name in ("run", "steps_then", "above_zero", "changes", "longest", "longest_zero", "stuck"):
            values = getattr(self, name)
            setattr(self, name, np.where(known, values[moved], 0) if len(values) else np.zeros(len(moved), np.int64))

    def update(self, values: Floats, time: float, steps: int, own: Truths, computing: Truths) -> None:
        """Take the readings of a look. `steps`: that the job has completed; `own`: entities that the job trains on; `computing`: those whose power says so."""
        read = np.isfinite(values)
        if read.any():
            self._count(values.astype(np.float64), read, time, steps)
            self._judge(read & own, steps, computing)

    def works(self) -> Truths:
        """Of a power: it is what it usually is, and changes."""
        working: Truths = (self.last >= AS_USUAL * self.usual) & (self.stuck == 0)
        return working if not self.everywhere else np.zeros(len(self.last), np.bool_)

    # --- counting ----------------------------------------------------------------------------------------------------

    def _count(self, now: Doubles, read: Truths, time: float, steps: int) -> None:
        same = read & (now == self.last)
        other, positive = read & ~same, read & (now > 0.0)
        self._remember_runs(other)
        self.changes[other] += 1
        self.above_zero[positive] += 1
        self.run[same] += 1
        self.run[other], self.since[other], self.steps_then[other] = 1, time, steps
        self.stuck[other] = 0
        self.last[read] = now[read]
        before = np.where(np.isfinite(self.usual), self.usual, now)
        followed = other & positive & (now >= AS_USUAL * before)  # an idle hour does not become the usual
        self.usual[followed] = (before + (now - before) / _MEMORY)[followed]
        self._highest = max(self._highest, float(now[read].max()))

    def _remember_runs(self, ended: Truths) -> None:
        """What was taken for stuck is no measure for the next."""
        mine = ended & (self.stuck == 0) & (not self.everywhere)
        zero = self.last == 0.0
        self.longest = np.where(mine & ~zero, np.maximum(self.longest, self.run), self.longest)
        self.longest_zero = np.where(mine & zero, np.maximum(self.longest_zero, self.run), self.longest_zero)

    # --- judging -----------------------------------------------------------------------------------------------------

    def _judge(self, looked_at: Truths, steps: int, computing: Truths) -> None:
        trained = looked_at & (steps - self.steps_then >= STEPS)
        zero = trained & self._zeros(computing)
        frozen = trained & self._frozen()
        known = np.count_nonzero(looked_at)
        candidates = zero | frozen
        silent = np.count_nonzero(zero if self.watch.held else candidates)
        self.everywhere = 0 < known == silent and not (self.watch.quiet and known == np.count_nonzero(zero))
        if self.everywhere:
            self.stuck[:] = 0
            return
        if self.watch.quiet:
            zero &= self._others_are(looked_at & ~candidates, self.last > 0.0)
        if self.watch.beside_peers:
            frozen &= self._others_change(looked_at & ~candidates)
        self.stuck[zero | frozen] = 1

    def _zeros(self, computing: Truths) -> Truths:
        zero: Truths = (self.last == 0.0) & (self.run >= np.maximum(self.watch.zero, LONGER * self.longest_zero)) & (self.above_zero >= LEARNED)
        return zero & computing if self.watch.computing else zero

    def _frozen(self) -> Truths:
        if not self.watch.frozen:
            return np.zeros(len(self.last), np.bool_)
        frozen: Truths = (self.run >= np.maximum(self.watch.frozen, LONGER * self.longest)) & (self.changes >= LEARNED)
        frozen &= (self.last != 0.0) & (self.last < self._highest)
        return frozen & (np.abs(self.last - self.usual) <= NEAR * self.usual) if self.watch.held else frozen

    def _others_are(self, others: Truths, what: Truths) -> bool:
        return bool(others.any() and what[others].mean() >= CHANGING)

    def _others_change(self, others: Truths) -> Truths:
        """For each column: most of the others have changed meanwhile, and they are no fewer than a quarter of all."""
        if np.count_nonzero(others) < max(3, len(others) // 4):
            return np.zeros(len(others), np.bool_)
        changing: Truths = np.quantile(self.run[others], CHANGING) <= self.run / 2
        return changing
