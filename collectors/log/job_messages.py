"""What the output of a training job says: known errors by the tables in job/, and whole Python tracebacks.

The output is searched for all hints of the table at once (Aho-Corasick), so only lines with one of them cost Python's time:
a gigabyte takes a few seconds. Of a flood of such lines the first ones of each piece are read, and the others counted.
"""

import heapq
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ahocorasick_rs

from .message_table import MessageTable
from .traceback_reader import TRACEBACK, TracebackReader

COMPONENTS = ("python", "torch", "nccl", "cuda", "memory", "storage", "network", "scheduler", "framework")
TABLES = ("job/program.toml", "job/gpu.toml", "job/site.toml")
MOST_LINES = 200
"""Lines with a hint that are read of one piece of output, which has up to a megabyte."""
MOST_TEXTS = 64
"""Of one search: its packed form takes no more, and without it a search takes five times as long."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"\A\s{0,3}(?:\[(?:rank|default)?(\d+)\]:|(\d{1,6}): )\s?")
"""Of who prints for several ranks: torch's `[rank3]: `, torchrun's `[default3]:`, srun's `3: `."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMessage:
    """One message in the output of a job."""

    component: str
    code: str
    level: Literal["error", "notice"]
    advice: str
    text: str
    """The line; of a traceback its last line, the exception."""
    rank: str = ""
    """As the line's prefix or the message itself says; '' where neither does."""
    traceback: str = ""
    groups: dict[str, str]


class JobOutput:
    """Reads one log, piece by piece; a traceback may go over several pieces."""

    def __init__(self, messages: "JobMessages") -> None:
        self._messages = messages
        self._tracebacks: dict[str, TracebackReader] = {}
        """By the prefix of its lines: ranks that print into one log may print at once."""
        self.unread_lines = 0
        """Lines with a hint beyond MOST_LINES in a piece."""

    def read(self, piece: bytes, now: float) -> Iterator[JobMessage]:
        """What whole lines of output say. `now`: monotonic seconds; a traceback whose end does not come is given out after a while."""
        done, lines = (yield from self._read_tracebacks(piece, 0, now)), 0
        for hit in self._messages.hits(piece):
            if hit < done:
                continue
            if lines == MOST_LINES:
                self.unread_lines += 1
                continue
            lines += 1
            begin, end = piece.rfind(b"\n", 0, hit) + 1, _end_of_line(piece, hit)
            yield from self._read_line(piece[begin:end], now)
            done = yield from self._read_tracebacks(piece, end, now)
        for prefix in [prefix for prefix, reader in self._tracebacks.items() if reader.is_late(now)]:
            yield from _of_traceback(prefix, self._tracebacks.pop(prefix).take())

    def _read_tracebacks(self, piece: bytes, start: int, now: float) -> Generator[JobMessage, None, int]:
        """Line by line from `start` until all tracebacks that are open are over; returns where that is."""
        while self._tracebacks and start < len(piece):
            end = _end_of_line(piece, start)
            yield from self._read_line(piece[start:end], now)
            start = end
        return start

    def _read_line(self, data: bytes, now: float) -> Iterator[JobMessage]:
        prefix, text = _without_prefix(data.decode(errors="replace"))
        reader = self._tracebacks.get(prefix)
        if reader is not None and not reader.feed(text):
            del self._tracebacks[prefix]
            yield from _of_traceback(prefix, reader.take())
            reader = None
        if reader is None and TRACEBACK in text:
            reader = self._tracebacks[prefix] = TracebackReader(now)
            reader.feed(text)
        if message := self._messages.read(text, prefix):
            yield message


class JobMessages:
    """The tables in job/, ready to search."""

    def __init__(self, own: Path | None = None) -> None:
        """`own`: a file with rows of the user's own; each needs a hint. Raises ConfigError, with file and row."""
        self._table = MessageTable.load(TABLES, COMPONENTS, own, hints=True)
        hints = sorted({row.hint for row in self._table.rows} | {TRACEBACK})
        self.searches = tuple(tuple(hints[start :: -(-len(hints) // MOST_TEXTS)]) for start in range(-(-len(hints) // MOST_TEXTS)))
        """The texts that are searched for at once."""
        self._automata = [ahocorasick_rs.BytesAhoCorasick([text.encode() for text in texts], matchkind=ahocorasick_rs.MatchKind.LeftmostFirst) for texts in self.searches]

    def hits(self, piece: bytes) -> Iterator[int]:
        """Where hints begin, ascending."""
        return heapq.merge(*([start for _, start, _ in automaton.find_matches_as_indexes(piece)] for automaton in self._automata))

    def read_line(self, line: str) -> JobMessage | None:
        """What a line says as it was printed; None where no row knows it."""
        rank, text = _without_prefix(line)
        return self.read(text, rank)

    def read(self, text: str, rank: str) -> JobMessage | None:
        """What a line without its prefix says; None where no row knows it."""
        line = self._table.match(text)
        if line is None:
            return None
        row = line.row
        return JobMessage(
            component=row.component, code=row.code, level=row.level, advice=row.advice, text=line.text,
            rank=line.groups.get("rank") or rank, groups=line.groups,
        )  # fmt: skip


def _of_traceback(prefix: str, lines: tuple[str, ...]) -> Iterator[JobMessage]:
    if lines:
        yield JobMessage(
            component="python", code="traceback", level="notice", advice="", text=lines[-1], rank=prefix, traceback="\n".join(lines), groups={}
        )


def _without_prefix(line: str) -> tuple[str, str]:
    """Who printed it, '' if that is not said, and the rest without colours."""
    plain = _COLOURS.sub("", line).rstrip("\r\n")
    found = _PREFIX.match(plain)
    return (found[1] or found[2], plain[found.end() :]) if found else ("", plain)


def _end_of_line(piece: bytes, start: int) -> int:
    return piece.find(b"\n", start) + 1 or len(piece)
