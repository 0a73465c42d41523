"""The time of a stream, by its records: a writer's clock may be hours or years off, and must not move it alone."""

from collections import deque
from statistics import median

LOOKED_AT = 15
"""Records: a jump is believed when most of them have made it."""
JUMP_S = 600.0
"""What is further from most of the last records is a jump."""
LATEST_S = 1e11


class StreamClock:
    """Depends on the records alone: whoever has seen the last LOOKED_AT of them reads the same time."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=LOOKED_AT)

    def see(self, time: float) -> float:
        """The time of the stream with its next record, seconds since 1970."""
        self._times.append(time)
        usual = median(self._times)
        believed = time if abs(time - usual) <= JUMP_S else usual
        return min(max(believed, 0.0), LATEST_S)
