"""The marks of a partition's owner: a tick each second, a cut as soon as an event was read."""

from collections.abc import Callable

import msgspec

from eagle_eye import wire
from eagle_eye.clock import Clock
from eagle_eye.stream import OBSERVATIONS, Position, Stream
from eagle_eye.types import Event, Mark

BOOTSTRAP_TICKS = 60
"""So often the bootstrap records are appended again: a reader may begin there."""
BootstrapRecords = Callable[[bool], list[tuple[str, bytes]]]
"""(these are the first ones of this owner) → (key, value) of the bootstrap records; an empty key is replaced by the marks' own."""


class WatermarkWriter:
    """Of one owner. Marks that were appended come back with the other records, and count from then on."""

    def __init__(self, stream: Stream, partition: int, *, clock: Clock, generation: int, tick_s: float) -> None:
        self.marks = 0
        """How many were appended."""
        self._stream = stream
        self._partition = partition
        self._clock = clock
        self._generation = generation
        self._tick_s = tick_s
        self._key = ""
        self._cut_due = False
        self._next_tick = 0.0
        self._numbered = 0
        self._outstanding = 0
        """Number of a mark that was appended and not read back yet; 0 = none."""
        self._ticks = 0

    def begin(self) -> None:
        """The first tick comes a whole one later."""
        self._key = mark_key(self._stream, self._partition)
        self._next_tick = self._clock.monotonic() + self._tick_s

    def begin_anew(self) -> None:
        """The stream has lost what it held: the next tick brings the bootstrap records again."""
        self._outstanding = self._ticks = 0

    def went_away(self) -> None:
        """Whether the last mark has arrived is not known."""
        self._outstanding = 0

    def came_back(self, newest: int) -> None:
        """A cut asks for an answer and judges nobody; the tick comes a whole one later, so that what was spooled can arrive before it."""
        self._append("cut", newest, [])
        self._next_tick = self._clock.monotonic() + self._tick_s

    def saw(self, record: wire.Sealed) -> None:
        """What was read."""
        if isinstance(record, Event) and not self._outstanding:
            self._cut_due = True
        elif isinstance(record, Mark) and record.number >= self._outstanding:
            self._outstanding = 0

    def append_due(self, newest: int, bootstrap: BootstrapRecords) -> Position | None:
        """Append what is due; `newest`: highest number seen. Returns where the bootstrap records begin, if there was one."""
        now = self._clock.monotonic()
        if self._cut_due:
            self._append("cut", newest, [])
        if now < self._next_tick or self._outstanding:
            return None
        before = bootstrap(self._ticks == 0) if self._ticks % BOOTSTRAP_TICKS == 0 else []
        places = self._append("tick", newest, [(key or self._key, value) for key, value in before])
        self._ticks += 1
        following = self._next_tick + self._tick_s
        self._next_tick = following if following > now else now + self._tick_s  # missed ticks are not made up
        return places[0] if before else None

    def until_tick(self, timeout: float) -> float:
        """Seconds until the next tick, at most `timeout`."""
        return min(timeout, self._next_tick - self._clock.monotonic())

    def _append(self, kind: str, newest: int, before: list[tuple[str, bytes]]) -> list[Position]:
        self._numbered = max(self._numbered, newest) + 1
        mark = msgspec.convert({"mark": kind, "generation": self._generation, "number": self._numbered, "time": self._clock.now()}, Mark)
        places = self._stream.append(OBSERVATIONS, [*before, (self._key, wire.encode(mark))])
        self._outstanding = mark.number
        self._cut_due = False
        self.marks += 1
        return places


def mark_key(stream: Stream, partition: int) -> str:
    """A key that goes to the partition: marks and bootstrap records need one."""
    return next(
        key
        for key in (f"partition-{partition}-{index}" for index in range(1_000_000))
        if stream.partition_of(OBSERVATIONS, key) == partition
    )
