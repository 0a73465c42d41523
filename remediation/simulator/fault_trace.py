"""Fault traces: nodes that are lost and return, processes that die, nodes that become slow.

As a file: CSV with the heading `timestamp_s,event,node_id` and optionally `detail`. Events: add, remove, sev2, sev3,
slow (detail: its speed, below 1) and healthy. `remove` may name in `detail` how it symptom: lost, exception or hang.
"""

import csv
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from eagle_eye.errors import ConfigError
from eagle_eye.text_file import read_text

HEADING = ("timestamp_s", "event", "node_id")
LONGEST_SHOWN = 200
"""Characters of a line that a message repeats."""
ASSUMED_NODE_MTBF_S = 50_700 / 8 * 3600.0
"""Where a trace has no loss of a node: a GPU fails each 50,700 hours (Llama 3 report: 419 in 54 days of 16,384), 8 GPUs a node."""


class FaultKind(StrEnum):
    """What may happen; the values are those of the CSV file."""

    JOINED = "add"
    LOST = "remove"
    RESTART = "sev2"
    TRANSIENT = "sev3"
    SLOW = "slow"
    HEALTHY = "healthy"


class FaultSymptom(StrEnum):
    """How a fault shows (Unicron's four detection methods): it decides how long detection takes."""

    LOST = "lost"
    EXIT = "exit"
    EXCEPTION = "exception"
    HANG = "hang"


class TraceEvent(NamedTuple):
    """One event. Nodes are numbered from 0; several at once: a switch."""

    time_s: float
    kind: FaultKind
    nodes: tuple[int, ...]
    symptom: FaultSymptom = FaultSymptom.LOST
    speed: float = 1.0
    cause: str = ""


@dataclass(frozen=True, slots=True)
class FaultTrace:
    """The events of a cluster over time, the same for every policy."""

    name: str
    nodes: int
    """The most that are ever present at once; all are present at the start except `missing`."""
    duration_s: float
    events: tuple[TraceEvent, ...]
    """By time."""
    missing: tuple[int, ...] = ()
    """Nodes that are not there at the start."""
    node_mtbf_s: float = ASSUMED_NODE_MTBF_S
    """Mean time between failures of a node: all that the planner knows of the future."""

    def count(self, *kinds: FaultKind) -> int:
        """Events of these kinds."""
        return sum(each.kind in kinds for each in self.events)

    def joined_with(self, other: "FaultTrace") -> "FaultTrace":
        """Both at once, e.g. the faults of nodes and those of processes. The cluster is this one's."""
        events = sorted((*self.events, *other.events), key=lambda each: each.time_s)
        return replace(self, events=tuple(events), duration_s=max(self.duration_s, other.duration_s))


def observed_mtbf_s(nodes: int, duration_s: float, events: Iterable[TraceEvent]) -> float:
    """Mean time between losses of one node; the usual one where none was lost."""
    lost = sum(len(each.nodes) for each in events if each.kind is FaultKind.LOST)
    return nodes * duration_s / lost if lost and duration_s > 0 else ASSUMED_NODE_MTBF_S


class _Row(NamedTuple):
    """A line of a file that has been checked by itself."""

    line: int
    time_s: float
    kind: FaultKind
    node: str
    symptom: FaultSymptom
    speed: float


def read_trace(paths: Sequence[Path]) -> FaultTrace:
    """The files as one trace. Nodes added at the first moment are the cluster at the start.

    Node names become numbers; a new node takes the lowest number that is free, so the cluster is as large as the most
    nodes that were ever there at once. Raises ConfigError with the file and the line for anything that cannot be.
    """
    where = [(path, row) for path in paths for row in _rows(path)]
    if not where:
        raise ConfigError(f"{paths[0]}: the trace has no event; it needs lines of {','.join(HEADING)}")
    where.sort(key=lambda each: each[1].time_s)
    return _Numbering().trace(where)


def _rows(path: Path) -> Iterator[_Row]:
    try:
        text = read_text(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read as a trace: {error.strerror}") from error
    lines = _lines(path, text)
    _, heading = next(lines, (1, []))
    if tuple(heading[:3]) != HEADING:
        raise ConfigError(f"{path}, line 1: the heading is {','.join(heading)[:LONGEST_SHOWN]!r}; it must be {','.join(HEADING)!r}")
    before = 0.0
    for number, fields in lines:
        if not fields:
            continue
        row = _row(f"{path}, line {number}", number, fields, len(heading))
        if row.time_s < before:
            raise ConfigError(f"{path}, line {number}: time {row.time_s:g} comes after {before:g}; sort the trace by time")
        before = row.time_s
        yield row


def _lines(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, its fields). Raises ConfigError for a field that is too long for one, or a NUL."""
    reader = csv.reader(text.splitlines())
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ConfigError(f"{path}, line {reader.line_num}: {error}; it must be {','.join(HEADING)}, is this another program's file?") from error
        yield reader.line_num, fields


def _row(place: str, line: int, fields: list[str], columns: int) -> _Row:
    if not 3 <= len(fields) <= max(columns, 4):
        raise ConfigError(f"{place}: {len(fields)} fields ({','.join(fields)[:LONGEST_SHOWN]!r}), it must be {','.join(HEADING)}; the file seems torn here")
    try:
        time_s = float(fields[0])
    except ValueError:
        time_s = math.nan
    if not (math.isfinite(time_s) and time_s >= 0):
        raise ConfigError(f"{place}: timestamp_s is {fields[0]!r}; it must be seconds, 0 or more")
    if fields[1] not in set(FaultKind):
        raise ConfigError(f"{place}: event is {fields[1]!r}; it must be one of {', '.join(FaultKind)}")
    if not fields[2]:
        raise ConfigError(f"{place}: node_id is empty")
    kind, detail = FaultKind(fields[1]), fields[3] if len(fields) > 3 else ""
    return _Row(line, time_s, kind, fields[2], _symptom(place, kind, detail), _speed(place, kind, detail))


def _symptom(place: str, kind: FaultKind, detail: str) -> FaultSymptom:
    usual = {FaultKind.RESTART: FaultSymptom.EXIT, FaultKind.TRANSIENT: FaultSymptom.HANG}.get(kind, FaultSymptom.LOST)
    if kind is FaultKind.SLOW or not detail:
        return usual
    if detail not in set(FaultSymptom):
        raise ConfigError(f"{place}: detail is {detail!r}; of {kind} it must be one of {', '.join(FaultSymptom)}, or empty")
    return FaultSymptom(detail)


def _speed(place: str, kind: FaultKind, detail: str) -> float:
    if kind is not FaultKind.SLOW:
        return 1.0
    try:
        speed = float(detail)
    except ValueError:
        speed = math.nan
    if not 0 < speed < 1:
        raise ConfigError(f"{place}: detail is {detail!r}; of slow it must be the node's speed, above 0 and below 1")
    return speed


class _Numbering:
    """Names of nodes → numbers, in the order of time."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}
        self._seen: set[str] = set()
        self._free: list[int] = []
        self._most = 0
        self._happenings: list[TraceEvent] = []

    def trace(self, rows: Sequence[tuple[Path, _Row]]) -> FaultTrace:
        start_s = rows[0][1].time_s
        there = itertools.takewhile(lambda each: each[1].time_s == start_s and each[1].kind is FaultKind.JOINED, rows)
        first = sum(self._add(f"{path}, line {row.line}", row.node) >= 0 for path, row in there)
        for path, row in rows[first:]:
            self._take(f"{path}, line {row.line}", row, start_s)
        duration_s = rows[-1][1].time_s - start_s
        name = "+".join(dict.fromkeys(path.stem for path, _ in rows))
        mtbf_s = observed_mtbf_s(self._most, duration_s, self._happenings)
        return FaultTrace(name, self._most, duration_s, tuple(self._happenings), tuple(range(first, self._most)), mtbf_s)

    def _add(self, place: str, node: str) -> int:
        if node in self._number:
            raise ConfigError(f"{place}: node {node!r} is added, but it is there already")
        number = self._free.pop(0) if self._free else self._most
        self._most = max(self._most, number + 1)
        self._number[node] = number
        self._seen.add(node)
        return number

    def _take(self, place: str, row: _Row, start_s: float) -> None:
        if row.kind is FaultKind.JOINED:
            number = self._add(place, row.node)
        elif row.node not in self._number:
            if row.kind is not FaultKind.LOST and row.node in self._seen:
                return  # it is out: nothing happens to it
            raise ConfigError(f"{place}: event {row.kind} of node {row.node!r}, which is not there at that time")
        elif row.kind is FaultKind.LOST:
            number = self._number.pop(row.node)
            self._free = sorted([*self._free, number])
        else:
            number = self._number[row.node]
        self._happenings.append(TraceEvent(row.time_s - start_s, row.kind, (number,), row.symptom, row.speed))
