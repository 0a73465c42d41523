"""A writer that never waits: records go to the stream in the background, and to disk while it is away.

What is lost, and when: records that were written in the last moment before a kill -9 (they are in
memory for about 1 ms; for one time-out of the stream at the moment when it goes away), and what the
bound of the spool refuses. Beyond `max_bytes` the newest batches are refused, so that an outage is
recorded from its beginning; what was written with keep=True (events) is taken up to twice that.

A stream that may forget what it acknowledged (a broker's memory) is given the groups whose commits confirm a record:
until then it is kept here, and sent again when the stream was reset. See `uncommitted_records`.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from eagle_eye.clock import Clock
from eagle_eye.errors import StreamError, StreamRefused
from eagle_eye.stream import Stream
from eagle_eye.stream.spool_file import SpooledRecord, SpoolFile, size_of
from eagle_eye.stream.uncommitted_records import UncommittedRecords
from eagle_eye.types import Notice

BATCH_RECORDS = 1_024
BATCH_BYTES = 4 << 20
RETRY_S = 0.25
CONFIRM_S = 5.0
"""Between two looks at what has been confirmed, half as much or half again by chance; only while there is something to confirm. Each is two
requests to a broker. A stream that has begun anew is found at once by who appends to it, or was cut off from it."""
MEMORY_BYTES = 8 << 20
"""Room for records in memory: before the background thread takes them, and while the spool's disk is full."""
_log = logging.getLogger(__name__)


class SpoolStatus(NamedTuple):
    """How the writer stands."""

    waiting: int
    """Records in memory."""
    spooled: int
    """Records on disk."""
    dropped: int
    """Records that were refused since the start."""
    oldest_age_s: float
    """Since when the oldest record waits; 0 if none does."""
    away: bool
    """The stream did not take the last batch."""
    unconfirmed: int = 0
    """Records that the stream acknowledged, kept until their reader has done them."""


class SpooledWriter:
    """Appends to a stream in order, in one background thread. Safe for threads."""

    def __init__(
        self,
        stream: Stream,
        directory: Path,
        *,
        clock: Clock,
        name: str = "records",
        adopts: str = "",
        max_bytes: int = 64 << 20,
        memory_bytes: int = MEMORY_BYTES,
        retry_s: float = RETRY_S,
        confirmed_by: Mapping[str, str] | None = None,
        confirm_s: float = CONFIRM_S,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> None:
        """Begin to write; what an earlier writer left in `directory/name.spool` goes first.

        adopts: pattern of names of files in `directory`: what processes that have ended left in them goes, too. A process that is stopped has not ended, and keeps its own.
        confirmed_by: topic → consumer group whose commits confirm its records, for a stream that may forget.
        on_notice: called in the background thread, once per change: stream.away, stream.recovered, stream.reset,
        spool.dropped, spool.failing, spool.removed, spool.torn.
        """
        self._stream = stream
        self._clock = clock
        self._max_bytes = max_bytes
        self._memory_bytes = memory_bytes
        self._retry_s = retry_s
        self._on_notice = on_notice
        self._file = SpoolFile(directory / f"{name}.spool")
        if adopts:
            _adopt(self._file, adopts)
        self._changed = threading.Condition()
        self._incoming: deque[tuple[SpooledRecord, bool]] = deque()
        self._incoming_bytes = 0
        self._taken: list[SpooledRecord] = []
        self._overflow: deque[SpooledRecord] = deque()  # behind the spool file, when its disk is full
        self._overflow_bytes = 0
        self._unconfirmed = UncommittedRecords(stream, confirmed_by or {})
        self._confirm_s = confirm_s
        self._look_at = self._next_look()
        self._again: deque[SpooledRecord] = deque()  # forgotten by the stream: goes before everything else
        self._dropped = 0
        self._retry_at = self._retry_disk_at = self._renew_at = 0.0
        self._told_dropped = self._told_failing = self._told_removed = self._away = self._closing = self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"spool-{name}", daemon=True)
        if self._file.cut:
            self._tell("spool.torn", f"{self._file.path}: a torn tail of {self._file.cut} bytes was cut off")
        if self._file.damaged:
            self._tell("spool.torn", f"{self._file.path}: {self._file.damaged} bytes are damaged and were passed over; check its disk")
        self._thread.start()

    # --- the caller's side: returns at once, never raises -------------------------------------------------------

    def write(self, topic: str, key: str, value: bytes, *, keep: bool = False) -> None:
        """Hand a record over; keep=True for what must not be lost first (events)."""
        record = SpooledRecord(topic, key, value, self._clock.now())
        room = self._memory_bytes * (2 if keep else 1)
        with self._changed:
            if self._closing or self._incoming_bytes + len(value) > room:
                self._dropped += 1
                return
            self._incoming.append((record, keep))
            self._incoming_bytes += len(value)
            self._changed.notify_all()

    def status(self) -> SpoolStatus:
        """How many records wait where, and since when."""
        with self._changed:
            waiting = len(self._incoming) + len(self._taken) + len(self._overflow) + len(self._again)
            heads = [self._file.oldest] + [queue[0].time for queue in (self._again, self._taken, self._overflow) if queue]
            if self._incoming:
                heads.append(self._incoming[0][0].time)
            oldest = min((head for head in heads if head is not None), default=None)
            age = 0.0 if oldest is None else max(0.0, self._clock.now() - oldest)
            return SpoolStatus(waiting, self._file.count, self._dropped + self._file.lost, age, self._away, len(self._unconfirmed))

    def flush(self, timeout: float) -> bool:
        """Wait until the stream has everything; False if it does not within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(self._empty, timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Hand everything to the stream or, if it is away, to the spool file, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        if not self._thread.is_alive() and not self._closed:
            self._closed = True
            self._file.close()

    def _empty(self) -> bool:
        return not (self._incoming or self._taken or self._backlog())

    # --- the background thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        ended = False
        while not ended:
            with self._changed:
                self._changed.wait_for(self._something_to_do, self._patience())
                taken, ended = self._take(), self._closing
            try:
                self._renew_removed()
                self._look()
                self._pass_on(taken)
            except Exception as error:  # noqa: BLE001 (boundary: a writer that dies in silence loses everything after)
                self._tell("spool.failing", f"a batch of {len(taken)} records was lost: {error!r}")
                self._dropped += len(taken)
            with self._changed:
                self._taken = []
                ended = ended and not self._incoming
                self._changed.notify_all()
            self._tell_dropped()
        try:
            self._look(last=True)
        except Exception as error:  # noqa: BLE001 (boundary: what is kept is saved in any case)
            _log.warning("what the stream has confirmed is not known: %r", error)
        self._save_unconfirmed()

    def _patience(self) -> float | None:
        """How long the thread may sleep while nothing is written."""
        if self._backlog():
            return self._retry_s
        return self._confirm_s if self._unconfirmed else None

    def _something_to_do(self) -> bool:
        return bool(self._incoming) or self._closing

    def _backlog(self) -> bool:
        return bool(self._again or self._unconfirmed.lost or self._file.count or self._overflow)

    def _take(self) -> list[tuple[SpooledRecord, bool]]:
        taken: list[tuple[SpooledRecord, bool]] = []
        size = 0
        while self._incoming and len(taken) < BATCH_RECORDS and size < BATCH_BYTES:
            taken.append(self._incoming.popleft())
            size += len(taken[-1][0].value)
        self._incoming_bytes -= size
        self._taken = [record for record, _keep in taken]
        return taken

    def _pass_on(self, taken: list[tuple[SpooledRecord, bool]]) -> None:
        if not self._backlog():
            done = self._append([record for record, _keep in taken])
            self._spool(taken[done:])
            return
        self._spool(taken)
        if not self._away or (self._clock.monotonic() >= self._retry_at and not self._closing):
            self._drain()

    def _append(self, records: list[SpooledRecord]) -> int:
        """Hand records to the stream in order; returns how many it has taken, or will never take."""
        done = 0
        while done < len(records):
            topic = records[done].topic
            run = done
            while run < len(records) and records[run].topic == topic:
                run += 1
            if not self._append_run(topic, records[done:run]):
                break
            done = run
        return done

    def _append_run(self, topic: str, records: list[SpooledRecord]) -> bool:
        try:
            if self._away:
                self._look_now()  # before anything is written behind what was forgotten
                if self._again and records[0] is not self._again[0]:
                    return False
            places = self._stream.append(topic, [(record.key, record.value) for record in records])
        except StreamRefused as error:
            return self._refused(topic, records, error)
        except (StreamError, OSError) as error:
            self._set_away(error)
            return False
        self._unconfirmed.keep(topic, records, places)
        self._set_back()
        return True

    def _refused(self, topic: str, records: list[SpooledRecord], error: StreamRefused) -> bool:
        """One of them can never be taken: find it, so that it does not block the others for ever."""
        if len(records) > 1:
            half = len(records) // 2
            return self._append_run(topic, records[:half]) and self._append_run(topic, records[half:])
        self._dropped += 1
        self._tell("spool.dropped", f"a record was refused for good: {error}")
        return True

    def _spool(self, taken: list[tuple[SpooledRecord, bool]]) -> None:
        room = self._max_bytes - self._file.bytes_waiting - self._overflow_bytes
        for record, keep in taken:
            size = size_of(record)
            if size > room + (self._max_bytes if keep else 0):
                self._dropped += 1
                continue
            room -= size
            with self._changed:
                self._overflow.append(record)
                self._overflow_bytes += size
        if self._overflow and (self._closing or self._clock.monotonic() >= self._retry_disk_at):
            self._save_overflow()
        self._shed()

    def _save_overflow(self) -> None:
        """Move what is in memory to the disk; if the disk refuses, keep the oldest in memory within its bound."""
        try:
            self._file.append(list(self._overflow))
        except OSError as error:
            self._tell_failing(error)
        else:
            with self._changed:
                self._overflow.clear()
                self._overflow_bytes = 0
            self._told_failing = False

    def _shed(self) -> None:
        with self._changed:
            while self._overflow_bytes > self._memory_bytes:
                self._overflow_bytes -= size_of(self._overflow.pop())
                self._dropped += 1

    def _drain(self) -> None:
        """Hand on what waits, oldest first, until the stream refuses or nothing is left."""
        done = self._append(list(self._again))
        for _ in range(done):
            self._again.popleft()
        if self._again:
            return
        while self._file.count:
            records, position = self._file.peek(BATCH_RECORDS, BATCH_BYTES)
            done = self._append(records)
            if done < len(records):
                _, position = self._file.peek(done, BATCH_BYTES)
            self._file.drop(done, position)
            if done < len(records):
                return
        done = self._append(list(self._overflow))
        with self._changed:
            for _ in range(done):
                self._overflow_bytes -= size_of(self._overflow.popleft())

    def _renew_removed(self) -> None:
        """Make the spool anew where it was deleted under us, with what waited in it. Where that cannot be, what was deleted is written on: it lasts as long as we do."""
        if not self._file.removed or self._clock.monotonic() < self._renew_at:
            return
        try:
            fresh = self._file.renewed()
        except (OSError, StreamError) as error:
            self._renew_at = self._clock.monotonic() + self._retry_s
            if not self._told_removed:
                self._told_removed = True
                self._tell("spool.removed", f"{self._file.path} was deleted or moved while it was in use, and cannot be made anew ({error}): {self._file.count} records that wait in it last as long as this process")
        else:
            with self._changed:
                self._file, self._told_removed = fresh, False
            self._tell(
                "spool.removed",
                f"{fresh.path} was deleted or moved while it was in use; it was made anew with the {fresh.count} records that wait. Leave the state "
                "directory alone while agents, launchers and servers run",
            )

    # --- what the stream may forget ------------------------------------------------------------------------------

    def _look(self, *, last: bool = False) -> None:
        """Let go what is confirmed, now and then; take up again what was forgotten. `last`: what is not confirmed now goes again at the next start."""
        if self._unconfirmed.lost:
            self._send_again(self._unconfirmed.take_lost())
        if not self._unconfirmed or self._away or (self._clock.monotonic() < self._look_at and not last):
            return
        try:
            self._look_now()
        except (StreamError, OSError) as error:
            self._set_away(error)

    def _look_now(self) -> None:
        self._look_at = self._next_look()
        self._send_again(self._unconfirmed.check())

    def _next_look(self) -> float:
        """By chance: after an outage all agents of a cluster have looked at the same time, and shall not go on to."""
        return self._clock.monotonic() + self._confirm_s * random.uniform(0.5, 1.5)  # noqa: S311 (no secret)

    def _send_again(self, forgotten: list[SpooledRecord]) -> None:
        if forgotten:
            self._again.extendleft(reversed(forgotten))
            self._tell("stream.reset", f"the stream has begun anew: {len(forgotten)} records that it had acknowledged go again")

    def _save_unconfirmed(self) -> None:
        """For the next start: it sends them again, and readers drop what they know."""
        left = [*self._again, *self._unconfirmed.records()]
        if left:
            try:
                self._file.append(left)
            except OSError as error:
                self._tell_failing(error)

    # --- telling ------------------------------------------------------------------------------------------------

    def _set_away(self, error: Exception) -> None:
        self._retry_at = self._clock.monotonic() + self._retry_s
        if not self._away:
            self._away = True
            self._tell("stream.away", f"the stream takes no records, they wait in {self._file.path}: {error}")

    def _set_back(self) -> None:
        if self._away:
            self._away = False
            self._told_dropped = False
            self._tell("stream.recovered", f"the stream takes records again; {self._file.count} wait to go first")

    def _tell_failing(self, error: OSError) -> None:
        self._retry_disk_at = self._clock.monotonic() + self._retry_s
        if not self._told_failing:
            self._told_failing = True
            self._tell(
                "spool.failing",
                f"{self._file.path} cannot be written ({error}): records wait in memory, at most "
                f"{self._memory_bytes >> 20} MiB; free space on its disk",
            )

    def _tell_dropped(self) -> None:
        if self._dropped and self._away and not self._told_dropped:
            self._told_dropped = True
            self._tell(
                "spool.dropped",
                f"the spool {self._file.path} is full ({self._max_bytes >> 20} MiB): the newest batches are refused "
                f"({self._dropped} so far); bring the stream back or raise the spool's max_bytes",
            )

    def _tell(self, name: str, message: str) -> None:
        _log.warning("%s: %s", name, message)
        if self._on_notice is not None:
            try:
                self._on_notice(Notice(name=name, time=self._clock.now(), message=message))
            except Exception:  # noqa: BLE001 (boundary: the receiver's mistake must not end the writer)
                _log.exception("the receiver of notices failed")


def _adopt(file: SpoolFile, pattern: str) -> None:
    for path in sorted(file.path.parent.glob(pattern)):
        if path == file.path:
            continue
        try:
            file.adopt(path)
        except (OSError, StreamError) as error:
            _log.info("what waits in %s is left to its process, or to the next start: %s", path, error)
