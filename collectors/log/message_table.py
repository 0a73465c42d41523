"""Tables of log messages: which lines mean what, as data (TOML), with rows of the user's own before those of this release."""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from eagle_eye.errors import UNREADABLE, ConfigError

from .quotation import is_quotation

LONGEST = 1000
"""Characters of a line that are looked at."""

TAKEN = frozenset({"name", "kind", "entity", "time", "message", "job", "component", "code", "level", "advice", "log", "epoch", "traceback", "repeated"})
"""What events have of their own."""


class MessageRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a table."""

    component: str
    code: str
    pattern: str
    """Regular expression; its named groups become attributes."""
    hint: str = ""
    """A text that every such line has; lines without it are not tried."""
    level: Literal["error", "notice"] = "error"
    advice: str = ""
    printed: bool = False
    """A line that only speaks of it (quotation.py) is a notice."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    message: tuple[MessageRow, ...] = ()


@dataclass(frozen=True, slots=True)
class MatchedLine:
    """A line that a row knows."""

    row: MessageRow
    text: str
    groups: dict[str, str]
    own: bool = False
    """The row is the user's own."""


class MessageTable:
    """Rows that are ready to read lines; the first that fits counts."""

    def __init__(self, rows: Sequence[MessageRow], own: int = 0) -> None:
        """`own`: how many of them, the first ones, are the user's."""
        self.rows, self._own = tuple(rows), own
        self._compiled = [(row, re.compile(row.pattern)) for row in rows]

    @classmethod
    def load(cls, shipped: Sequence[str], components: Sequence[str], own: Path | None = None, *, hints: bool = False) -> "MessageTable":
        """The table of this release by its files' names, after the rows of the user's own file. `hints`: each row needs one. Raises ConfigError, with file and row."""
        mine = _rows_of(str(own), own.read_bytes, components, hints) if own else ()
        folder = resources.files(__package__)
        rows = (*mine, *(row for name in shipped for row in _rows_of(name, folder.joinpath(*name.split("/")).read_bytes, components, hints)))
        return cls(rows, len(mine))

    def match(self, line: str) -> MatchedLine | None:
        """What a line without its prefix says; None where no row knows it."""
        text = line[:LONGEST]
        for number, (row, pattern) in enumerate(self._compiled):
            if row.hint in text and (match := pattern.search(text)):
                told = msgspec.structs.replace(row, level="notice") if row.printed and _only_quotes(text, row, pattern) else row
                return MatchedLine(told, text, {name: value or "" for name, value in match.groupdict().items()}, number < self._own)
        return None


def _only_quotes(text: str, row: MessageRow, pattern: re.Pattern[str]) -> bool:
    """No place in a line where the row fits is the line's own error."""
    at = 0
    while match := pattern.search(text, at):
        at = match.start() + 1
        hint = text.find(row.hint, match.start())
        if not is_quotation(text, match.start(), hint + len(row.hint) if hint >= 0 else match.end()):
            return False
    return True


def _rows_of(name: str, read: Callable[[], bytes], components: Sequence[str], hints: bool) -> tuple[MessageRow, ...]:
    try:
        table = msgspec.convert(tomllib.loads(read().decode()), _Table)
    except (OSError, *UNREADABLE) as error:
        raise ConfigError(f"{name}: {error}") from error
    for row in table.message:
        if row.component not in components:
            raise ConfigError(f"{name}: {row.code}: component {row.component!r} is none of {', '.join(components)}")
        if hints and not row.hint:
            raise ConfigError(f"{name}: {row.code}: hint is missing: a text that every such line has")
        try:
            groups = re.compile(row.pattern).groupindex
        except re.error as error:
            raise ConfigError(f"{name}: {row.code}: pattern: {error}") from error
        if taken := TAKEN & groups.keys():
            raise ConfigError(f"{name}: {row.code}: pattern: the group name {min(taken)} is taken, choose another")
    return table.message
