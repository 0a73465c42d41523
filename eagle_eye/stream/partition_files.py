"""The files of one partition: how a new one comes to be, and what happens to a torn one.

A partition is carried by one file at a time, `<partition>-<era>.sqlite`. When a file turns out to be
torn, the next era begins: what can still be read is copied into a new file, and the torn one stays
where it is, never written again. The same where it is deleted or moved by somebody while it is in use. No file is renamed while somebody may have it open, because SQLite
finds the WAL by its name. Offsets of an era begin at era × 2^40, so they rise whatever was lost.
"""

import fcntl
import os
import sqlite3
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path

from eagle_eye.clock import Clock
from eagle_eye.stream.sqlite_files import BUSY_PAUSE_S, FileId, busy, connect, file_id, identify, translated

ERA_OFFSETS = 1 << 40
TABLE = "CREATE TABLE records (place INTEGER PRIMARY KEY, key TEXT, value BLOB, time REAL, checksum INTEGER) STRICT"
INSERT = "INSERT INTO records VALUES (?, ?, ?, ?, ?)"
COLUMNS = "SELECT place, key, value, time, checksum FROM records"
_TRIED_SINGLY = 10_000
_LARGEST = 1 << 62

StoredRow = tuple[int, str, bytes, float, int]


def checksum(key: str, value: bytes) -> int:
    """CRC-32 over a record: SQLite itself does not notice a changed byte inside a value."""
    return zlib.crc32(value, zlib.crc32(key.encode()))


class PartitionFiles:
    """Where the files of one partition lie, and the lock that their making is done under."""

    def __init__(self, directory: Path, partition: int) -> None:
        self.directory = directory
        self.partition = partition
        self._lock = self._opened_lock()

    def path(self, era: int) -> Path:
        """File of an era."""
        return self.directory / f"{self.partition}-{era}.sqlite"

    def newest_era(self) -> int | None:
        """The era that is written now; None before the first."""
        prefix = f"{self.partition}-"
        names = (path.name for path in self.directory.glob(f"{prefix}*.sqlite"))
        return max((int(name[len(prefix) : -len(".sqlite")]) for name in names), default=None)

    def _opened_lock(self) -> int:
        self.directory.mkdir(parents=True, exist_ok=True)
        return os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @property
    def _lock_path(self) -> Path:
        return self.directory / f"{self.partition}.lock"

    def follow_lock(self) -> None:
        """Another process has restored the partition, under a lock that lies where ours was deleted."""
        if file_id(self._lock_path) != FileId.of(os.fstat(self._lock)):
            old, self._lock = self._lock, self._opened_lock()
            os.close(old)

    def close(self) -> None:
        os.close(self._lock)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Held while a record is written, so that no era ends in the middle of it. Waits only for `make` and `replace`."""
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    @contextmanager
    def _alone(self, clock: Clock, seconds: float) -> Iterator[None]:
        deadline = clock.monotonic() + seconds
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if clock.monotonic() >= deadline:
                    raise busy(self._lock_path, seconds) from error
            clock.sleep(BUSY_PAUSE_S)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def make(self, clock: Clock, seconds: float) -> int:
        """The newest era, begun now if there was none."""
        with self._alone(clock, seconds):
            era = self.newest_era()
            if era is None:
                era = 0
                self._write(era, ())
        return era

    def replace(self, torn: int, clock: Clock, seconds: float) -> tuple[int, int]:
        """End the torn era: (the era that is written now, how many records were saved).

        When another process did it first, nothing is left to do and the count is 0.
        """
        with self._alone(clock, seconds):
            newest = self.newest_era()
            if newest is not None and newest != torn:
                return newest, 0
            return torn + 1, self._write(torn + 1, readable(self.path(torn)))

    def restore(self, deleted: int, rows: Callable[[], Iterable[StoredRow]], clock: Clock, seconds: float) -> tuple[int, int]:
        """The era's file was deleted or moved while it was in use: (the era that is written now, how many of `rows` went over).

        Under the lock that was deleted with it, which whoever had it open shares, and under the one that lies there now. What others have
        begun there meanwhile, from offset 0 on, goes behind the rows. When another process did it first, the count is 0. Raises OSError.
        """
        with self._alone(clock, seconds):
            if file_id(self._lock_path) == FileId.of(os.fstat(self._lock)):
                return self._restore(deleted, rows)
            old, self._lock = self._lock, self._opened_lock()
            try:
                with self._alone(clock, seconds):
                    return self._restore(deleted, rows)
            finally:
                os.close(old)  # released only now: nobody writes into the deleted file after its rows were read

    def _restore(self, deleted: int, rows: Callable[[], Iterable[StoredRow]]) -> tuple[int, int]:
        newest = self.newest_era()
        if newest is not None and newest > deleted:
            return newest, 0
        era = deleted + 1
        begun = [] if newest is None else list(readable(self.path(newest)))
        behind = [(place, *row[1:]) for place, row in enumerate(begun, era * ERA_OFFSETS)]
        saved = self._write(era, chain(rows(), behind))
        if newest is not None:
            self.path(newest).unlink(missing_ok=True)  # whoever has it open finds it deleted, and goes over
        return era, saved - len(behind)

    def _write(self, era: int, rows: Iterable[StoredRow]) -> int:
        """Make a whole file under another name, then give it its own: nobody ever sees a half-made one."""
        making = self.directory / f"{self.partition}.making"
        for name in (making, Path(f"{making}-wal"), Path(f"{making}-shm")):
            name.unlink(missing_ok=True)
        count = 0
        with translated(making), closing(connect(making)) as connection:
            identify(connection)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(TABLE)
            for row in rows:
                connection.execute(INSERT, row)
                count += 1
            connection.execute("COMMIT")
        making.rename(self.path(era))
        return count


def readable(path: Path) -> Iterator[StoredRow]:
    """Every record of a torn file whose checksum is right, in order of its offset.

    Reads on from the front; at a torn page it looks for the next offset that can be read.
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)) as connection:
        after: int | None = -1
        while after is not None:
            last = yield from _read_on(connection, after)
            after = None if last is None else _next_readable(connection, last)


def whole(row: StoredRow) -> bool:
    """Its checksum is right."""
    return isinstance(row[1], str) and isinstance(row[2], bytes) and checksum(row[1], row[2]) == row[4]


def _read_on(connection: sqlite3.Connection, after: int) -> Generator[StoredRow, None, int | None]:
    """Yields what comes after an offset; returns the last one before a torn page, None at the end of the file."""
    last = after
    try:
        for row in connection.execute(f"{COLUMNS} WHERE place > ? ORDER BY place", (after,)):
            last = row[0]
            if whole(row):
                yield row
    except sqlite3.DatabaseError:
        return last
    return None


def _next_readable(connection: sqlite3.Connection, torn: int) -> int | None:
    """The smallest offset above `torn` from which reading on works; None if there is none.

    Tried one by one for some thousands (several torn pages), then in doubling steps, halved again at the first success.
    """
    for after in range(torn + 1, torn + _TRIED_SINGLY):
        if _works(connection, after):
            return after
    low, step = torn + _TRIED_SINGLY, _TRIED_SINGLY
    while not _works(connection, low + step):
        low, step = low + step, step * 2
        if low + step >= _LARGEST:
            return None
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _works(connection, middle) else (middle, high)
    return high


def _works(connection: sqlite3.Connection, after: int) -> bool:
    try:
        connection.execute(f"{COLUMNS} WHERE place > ? ORDER BY place LIMIT 1", (after,)).fetchone()
    except sqlite3.DatabaseError:
        return False
    return True
