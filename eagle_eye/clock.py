"""Time as a value that is handed in, so that a test owns it.

`now` is wall time (seconds since 1970, UTC), `monotonic` never goes back. Both in seconds.
"""

import threading
import time
from typing import Protocol


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
