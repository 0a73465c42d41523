"""SQLite under the embedded stream: how its files are opened, and what its errors mean to us.

WAL mode: readers never wait for the writer. A commit is a write into the page cache of the operating
system, which survives the death of any process; what survives a power cut is what was fsynced since.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from eagle_eye.clock import Clock
from eagle_eye.errors import StreamError, StreamFull, StreamUnavailable

PAGE_BYTES = 16_384
"""A record of 4 KiB fits into a page three times, without overflow chains: 2.4 × the rate of pages of 4 KiB."""
WAL_BYTES = 16 << 20
"""The retention thread copies the WAL into the file when it is longer than this: a checkpoint fsyncs, an append should not."""
CHECKPOINT_PAGES = 4 * WAL_BYTES // PAGE_BYTES
"""An append copies the WAL itself when it is so long: the retention thread does not keep up."""
APPLICATION = 0x45455945  # "EEYE"
VERSION = 1
BUSY_PAUSE_S = 0.001
_PRIMARY = 0xFF
_WRITE_FAILURES = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE, sqlite3.SQLITE_IOERR_SHMSIZE}


class TornFile(Exception):
    """The file's pages contradict each other: it is to be set aside."""


class FileId(NamedTuple):
    """What tells a file from another one of the same name."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        return cls(status.st_dev, status.st_ino)


def file_id(path: Path) -> FileId | None:
    """Of what lies there now; None if nothing does. Raises OSError where that cannot be known."""
    try:
        return FileId.of(path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return None


def connect(path: Path, *, synchronous: str = "NORMAL", checkpoint: int = CHECKPOINT_PAGES) -> sqlite3.Connection:
    """Open a file in WAL mode, usable from every thread that holds the caller's lock."""
    connection = sqlite3.connect(path, timeout=2.0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {checkpoint}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        connection.execute("PRAGMA cache_size = -4096")
    except BaseException:
        connection.close()
        raise
    return connection


def identify(connection: sqlite3.Connection) -> None:
    """Write our mark into a new file."""
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def check_identity(connection: sqlite3.Connection, path: Path) -> None:
    """Torn if the mark is gone, StreamError if a newer program wrote the file."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise TornFile(f"{path} does not begin like a stream file")
    if version > VERSION:
        raise StreamError(
            f"{path} was written by a newer Eagle Eye (format {version}, this one reads {VERSION}): upgrade this one"
        )


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours; each names the file and the remedy."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _translate(error, path) from error


def _translate(error: sqlite3.DatabaseError, path: Path) -> Exception:
    code = getattr(error, "sqlite_errorcode", 0)
    primary = code & _PRIMARY
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return busy(path, 2.0)
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return TornFile(f"{path}: {error}")
    if primary == sqlite3.SQLITE_FULL or code in _WRITE_FAILURES:
        return StreamFull(
            f"no room to write {path} ({error}): free space on its disk, or lower the stream's retention or max_bytes"
        )
    if primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StreamUnavailable(f"{path} cannot be used now ({error}): check that its directory exists and is writable")
    return StreamError(f"{path}: {error}")


def busy(path: Path, seconds: float) -> StreamUnavailable:
    """What to say when another process keeps the write lock."""
    return StreamUnavailable(
        f"another process has held the write lock of {path} for {seconds:g} s: try again later, or find it with "
        f"`fuser {path}` and end it if it is stuck (SQLite releases the lock then; nothing acknowledged is lost)"
    )


def begin_writing(connection: sqlite3.Connection, path: Path, clock: Clock, seconds: float) -> None:
    """Take the write lock, trying each millisecond: SQLite's own waiting backs off to 100 ms and starves."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        _try_until(connection, path, clock, seconds)
    finally:
        connection.execute("PRAGMA busy_timeout = 2000")  # for reads while another process recovers the WAL


def _try_until(connection: sqlite3.Connection, path: Path, clock: Clock, seconds: float) -> None:
    deadline = clock.monotonic() + seconds
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY != sqlite3.SQLITE_BUSY:
                raise
            if clock.monotonic() >= deadline:
                raise busy(path, seconds) from error
            clock.sleep(BUSY_PAUSE_S)
        else:
            return


@contextmanager
def writing(connection: sqlite3.Connection, path: Path, clock: Clock, seconds: float) -> Iterator[None]:
    """A transaction that holds the write lock from its beginning; undone if the body raises."""
    begin_writing(connection, path, clock, seconds)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
