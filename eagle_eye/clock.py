"""Time as a value that is handed in, so that a test owns it.

`now` is wall time (seconds since 1970, UTC), `monotonic` never goes back. Both in seconds.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

PACE = 0.05
"""A machine's clock that was set is followed by so much of the time that passes: 30 s are made up for in ten minutes, and no duration is off by more than this share."""
FOLLOWED_AT_ONCE_S = 300.0
"""Beyond this (a clock that was wrong since boot, a machine that slept) the time itself counts more than a duration: it is taken over at once."""
TOLD_S = 1.0


class Clock(Protocol):
    """What a service may ask of time."""

    def now(self) -> float: ...
    def monotonic(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class SteadyClock:
    """A clock over another one, thread-safe. Its wall time neither jumps nor goes back within a process.

    What is measured with it is true, whoever sets the machine's clock meanwhile.

    >>> SteadyClock(FakeClock(now=100.0)).now()
    100.0
    """

    def __init__(self, clock: Clock, on_jump: Callable[[float], None] = lambda _seconds: None) -> None:
        """`on_jump` is told by how many seconds the machine's clock was set, where that is more than TOLD_S."""
        self.on_jump = on_jump
        self._clock = clock
        self._lock = threading.Lock()
        self._time, self._read = clock.now(), clock.monotonic()
        self._ahead = 0.0
        """By how much the machine's clock was ahead of ours when we looked last."""

    def now(self) -> float:
        with self._lock:
            wall, monotonic = self._clock.now(), self._clock.monotonic()
            passed = monotonic - self._read
            ahead = wall - (self._time + passed)
            jumped = ahead - self._ahead
            step = ahead if abs(ahead) > FOLLOWED_AT_ONCE_S else max(-PACE * passed, min(PACE * passed, ahead))
            now = self._time + passed + step
            self._time, self._read, self._ahead = now, monotonic, ahead - step
        if abs(jumped) > TOLD_S:
            self.on_jump(jumped)
        return now

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)


class FakeClock:
    """A clock that moves when `advance` is called, or when a thread sleeps on it.

    >>> clock = FakeClock(now=100.0)
    >>> clock.sleep(2.5)
    >>> clock.now()
    102.5
    """

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._set_by = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        return self._now + self._set_by

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock, as a time server or an operator does; no time passes."""
        self._set_by += seconds
