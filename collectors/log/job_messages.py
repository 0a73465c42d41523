"""What the output of a training job says: known errors by the tables in job/, and whole Python tracebacks.

The output is searched for all hints of the table at once (Aho-Corasick), so only lines with one of them cost Python's time:
a gigabyte takes a few seconds. Of a flood of lines with one hint the first ones of each piece are read, and the others counted:
they hide no other error, and a traceback is read wherever it begins.
"""

import heapq
import re
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ahocorasick_rs

from .message_table import MessageTable
from .output_prefix import OutputLine, host_before, unprefixed, without_bar
from .traceback_reader import TRACEBACK, TracebackReader

COMPONENTS = ("python", "torch", "nccl", "cuda", "memory", "storage", "network", "scheduler", "framework")
TABLES = ("job/program.toml", "job/process.toml", "job/gpu.toml", "job/site.toml")
MOST_LINES = 50
"""Lines that are read for each row of the tables in one piece of output, which has up to a megabyte: rows that share a hint have as many more."""
LONGEST_TEXT = 8000
"""Characters of a line in a message, which is cut further behind the redaction."""
MOST_TRACEBACKS = 256
"""Open at once in one log."""
MOST_TEXTS = 64
"""Of one search: its packed form takes no more, and without it a search takes five times as long."""
_LINE = re.compile(rb"[^\r\n]*+(?:\r{0,2}\n|\r|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMessage:
    """One message in the output of a job."""

    component: str
    code: str
    level: Literal["error", "notice"]
    advice: str
    text: str
    """The line; of a traceback the exception."""
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
        self._hosts: dict[str, str] = {}
        """Of the open ones whose lines have a host before them: source → its prefix."""
        self.unread_lines = 0
        """Lines with a hint beyond MOST_LINES of its rows in a piece."""

    def read(self, piece: bytes, now: float) -> Iterator[JobMessage]:
        """What whole lines of output say. `now`: monotonic seconds; a traceback whose end does not come is given out after a while."""
        done, counted, left = (yield from self._read_tracebacks(piece, 0, now)), 0, self._messages.lines_of_hints()
        for hit, hint in self._messages.hits_with_hints(piece):
            if hit < done:
                continue
            if left[hint] == 0:
                self.unread_lines, counted = self.unread_lines + (hit >= counted), _end_of_line(piece, hit)
                continue
            left[hint] -= 1
            begin, end = _begin_of_line(piece, hit), _end_of_line(piece, hit)
            yield from self._read_line(piece[begin:end], now)
            done = yield from self._read_tracebacks(piece, end, now)
        for source in [source for source, reader in self._tracebacks.items() if reader.is_late(now)]:
            yield from self._ended(source)

    def _read_tracebacks(self, piece: bytes, start: int, now: float) -> Generator[JobMessage, None, int]:
        """Line by line from `start` until all tracebacks that are open are over; returns where that is."""
        while self._tracebacks and start < len(piece):
            end = _end_of_line(piece, start)
            yield from self._read_line(piece[start:end], now)
            start = end
        return start

    def _read_line(self, data: bytes, now: float) -> Iterator[JobMessage]:
        line = unprefixed(data.decode(errors="replace"), self._hosts.values())
        if not _is_drawn_over(data, line.text):
            yield from self._feed(line, now)
        if message := self._messages.read(line.text, line.rank):
            yield message

    def _feed(self, line: OutputLine, now: float) -> Iterator[JobMessage]:
        """Give a line to the traceback of its source, or begin one."""
        reader, text = self._tracebacks.get(line.source), without_bar(line.text)
        if reader is not None and not reader.feed(text):
            yield from self._ended(line.source)
            reader = None
        if reader is None and TRACEBACK in text and len(self._tracebacks) < MOST_TRACEBACKS:
            reader = self._tracebacks[line.source] = TracebackReader(now, line.rank)
            if host := host_before(line):
                self._hosts[line.source] = host
            reader.feed(text)

    def _ended(self, source: str) -> Iterator[JobMessage]:
        self._hosts.pop(source, None)
        reader = self._tracebacks.pop(source)
        if lines := reader.take():
            yield JobMessage(
                component="python", code="traceback", level="notice", advice="", text=reader.exception, rank=reader.rank,
                traceback="\n".join(lines), groups={},
            )  # fmt: skip


class JobMessages:
    """The tables in job/, ready to search."""

    def __init__(self, own: Path | None = None) -> None:
        """`own`: a file with rows of the user's own; each needs a hint. Raises ConfigError, with file and row."""
        self._table = MessageTable.load(TABLES, COMPONENTS, own, hints=True)
        self._rows_of_hints = Counter(row.hint for row in self._table.rows)
        hints = sorted({row.hint for row in self._table.rows} | {TRACEBACK})
        self.searches = tuple(tuple(hints[start :: -(-len(hints) // MOST_TEXTS)]) for start in range(-(-len(hints) // MOST_TEXTS)))
        """The texts that are searched for at once."""
        self._automata = [ahocorasick_rs.BytesAhoCorasick([text.encode() for text in texts], matchkind=ahocorasick_rs.MatchKind.LeftmostFirst) for texts in self.searches]

    def hits(self, piece: bytes) -> Iterator[int]:
        """Where hints begin, ascending."""
        return (place for place, _ in self.hits_with_hints(piece))

    def hits_with_hints(self, piece: bytes) -> Iterator[tuple[int, str]]:
        """The same, and which hint it is."""
        found = ([(start, texts[number]) for number, start, _ in automaton.find_matches_as_indexes(piece)] for texts, automaton in zip(self.searches, self._automata, strict=True))
        return heapq.merge(*found)

    def lines_of_hints(self) -> dict[str, int]:
        """How many lines with each hint are read of a piece; -1: all, of those that begin a traceback."""
        return {hint: MOST_LINES * count for hint, count in self._rows_of_hints.items()} | {TRACEBACK: -1}

    def read_line(self, line: str) -> JobMessage | None:
        """What a line says as it was printed; None where no row knows it."""
        plain = unprefixed(line)
        return self.read(plain.text, plain.rank)

    def read(self, text: str, rank: str) -> JobMessage | None:
        """What a line without its prefix says; None where no row knows it."""
        line = self._table.match(text)
        if line is None:
            return None
        row = line.row
        return JobMessage(
            component=row.component, code=row.code, level=row.level, advice=row.advice, text=text[:LONGEST_TEXT],
            rank=line.groups.get("rank") or rank, groups=line.groups,
        )  # fmt: skip


def _is_drawn_over(data: bytes, text: str) -> bool:
    """A progress bar, which another process or thread draws between the lines of a traceback."""
    return (data.endswith(b"\r") and TRACEBACK not in text) or (text.strip() != "" and not without_bar(text))


def _begin_of_line(piece: bytes, place: int) -> int:
    """A carriage return ends a line, too: whoever draws a progress bar goes back to its beginning."""
    begin = piece.rfind(b"\n", 0, place) + 1
    return max(begin, piece.rfind(b"\r", begin, place) + 1)


def _end_of_line(piece: bytes, start: int) -> int:
    found = _LINE.match(piece, start)
    return found.end() if found else len(piece)
