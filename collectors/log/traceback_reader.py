"""A Python traceback in a log, line by line until it is over, with those that it is chained to.

>>> reader = TracebackReader(0.0)
>>> lines = (TRACEBACK + ":", '  File "t.py", line 3, in f', "    g()", "ValueError: no", "and on it goes")
>>> [reader.feed(line) for line in lines]
[True, True, True, True, False]
>>> reader.take()[-1]
'ValueError: no'
"""

from enum import Enum

TRACEBACK = "Traceback (most recent call last)"
CHAINS = ("During handling of the above exception", "The above exception was the direct cause")
MOST_LINES = 200
"""Of a longer one the beginning and the exception are kept."""
MOST_S = 5.0
"""Whoever is killed while it prints never comes to the end."""


class _Part(Enum):
    FRAMES = "frames"
    AFTER = "after the exception's line"
    CHAIN = "between two of a chain"


class TracebackReader:
    """One traceback. It is begun by the line that has TRACEBACK, which is fed first."""

    def __init__(self, now: float) -> None:
        """`now`: monotonic seconds."""
        self._began = now
        self._part = _Part.CHAIN
        self._lines: list[str] = []

    def feed(self, line: str) -> bool:
        """Take a line without its prefix. False: the traceback was over before it."""
        if self._part is not _Part.FRAMES and TRACEBACK in line:
            if self._part is _Part.AFTER:
                return False  # another one
            self._part = _Part.FRAMES
        elif self._part is _Part.FRAMES:
            self._part = _Part.FRAMES if not line.strip() or line[0] in " \t" else _Part.AFTER
        elif line.startswith(CHAINS):
            self._part = _Part.CHAIN
        elif line.strip():
            return False
        self._keep(line)
        return True

    def is_late(self, now: float) -> bool:
        """Its end has not come for too long."""
        return now - self._began > MOST_S

    def take(self) -> tuple[str, ...]:
        """Its lines; the last one is the exception."""
        while self._lines and not self._lines[-1].strip():
            self._lines.pop()
        return tuple(self._lines)

    def _keep(self, line: str) -> None:
        if len(self._lines) < MOST_LINES:
            self._lines.append(line)
        elif self._part is not _Part.FRAMES and line.strip():
            self._lines[-1] = line
