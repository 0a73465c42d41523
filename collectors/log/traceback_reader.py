"""A Python traceback in a log, line by line until it is over, with those that it is chained to.

>>> reader = TracebackReader(0.0)
>>> lines = (TRACEBACK + ":", '  File "t.py", line 3, in f', "    g()", "ValueError: no:", "  neither", "and on it goes")
>>> [reader.feed(line) for line in lines]
[True, True, True, True, True, False]
>>> reader.take()[-1], reader.exception
('  neither', 'ValueError: no: neither')
"""

import re
from enum import Enum

from eagle_eye.redaction import redact

TRACEBACK = "Traceback (most recent call last)"
CHAINS = ("During handling of the above exception", "The above exception was the direct cause", "Original Traceback (most")
MOST_LINES = 200
"""Of a longer one the beginning and the exception are kept."""
MOST_CHARACTERS = 64_000
LONGEST_LINE = 2000
"""Characters that are kept of a line. Secrets are taken out before it is cut: half of one is not known for one."""
MOST_MESSAGE = 60
"""Lines of an exception's text."""
MOST_S = 5.0
"""Whoever is killed while it prints never comes to the end."""
LAST_ERROR = "Last error:"
"""NCCL's own words follow in the next line."""
_CONTINUED = re.compile(
    rf"{LAST_ERROR}|nccl\w+Error: |CUDA kernel errors might |HIP kernel errors might |For debugging consider passing |Compile with `|Search for `cuda|Device-side assertion "
    r"|Exception raised from |frame #\d+: "
)
_BOILERPLATE = re.compile(r"(?:CUDA|HIP) kernel errors might |For debugging consider passing |Compile with `|Search for `cuda|Device-side assertion |Exception raised from |frame #\d+: ")
"""Lines that stand below every such exception: they are kept, and are no part of what it says."""
_GROUP = re.compile(r"\A\s{0,200}(?:\| {1,200}|\+ )?(?:\+ )?Exception Group Traceback ")
_GROUP_LINE = re.compile(r"\A\s{0,200}(?:\||\+-)")


class _Part(Enum):
    FRAMES = "frames"
    AFTER = "after the exception's line"
    CHAIN = "between two of a chain"
    GROUP = "an exception group, behind its bars"


class TracebackReader:
    """One traceback. It is begun by the line that has TRACEBACK, which is fed first."""

    def __init__(self, now: float, rank: str = "") -> None:
        """`now`: monotonic seconds. `rank`: whose it is."""
        self.rank = rank
        self._began = now
        self._part = _Part.CHAIN
        self._lines: list[str] = []
        self._exception: list[str] = []
        self._characters = 0

    def feed(self, line: str) -> bool:
        """Take a line without its prefix. False: the traceback was over before it."""
        if self._part is _Part.AFTER and TRACEBACK in line and not line.startswith(CHAINS):
            return False  # another one
        if self._part in (_Part.AFTER, _Part.CHAIN) and TRACEBACK in line:
            self._part = _Part.GROUP if _GROUP.match(line) else _Part.FRAMES
            self._exception = []
        elif self._part is _Part.FRAMES:
            if line.strip() and line[0] not in " \t":
                self._part = _Part.AFTER
                self._exception = [_bounded(line)]
        elif self._part is _Part.GROUP and _GROUP_LINE.match(line):
            self._take_of_group(line)
        elif line.startswith(CHAINS):
            self._part = _Part.CHAIN
        elif line.strip() and not self._continues(line):
            return False
        self._keep(line)
        return True

    def is_late(self, now: float) -> bool:
        """Its end has not come for too long."""
        return now - self._began > MOST_S

    def take(self) -> tuple[str, ...]:
        """Its lines; the last ones are the exception."""
        while self._lines and not self._lines[-1].strip():
            self._lines.pop()
        return tuple(self._lines)

    @property
    def exception(self) -> str:
        """What the last exception says, on one line; of a traceback that was cut off its last line."""
        if not self._exception:
            return next((line for line in reversed(self._lines) if line.strip()), "")
        first, *others = self._exception
        return " ".join([first, *(line.strip() for line in others if not _BOILERPLATE.match(line))])

    def _continues(self, line: str) -> bool:
        """An exception's text may have several lines: indented ones, and those that torch and NCCL are known to write."""
        if self._part is not _Part.AFTER or len(self._exception) >= MOST_MESSAGE:
            return False
        if line[0] not in " \t" and not _CONTINUED.match(line) and self._exception[-1] != LAST_ERROR:
            return False
        self._exception.append(_bounded(line))
        return True

    def _take_of_group(self, line: str) -> None:
        """The group's exception, and those in it: what is not indented behind the bars."""
        text = line.lstrip(" |")
        indent = len(line) - len(text) - (line.rfind("|", 0, len(line) - len(text)) + 2)
        if indent <= 0 and text and not text.startswith("+") and TRACEBACK not in text and len(self._exception) < MOST_MESSAGE:
            self._exception.append(_bounded(text))

    def _keep(self, line: str) -> None:
        line = _bounded(line)
        if len(self._lines) < MOST_LINES and self._characters < MOST_CHARACTERS:
            self._lines.append(line)
            self._characters += len(line)
        elif self._part is _Part.AFTER and self._exception and len(self._exception) == 1 and line.strip():
            self._lines[-1] = line
            self._exception[0] = line


def _bounded(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else redact(line[: 4 * LONGEST_LINE])[:LONGEST_LINE]
