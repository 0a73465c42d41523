"""Signs in the lines of a report: what a message or a person's words stand for, by the tables in signs/.

>>> table = SignTable.load()
>>> [sign.name for sign in table.read(1, "the job hangs at eval, no NCCL timeout")]
['hang', 'at_evaluation']
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import NamedTuple

import msgspec

from eagle_eye.errors import UNREADABLE, ConfigError

LONGEST = 2000
"""Characters of a line that are looked at."""
FILES = ("messages.toml", "words.toml")
NEAR = 60
"""Characters before and after the predicate in which its subject is looked for."""
_SENTENCE = re.compile(r"(?<=[.;!?])\s")
_DENIED = re.compile(r"(?:\b(?:no|not|never|without|neither|nor|none of|isn't|wasn't|aren't|weren't|didn't|doesn't|ruled out|rather than|instead of)\b(?:(?! or is | and is | but | and then | or gets )[^.;:,()]){0,24}|(?:\A|[,;(:]) ?0 |\bzero )\Z", re.IGNORECASE)
"""Before a sign: it is said not to be there."""
_AFTERMATH = re.compile(
    r"\A(?:[^.;:,()]{0,20}\b(?:afterwards?|later(?: on)?|subsequently|as a (?:result|consequence))\b|\s*(?:counts?|total)?\s*[:=|]\s*(?:0|no|none|n/?a|disabled|false|ok)\b)", re.IGNORECASE
)
"""After a sign: it is said to follow from what else is told, or its value says that there is none (`Uncorrectable Error : 0`)."""
_GUESS = re.compile(r"\b(?:maybe|perhaps|might|may|could|possibl[ey]|probably|suspect\w*|assum\w*|thought|guess\w*|wonder\w*|whether|if|first|test(?:ed|ing)? for|rul(?:e|ed|ing) out)\b[^.;:]{0,40}\Z", re.IGNORECASE)
"""Before a sign: somebody only thinks of it. What may isolate a machine has to be said outright."""


class ReportSign(NamedTuple):
    """Something in a report that speaks for a failure."""

    name: str
    line: int
    """Its number, from 1."""
    text: str
    """The line, for a person."""


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    source: str
    pattern: str = ""
    near: tuple[str, ...] = ()
    """Expressions that are all in one sentence, in any order and close to one another, in place of a pattern."""
    phase: bool = False
    """It says when something was, which nobody denies: "it is not resuming in the same state"."""
    outright: bool = False
    """A guess is none: it may isolate a machine."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sign: tuple[_Row, ...] = ()


class SignTable:
    """Rows that are ready to read lines; case does not matter."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self.names = frozenset(row.name for row in rows)
        self._compiled = [(row, [re.compile(each, re.IGNORECASE) for each in row.near or (row.pattern,)]) for row in rows]

    @classmethod
    def load(cls) -> "SignTable":
        """The tables of this release. Raises ConfigError, with the file."""
        folder = resources.files(__package__).joinpath("signs")
        rows: list[_Row] = []
        for name in FILES:
            try:
                file = msgspec.convert(tomllib.loads(folder.joinpath(name).read_text(encoding="utf-8")), _File)
            except (OSError, *UNREADABLE) as error:
                raise ConfigError(f"detectors/failures/signs/{name}: {error}") from error
            rows += file.sign
        return cls(rows)

    def read(self, number: int, line: str) -> Iterator[ReportSign]:
        """The signs of a line; not what it denies, nor what it tells as an aftermath."""
        text = line[:LONGEST]
        sentences = _SENTENCE.split(text)
        told: set[str] = set()
        for row, patterns in self._compiled:
            if row.name not in told and any(_has(each, patterns, row) for each in (sentences if row.near else (text,))):
                told.add(row.name)
                yield ReportSign(row.name, number, text.strip())


def _has(text: str, patterns: Sequence[re.Pattern[str]], row: _Row) -> bool:
    """All of them, near to one another; not where the text denies the last one, which is the predicate."""
    *others, last = patterns
    for found in last.finditer(text):
        if not row.phase and not _is_told(text, found):
            continue
        if row.outright and _GUESS.search(text[: found.start()]):
            continue
        around = text[max(0, found.start() - NEAR) : found.end() + NEAR]
        if all(other.search(around) for other in others):
            return True
    return False


def _is_told(text: str, found: re.Match[str]) -> bool:
    """Neither denied nor an aftermath."""
    return not _DENIED.search(text[: found.start()]) and not _AFTERMATH.match(text[found.end() :])
