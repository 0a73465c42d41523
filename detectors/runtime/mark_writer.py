"""Writes the marks (watermarks) of a partition: a tick each second, a cut as soon as an event was read."""

from collections.abc import Callable

import msgspec

from eagle_eye import wire
from eagle_eye.clock import Clock
from eagle_eye.stream import OBSERVATIONS, Position, Stream
from eagle_eye.types import Event, Mark

from .tick_load import TickLoad

BOOTSTRAP_TICKS = 60
"""The bootstrap records are appended every so many ticks: a reader may begin there."""
BootstrapRecords = Callable[[bool], list[tuple[str, bytes]]]
"""(first time for this owner) → (key, value) of the bootstrap records; an empty key is replaced by the key of the marks."""


class MarkWriter:
    """Appends the marks of one owner. A mark takes effect when it is read back with the other records."""

    def __init__(self, stream: Stream, partition: int, *, clock: Clock, generation: int, tick_s: float) -> None:
        self.count = 0
        """Marks appended so far."""
        self.load = TickLoad()
        self._news = ""
        self._stream = stream
        self._partition = partition
        self._clock = clock
        self._generation = generation
        self._tick_s = tick_s
        self._key = ""
        self._cut_due = False
        self._next_tick = 0.0
        self._highest = 0
        self._unread = 0
        """Number of a mark that was appended and not read back yet; 0 = none."""
        self._ticks = 0

    def start(self) -> None:
        """Schedule the first tick one interval from now."""
        self._key = mark_key(self._stream, self._partition)
        self._next_tick = self._clock.monotonic() + self._tick_s

    def reset(self) -> None:
        """The stream was reset: the next tick is preceded by the bootstrap records."""
        self._unread = self._ticks = 0

    def interrupted(self) -> None:
        """The stream is unavailable: it is not known whether the last mark was appended."""
        self._unread = 0

    def recovered(self, newest: int) -> None:
        """The stream is available again: append a cut, and schedule the tick one interval later, after spooled records."""
        self._append("cut", newest, [])
        self._next_tick = self._clock.monotonic() + self._tick_s

    def observe(self, record: wire.Sealed) -> None:
        """A record was read: an event asks for a cut, a mark of ours is no longer unread."""
        if isinstance(record, Event) and not self._unread:
            self._cut_due = True
        elif isinstance(record, Mark) and record.number >= self._unread:
            self._unread = 0

    def append_due(self, newest: int, bootstrap: BootstrapRecords) -> Position | None:
        """Append what is due; `newest`: highest number seen. Returns the position of the bootstrap records, if they were due."""
        now = self._clock.monotonic()
        if self._cut_due:
            self._append("cut", newest, [])
        if now < self._next_tick or self._unread:
            return None
        self._news = self.load.tick(now - self._next_tick, self._tick_s)
        before = bootstrap(self._ticks == 0) if self._ticks % BOOTSTRAP_TICKS == 0 else []
        positions = self._append("tick", newest, [(key or self._key, value) for key, value in before])
        self._ticks += 1
        following = self._next_tick + self._tick_s
        self._next_tick = following if following > now else now + self._tick_s  # missed ticks are not made up
        return positions[0] if before else None

    def take_news(self) -> str:
        """What a person is to be told about late ticks, once; '' if nothing."""
        news, self._news = self._news, ""
        return news

    def until_tick(self, timeout: float) -> float:
        """Seconds until the next tick, at most `timeout`."""
        return min(timeout, self._next_tick - self._clock.monotonic())

    def _append(self, kind: str, newest: int, before: list[tuple[str, bytes]]) -> list[Position]:
        self._highest = max(self._highest, newest) + 1
        mark = msgspec.convert({"mark": kind, "generation": self._generation, "number": self._highest, "time": self._clock.now(), "stretch": self.load.stretch}, Mark)
        positions = self._stream.append(OBSERVATIONS, [*before, (self._key, wire.encode(mark))])
        self._unread = mark.number
        self._cut_due = False
        self.count += 1
        return positions


def mark_key(stream: Stream, partition: int) -> str:
    """A key that goes to the partition: marks and bootstrap records need one."""
    return next(
        key
        for key in (f"partition-{partition}-{index}" for index in range(1_000_000))
        if stream.partition_of(OBSERVATIONS, key) == partition
    )
