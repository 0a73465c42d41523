"""Whether this process was awake to listen: a sleeper must not call the others silent."""

from eagle_eye.clock import Clock


class Alarm:
    """Tells a listener that it overslept.

    A process that was stopped, or starved of its processor, finds every lease run out when it wakes, though the
    beats lie unread in its sockets. It gives everybody a new lease instead of calling them all lost.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()

    def overslept(self, period: float) -> bool:
        """Call after each sleep of `period` seconds: whether it took more than twice as long."""
        now = self._clock.monotonic()
        took, self._last = now - self._last, now
        return took > 2 * period
