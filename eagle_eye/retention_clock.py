"""The time by which what is old is deleted: a clock that was set ahead must not delete what is kept."""

import logging
import math
from collections.abc import Callable, Iterable
from itertools import pairwise

from .clock import Clock

BELIEVED = 0.1
"""A leap by less than this share of the retention is believed: it can delete no more than that share too early."""
log = logging.getLogger(__name__)


class RetentionClock:
    """Wall time without its leaps; used by one thread at a time, one per store that deletes.

    Nothing says of a clock that leaps by 40 days whether it is right now or was before: a bad time server looks like a server that was
    off, or a machine that slept, for so long. To believe it deletes everything when it is wrong; not to believe it keeps some of it longer
    when it is right, within the bytes that a store may take. So a leap is not believed at first: this clock is behind the wall clock by it,
    and goes on with it. In this process a leap is what the wall clock advances beyond the monotonic one; before its start, a gap
    in the times of what is stored, up to now (also the second start under a wrong clock, which has written by then, deletes nothing). A
    clock that is set back takes its leap back. Once a whole retention has passed in this process since the last leap, what was stored
    before it is old by any clock: the wall clock counts again.
    """

    def __init__(self, clock: Clock, retention_s: float, stored: Callable[[], Iterable[float]], name: str) -> None:
        """`stored`: times of what is kept, in any order, asked once, at the first `now`; what lies between two neighbours of them need not be given.

        `name`: of the store, for the log.
        """
        self._clock = clock
        self._retention_s = retention_s
        self._stored = stored
        self._name = name
        self._ahead: float | None = None
        """By how much the wall clock was ahead of the monotonic one when we looked last."""
        self._behind = 0.0
        self._until = -math.inf
        """By the monotonic clock, when what is behind us is believed."""

    def now(self) -> float:
        """The time to compute ages with. Raises what `stored` raises, and asks it again then."""
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        leap = self._leaps_before(wall) if self._ahead is None else wall - monotonic - self._ahead
        self._ahead = wall - monotonic
        if abs(leap) > BELIEVED * self._retention_s:
            self._follow(leap, monotonic)
        if self._behind and monotonic >= self._until:
            log.info("%s: %g days have passed since the clock leapt: retention follows it again", self._name, self._retention_s / 86_400)
            self._behind = 0.0
        return wall - self._behind

    def _leaps_before(self, wall: float) -> float:
        times = sorted([*(time for time in self._stored() if time < wall), wall])
        return sum(gap for gap in (later - earlier for earlier, later in pairwise(times)) if gap > BELIEVED * self._retention_s)

    def _follow(self, leap: float, monotonic: float) -> None:
        self._behind = max(0.0, self._behind + leap)
        self._until = monotonic + self._retention_s
        if leap > 0:
            log.warning(
                "%s: the clock is %.2f days further than what is stored, or than this process has run: retention does not believe it for %g days; "
                "check the machine's clock, and whether the server was off for so long", self._name, leap / 86_400, self._retention_s / 86_400,
            )  # fmt: skip
