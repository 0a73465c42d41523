"""The hot window: the last minutes of a job's tick frames, read by detectors through `frame.past`.

It holds the frames' own arrays (which are never changed), so each value is in memory once for all detectors. Columns
follow `moved`: when entities join or leave, `past` returns the columns of the newest frame.

It reaches back as far as the detectors say (`past_s`), and costs nothing where none of them looks back: a node of eight GPUs with sixty
metrics fills 5 MB in ten minutes, and those of 10,000 nodes nobody's memory.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.protocols import Detector
from eagle_eye.types import Floats, Integers, Kind

KEPT_SECONDS = 600.0
"""How far `past` reaches back at most."""
LIMIT_BYTES = 2 << 30
"""A larger job keeps fewer seconds: 80,000 GPUs with 30 metrics fill 9.6 MB a tick, hence 220 ticks."""


class _Row(NamedTuple):
    """Metrics of the entities of one kind at one tick."""

    time: float
    era: int
    """Rows of one era have the same columns."""
    metrics: Mapping[str, Floats]
    bytes: int


class _Rows:
    """The rows of one kind, oldest first."""

    def __init__(self) -> None:
        self.rows: deque[_Row] = deque()
        self.columns = 0
        self._era = 0
        self._origins: dict[int, Integers] = {}
        """Era → for each present column its column then, −1 = was not there."""

    def add(self, time: float, metrics: Mapping[str, Floats], moved: Integers) -> int:
        """Append the next tick's arrays; returns their size in bytes."""
        if len(moved) != self.columns or not np.array_equal(moved, np.arange(len(moved))):
            self._remap(moved)
        size = sum(values.nbytes for values in metrics.values())
        self.rows.append(_Row(time, self._era, metrics, size))
        return size

    def drop_oldest(self) -> int:
        """Drop the oldest tick; returns its size in bytes."""
        row = self.rows.popleft()
        if not self.rows or self.rows[0].era != row.era:
            self._origins.pop(row.era, None)
        return row.bytes

    def past(self, name: str, after: float) -> Floats:
        """ticks × present columns of the rows later than `after`."""
        recent = [row for row in self.rows if row.time > after]
        result = np.full((len(recent), self.columns), np.nan, dtype=np.float32)
        begin = 0
        for era, group in groupby(recent, key=lambda row: row.era):
            rows = list(group)
            self._fill(result[begin : begin + len(rows)], rows, name, self._origins.get(era))
            begin += len(rows)
        return result

    def _remap(self, moved: Integers) -> None:
        """The columns changed: start a new era and map the columns of the older ones to the new columns."""
        if self.rows and self.rows[-1].era == self._era:
            self._origins[self._era] = np.arange(self.columns, dtype=np.int64)
        known = moved >= 0
        for era, origin in self._origins.items():
            remapped = np.full(len(moved), -1, dtype=np.int64)
            remapped[known] = origin[moved[known]]
            self._origins[era] = remapped
        self._era += 1
        self.columns = len(moved)

    def _fill(self, target: Floats, rows: list[_Row], name: str, origin: Integers | None) -> None:
        for line, row in zip(target, rows, strict=True):
            values = row.metrics.get(name)
            if values is None:
                continue
            if origin is None:
                line[:] = values
            else:
                present = origin >= 0
                line[present] = values[origin[present]]


def depth_of(detectors: Iterable[Detector]) -> float:
    """How many seconds of past these detectors ask for; 0: none of them does."""
    asked = [getattr(detector, "past_s", 0.0) for detector in detectors]
    return min(KEPT_SECONDS, max((float(seconds) for seconds in asked if isinstance(seconds, int | float)), default=0.0))


class HotWindow:
    """The last `seconds` of one job's tick frames, at most `limit_bytes` of them; 0 seconds: nothing is kept, and `past` raises LookupError."""

    def __init__(self, seconds: float = KEPT_SECONDS, limit_bytes: int = LIMIT_BYTES) -> None:
        self.seconds = seconds
        self._limit = limit_bytes
        self._kinds: dict[Kind, _Rows] = {}
        self._bytes = 0
        self._newest: tuple[int, int] | None = None
        self._time = float("-inf")

    def add(self, frame: Frame) -> Frame:
        """Append a tick frame; returns it with a working `past`. A cut frame is returned unchanged."""
        if not frame.tick:
            return frame
        if not self.seconds:
            self._kinds.clear()
            self._bytes = 0
            return frame
        for kind, entities in frame.entities.items():
            rows = self._kinds.setdefault(kind, _Rows())
            moved = frame.moved.get(kind)
            if moved is None:
                moved = np.full(len(entities), -1, dtype=np.int64)
            self._bytes += rows.add(frame.time, frame.metrics.get(kind, {}), moved)
        self._newest = (frame.generation, frame.number)
        self._time = frame.time
        self._drop_old()
        mine = self._newest

        def past(kind: Kind, name: str, seconds: float) -> Floats:
            if self._newest != mine:
                raise LookupError("this frame is no longer the newest: read its past while it is evaluated")
            return self.past(kind, name, seconds)

        return replace(frame, past=past)

    def past(self, kind: Kind, name: str, seconds: float) -> Floats:
        """float32, ticks of the last `seconds` × present columns, oldest first; NaN where nothing was read."""
        rows = self._kinds.get(kind)
        if rows is None:
            return np.empty((0, 0), dtype=np.float32)
        return rows.past(name, self._time - seconds)

    @property
    def nbytes(self) -> int:
        """Bytes of telemetry held."""
        return self._bytes

    def _drop_old(self) -> None:
        for rows in self._kinds.values():
            while rows.rows and not self._time - self.seconds < rows.rows[0].time <= self._time:  # a clock that was set back leaves rows of the future
                self._bytes -= rows.drop_oldest()
        while self._bytes > self._limit:
            largest = max(self._kinds.values(), key=lambda rows: sum(row.bytes for row in rows.rows))
            if len(largest.rows) <= 1:
                return
            self._bytes -= largest.drop_oldest()
