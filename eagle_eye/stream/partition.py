"""One partition: an append-only log in a SQLite file, shared by the processes of one machine."""

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from eagle_eye.clock import Clock
from eagle_eye.errors import StreamError, StreamFull, StreamUnavailable
from eagle_eye.retention_clock import BELIEVED, RetentionClock
from eagle_eye.stream import Message
from eagle_eye.stream.partition_files import COLUMNS, ERA_OFFSETS, INSERT, PartitionFiles, StoredRow, checksum, whole
from eagle_eye.stream.sqlite_files import (
    WAL_BYTES,
    FileId,
    TornFile,
    begin_writing,
    busy,
    check_identity,
    connect,
    file_id,
    translated,
    writing,
)

KEEP_AWAY = "leave the stream's directory alone while Eagle Eye runs, and end its processes before you clear or move it"
TOLD_S = 1.0
"""How long everybody who uses a partition whose file was deleted is told so."""
TRIM_RECORDS = 128
"""Records removed under one hold of the write lock: 1 to 2 ms."""


class PartitionLimits(NamedTuple):
    """How much a partition keeps, and how it treats its disk."""

    retention_s: float
    """Records older than this go; the newest one stays always."""
    max_bytes: int
    """The oldest records go once the rest takes more than this on disk."""
    busy_s: float
    """How long an append waits for another process's write lock."""
    every_commit: bool
    """fsync in every append."""


class _Open(NamedTuple):
    """The two connections of one era: readers never wait for a writer of this process."""

    era: int
    path: Path
    successor: Path
    """File of the next era: this one is over as soon as it exists."""
    writer: sqlite3.Connection
    reader: sqlite3.Connection
    id: FileId | None
    """Of the file when it was opened."""

    @property
    def deleted(self) -> bool:
        """Somebody deleted or moved it, or put another file in its place: what is written into it is lost with the processes that have it open."""
        try:
            return file_id(self.path) != self.id
        except OSError:
            return False


class Partition:
    """The log of one partition. Safe for threads; several processes may each have one of their own."""

    def __init__(self, topic: str, directory: Path, number: int, limits: PartitionLimits, clock: Clock) -> None:
        self.topic = topic
        self.number = number
        self._limits = limits
        self._clock = clock
        self._write_lock = threading.RLock()
        self._read_lock = threading.Lock()
        self._files = PartitionFiles(directory, number)
        self._synced = self._appended = 0
        self._closed = False
        self._deletion, self._told_until = "", 0.0
        self._now = self._open()
        self._retention = RetentionClock(clock, limits.retention_s, self._times, f"{topic}/{number}")
        with suppress(StreamError, TornFile):  # told to who reads or writes
            self._retention.now()  # from here on it knows what passes

    # --- writing -----------------------------------------------------------------------------------------------

    def append(self, items: Sequence[tuple[str, bytes]]) -> int:
        """All of the items in one transaction, in order; returns the offset of the first one."""
        with self._writing():
            try:
                first = self._insert(items)
            except StreamFull:
                if not self._trim_slice():
                    raise
                first = self._insert(items)
            self._appended += 1
        return first

    def _insert(self, items: Sequence[tuple[str, bytes]]) -> int:
        now = self._clock.now()
        connection, path = self._now.writer, self._now.path
        rows = [(key, value, now, checksum(key, value)) for key, value in items]
        with (
            self._files.shared(),
            translated(path),
            writing(connection, path, self._clock, self._limits.busy_s),
        ):
            if self._now.successor.exists():
                raise TornFile(f"{path} was set aside by another process")
            if self._now.deleted:
                raise TornFile(f"{path} was deleted")
            first = self._end(connection)
            connection.executemany(INSERT, [(place, *row) for place, row in enumerate(rows, first)])
        return first

    def trim(self) -> int:
        """Remove what is too old or too much, in slices between which others may write; returns how many went."""
        removed = 0
        while True:
            with self._writing():
                slice_ = self._trim_slice()
            removed += slice_
            if slice_ < TRIM_RECORDS:
                return removed
            self._clock.sleep(0.001)

    def _trim_slice(self) -> int:
        connection, path = self._now.writer, self._now.path
        with translated(path):
            last = self._excess(connection)
            if last is None:
                return 0
            with self._files.shared(), writing(connection, path, self._clock, self._limits.busy_s):
                return connection.execute("DELETE FROM records WHERE place <= ?", (last,)).rowcount

    def _excess(self, connection: sqlite3.Connection) -> int | None:
        """The offset up to which the next slice may go."""
        slice_ = "SELECT place, time FROM records WHERE place < (SELECT max(place) FROM records) ORDER BY place LIMIT ?"
        rows = connection.execute(slice_, (TRIM_RECORDS,)).fetchall()
        if not rows:
            return None
        if self._bytes(connection) > self._limits.max_bytes:
            return int(rows[-1][0])
        oldest = self._retention.now() - self._limits.retention_s
        return max((int(place) for place, time in rows if time < oldest), default=None)

    def _times(self) -> list[float]:
        """Times of records between whose neighbours nothing is missing that matters to a RetentionClock. Some 300 look-ups."""
        with translated(self._now.path):
            first, last = self._now.writer.execute("SELECT min(place), max(place) FROM records").fetchone()
            return [] if first is None else self._times_between(int(first), int(last))

    def _times_between(self, first: int, last: int) -> list[float]:
        """Of the records at both ends and, where the time between them is long, of those in the middle, down to neighbours."""
        at = "SELECT place, time FROM records WHERE place >= ? ORDER BY place LIMIT 1"
        times = [self._now.writer.execute(at, (place,)).fetchone()[1] for place in (first, last)]
        if last - first > 1 and times[1] - times[0] > BELIEVED * self._limits.retention_s:
            middle = (first + last) // 2
            times += self._times_between(first, middle) + self._times_between(middle, last)
        return times

    def _bytes(self, connection: sqlite3.Connection) -> int:
        pages, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def sync(self) -> None:
        """Write what was appended through to the disk itself, and keep the WAL short."""
        appended = self._appended
        if appended == self._synced:
            return
        wal = Path(f"{self._now.path}-wal")
        with suppress(FileNotFoundError):
            # SQLite holds no lock on the WAL itself, so closing this descriptor drops none of its locks
            descriptor = os.open(wal, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
                size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            if size > WAL_BYTES:
                self._shorten(size)
        self._synced = appended

    def _shorten(self, size: int) -> None:
        """Copy the WAL into the file beside the writers; if it is long by now, stop them for the rest of it."""
        path = self._now.path
        with suppress(sqlite3.DatabaseError), closing(connect(path)) as connection:
            connection.execute("PRAGMA busy_timeout = 50")
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            if size > 4 * WAL_BYTES:
                connection.execute("PRAGMA wal_checkpoint(RESTART)")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the write lock: every append of every other process and of this one gets StreamUnavailable meanwhile."""
        self._follow()
        path = self._now.path
        with closing(connect(path)) as connection:
            with translated(path):
                begin_writing(connection, path, self._clock, self._limits.busy_s)
            try:
                yield
            finally:
                connection.execute("ROLLBACK")

    # --- reading -----------------------------------------------------------------------------------------------

    def read(self, offset: int, limit: int) -> list[Message]:
        """Up to `limit` messages from `offset` on."""
        with self._reading() as connection:
            rows = connection.execute(f"{COLUMNS} WHERE place >= ? ORDER BY place LIMIT ?", (offset, limit)).fetchall()
            for _place, key, value, _time, kept in rows:
                if checksum(key, value) != kept:
                    raise TornFile(f"{self._now.path}: a record's checksum is wrong")
        return [Message(self.topic, self.number, place, key, value, time) for place, key, value, time, _ in rows]

    def begin(self) -> int:
        """Offset of the oldest message kept; the next one's if there is none."""
        with self._reading() as connection:
            (oldest,) = connection.execute("SELECT min(place) FROM records").fetchone()
            return self._end(connection) if oldest is None else int(oldest)

    def end(self) -> int:
        """Offset that the next message will have at least."""
        with self._reading() as connection:
            return self._end(connection)

    def has(self, offset: int) -> bool:
        """Is a message at or after `offset` there? Cheap enough to ask every few milliseconds (8 µs)."""
        with self._reading() as connection:
            return connection.execute("SELECT 1 FROM records WHERE place >= ? LIMIT 1", (offset,)).fetchone() is not None

    def _end(self, connection: sqlite3.Connection) -> int:
        (newest,) = connection.execute("SELECT max(place) FROM records").fetchone()
        return self._now.era * ERA_OFFSETS if newest is None else int(newest) + 1

    # --- opening, and going on after a torn file ---------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if not self._write_lock.acquire(timeout=self._limits.busy_s):
            raise busy(self._now.path, self._limits.busy_s)
        try:
            self._follow()
            yield
        except TornFile as torn:
            raise self._set_aside(torn) from torn
        finally:
            self._write_lock.release()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        self._follow()
        try:
            with self._read_lock, translated(self._now.path):
                yield self._now.reader
        except TornFile as torn:
            raise self._set_aside(torn) from torn

    def _follow(self) -> None:
        """Go over to the next era when another process has begun it."""
        if self._closed:
            raise StreamError(f"{self._now.path}: the stream was closed in this process; make a new one")
        if self._clock.monotonic() < self._told_until:
            raise StreamUnavailable(self._deletion)
        if self._now.successor.exists():
            self._reopen()
        elif self._now.deleted:
            raise self._restore()

    def _reopen(self) -> None:
        with self._write_lock, self._read_lock:
            if self._now.successor.exists():
                self._go_over()

    def _go_over(self) -> None:
        self._files.follow_lock()
        old, self._now = self._now, self._open()
        _close(old)

    def _restore(self) -> StreamUnavailable:
        """Go on in a new file. Everybody who asks within the next moment is told, for not each of them tells a person."""
        with self._write_lock:
            old = self._now
            if not old.deleted:  # another thread was faster
                return StreamUnavailable(self._deletion)
            try:
                era, saved = self._files.restore(old.era, self._rows, self._clock, self._limits.busy_s)
            except OSError as error:
                return StreamUnavailable(f"{old.path} was deleted or moved while it was in use, and no new one can be made ({error}): {KEEP_AWAY}")
            with self._read_lock:
                self._go_over()
            so = f"{saved} records went over to {self._files.path(era)}" if saved else f"another process had begun {self._files.path(era)}"
            self._deletion = f"{old.path} was deleted or moved while it was in use; {so}, where the stream goes on: {KEEP_AWAY}"
            self._told_until = self._clock.monotonic() + TOLD_S
            return StreamUnavailable(self._deletion)

    def _rows(self) -> Iterator[StoredRow]:
        """What can still be read of a deleted file, which lives for as long as somebody has it open."""
        with self._read_lock, suppress(sqlite3.DatabaseError):
            yield from filter(whole, self._now.reader.execute(f"{COLUMNS} ORDER BY place"))

    def _set_aside(self, torn: TornFile) -> StreamError:
        with self._write_lock:
            path, successor = self._now.path, self._now.successor
            if successor.exists():
                self._reopen()
                return StreamUnavailable(f"{path} was set aside by another process: try again now")
            if self._now.deleted:
                return self._restore()
            _era, saved = self._files.replace(self._now.era, self._clock, self._limits.busy_s)
            self._reopen()
            return self._told(torn, path, successor, saved)

    @staticmethod
    def _told(torn: TornFile, path: Path, new: Path, saved: int) -> StreamError:
        return StreamError(
            f"{torn}: {path} is torn and was set aside as it is; {saved} readable records went over to {new}, and the "
            "stream goes on there: try again now. Check the disk (`dmesg`, `smartctl`); remove the torn file when you "
            "no longer want it"
        )

    def _open(self) -> _Open:
        era = self._files.newest_era()
        if era is None:
            era = self._files.make(self._clock, self._limits.busy_s)
        try:
            return self._connect(era)
        except TornFile as torn:
            now, saved = self._files.replace(era, self._clock, self._limits.busy_s)
            self.opening_error = self._told(torn, self._files.path(era), self._files.path(now), saved)
            return self._connect(now)

    def _connect(self, era: int) -> _Open:
        path = self._files.path(era)
        with translated(path):
            writer = connect(path, synchronous="FULL" if self._limits.every_commit else "NORMAL")
            try:
                check_identity(writer, path)
                writer.execute("SELECT max(place) FROM records").fetchone()
                return _Open(era, path, self._files.path(era + 1), writer, connect(path), file_id(path))
            except BaseException:
                writer.close()
                raise

    opening_error: StreamError | None = None
    """What was found when the file was opened: the stream that opened it reports it once."""

    def close(self) -> None:
        """Close the files; every later call is refused."""
        with self._write_lock, self._read_lock:
            if not self._closed:
                self._closed = True
                _close(self._now)
                self._files.close()


def _close(opened: _Open) -> None:
    for connection in (opened.reader, opened.writer):
        with suppress(sqlite3.Error):
            connection.close()
