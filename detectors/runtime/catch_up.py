"""Catch-up of a new owner of a partition: its evaluator reads the last ten minutes again, without reporting anything.

Ten minutes take seconds to evaluate on a busy machine, so evaluation starts after the newest part of them; a second evaluator reads all
of them in the background and replaces the first one when it has caught up.
"""

import math
import threading
from collections.abc import Callable, Collection

import msgspec

from eagle_eye import wire
from eagle_eye.errors import StreamUnavailable, WireError
from eagle_eye.record_writer import read_record
from eagle_eye.stream import OBSERVATIONS, Stream
from eagle_eye.stream.start_offset import offset_before
from eagle_eye.types import Baseline, ConfigChange, Layout, SchemaRecord

from .evaluator import Evaluator
from .hot_window import KEPT_SECONDS

BOOTSTRAP = "eagle-eye.bootstrap"
"""Consumer group whose committed offset is that of the newest bootstrap records."""
BOOTSTRAP_S = 90.0
"""Within so many seconds before any record lie bootstrap records (mark_writer.BOOTSTRAP_TICKS)."""
AT_ONCE, AT_ONCE_S = 8_000, 30.0
"""The newest records and seconds, whichever is less, that are read again before evaluation starts: a fraction of a second of work, also for several partitions at once."""
HANDOVER_RECORDS, HANDOVER_S = 2048, 3.0
"""The second evaluator takes over when it is at most so many records, and seconds of records, behind."""
_READ = 2048
_PAUSE_S = 0.001
"""Pause after each read of the second evaluator, so that live evaluation goes first."""
_IDLE_S = 0.05
"""The same where it has read all that the first one has."""
_RETRY_S = 0.5
_END_S = 30.0
_BOOTSTRAP_KINDS: tuple[type[msgspec.Struct], ...] = (SchemaRecord, Layout, Baseline, ConfigChange)


class CatchUp:
    """Feeds past records to a muted evaluator; their findings were written by an earlier owner."""

    def __init__(self, stream: Stream, partition: int, evaluator: Evaluator, offset: int) -> None:
        self.evaluator = evaluator
        self.reader = wire.RecordReader()
        self.offset = offset
        """Of the next message to read."""
        self.time = math.nan
        """When the last message that was read was written; NaN before the first."""
        self._stream = stream
        self._partition = partition
        evaluator.muted = True

    def advance(self, end: int, *, only: Collection[type[msgspec.Struct]] = ()) -> bool:
        """Read one batch of messages before `end`; False when none is left. `only`: take records of these types alone.

        Raises StreamUnavailable.
        """
        if self.offset >= end:
            return False
        messages = self._stream.read(OBSERVATIONS, self._partition, self.offset, min(_READ, end - self.offset))
        messages = [message for message in messages if message.offset < end]
        for message in messages:
            self.offset, self.time = message.offset + 1, message.time
            if only and wire.OTHERS.get(int.from_bytes(message.value[3:4])) not in only:
                continue
            try:
                self.evaluator.take(read_record(self.reader, message))
            except WireError:
                continue  # it is in the dead-letter topic already
        return bool(messages)

    def finish(self) -> None:
        """Unmute the evaluator."""
        self.evaluator.muted = False


def catch_up(stream: Stream, partition: int, evaluator: Evaluator, end: int, stopped: Callable[[], bool]) -> tuple[wire.RecordReader, int | None]:
    """Feed an evaluator the records before `end`: the newest part of the last ten minutes, with the bootstrap records before it.

    All of them where they are no more than that part, or where nothing says where their bootstrap records are. Returns the
    reader to continue with, and the offset at which the ten minutes begin if not all of them were read. Raises StreamUnavailable.
    """
    begin = offset_before(stream, OBSERVATIONS, partition, end, KEPT_SECONDS)
    bootstrap = stream.committed(BOOTSTRAP, OBSERVATIONS, partition)
    newest = max(end - AT_ONCE, offset_before(stream, OBSERVATIONS, partition, end, AT_ONCE_S))
    if newest <= begin or bootstrap is None or not begin <= bootstrap <= end:
        first = newest = begin
    elif bootstrap <= newest:
        first = bootstrap
    else:  # of the newest part the records before it are needed, too
        first = max(begin, offset_before(stream, OBSERVATIONS, partition, newest, BOOTSTRAP_S))
    past = CatchUp(stream, partition, evaluator, first)
    while not stopped() and past.advance(newest, only=_BOOTSTRAP_KINDS):
        pass
    while not stopped() and past.advance(end):
        pass
    past.finish()
    return past.reader, begin if newest > begin else None


class BackgroundCatchUp:
    """A second evaluator that reads all of the ten minutes in its own thread and then replaces the first one."""

    def __init__(self, stream: Stream, partition: int, evaluator: Evaluator, begin: int, goal: Callable[[], tuple[int, float]]) -> None:
        """`evaluator`: a new one. `goal`: returns the offset that the first evaluator has reached, and when its last record was written (NaN: not known yet)."""
        self._catch_up = CatchUp(stream, partition, evaluator, begin)
        self._goal = goal
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"catch-up-{partition}", daemon=True)
        self._thread.start()

    @property
    def evaluator(self) -> Evaluator:
        """The one that reads."""
        return self._catch_up.evaluator

    def abandon(self) -> None:
        """It ends after the record that it is at; returns at once."""
        self._stop.set()

    @property
    def ready(self) -> bool:
        """Little is left: `take_over` is short."""
        return not self._thread.is_alive() and not self._stop.is_set()

    def take_over(self, first: Evaluator) -> tuple[Evaluator, wire.RecordReader]:
        """Read the rest and take over the open findings: the evaluator and reader to continue with. Raises StreamUnavailable.

        What the first evaluator claims and this one, which has seen more, does not is withdrawn.
        """
        while self._catch_up.advance(self._goal()[0]):
            pass
        self._catch_up.evaluator.succeed(first)
        self._catch_up.finish()
        return self._catch_up.evaluator, self._catch_up.reader

    def stop(self) -> None:
        """Abandon the catch-up and wait for its thread, unless a detector holds that."""
        self.abandon()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._stop.is_set() and self._is_behind():
            try:
                more = self._catch_up.advance(self._goal()[0])
                self._stop.wait(_PAUSE_S if more else _IDLE_S)
            except StreamUnavailable:
                self._stop.wait(_RETRY_S)

    def _is_behind(self) -> bool:
        offset, time = self._goal()
        return offset - self._catch_up.offset > HANDOVER_RECORDS or not time - self._catch_up.time <= HANDOVER_S
