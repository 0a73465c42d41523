"""The ledger in one SQLite file: WAL mode, readers never wait for the writer."""

import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.errors import LedgerError

BUSY_S = 5.0
"""How long a write waits for another process's."""
BUSY_PAUSE_S = 0.01
PRIMARY = 0xFF
"""Bits of an error's code that name its kind (sqlite.org/rescode.html)."""
PASSING = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})


class SqliteDialect:
    """A `Database` of one machine. What was written survives the death of any process."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.name = str(path)
        self.engine = _engine(path, read_only)
        self._path = path
        self._read_only = read_only

    def prepare(self) -> None:
        if self._read_only:
            if not self._path.exists():
                raise LedgerError(f"there is no ledger at {self._path}: name the right --state-dir, or start `eagle-eye server`")
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"cannot make {self._path.parent}: {error.strerror}; choose another --state-dir") from error

    def reading(self) -> Connection:
        return self.engine.connect()

    def writing(self) -> Connection:
        return self.engine.connect().execution_options(eagle_eye_writes=True)

    def lock_writes(self, connection: Connection) -> None:
        """Its BEGIN has seen to it."""

    def now(self, _connection: Connection, caller_time: float) -> float:
        return caller_time

    def transaction_id(self, _connection: Connection) -> str:
        return ""

    def was_committed(self, _transaction: str) -> bool:
        return False

    def is_disconnect(self, error: DBAPIError) -> bool:
        """A disk that is full or does not answer, and a lock that another process holds for long: SQLite has kept nothing, and the cause may pass."""
        code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_OK)
        return code & PRIMARY in PASSING

    def describe(self, error: BaseException | None) -> str:
        message = str(error)
        if "locked" in message or "busy" in message:
            remedy = f"another process has been writing it for more than {BUSY_S:g} s; see which with `fuser {self.name}`"
        elif "full" in message or "disk I/O" in message:
            remedy = "free space on its disk, or look whether the disk is failing"
        elif "not a database" in message or "malformed" in message:
            remedy = "it is damaged or no ledger: move it aside, and a new one is begun"
        elif "readonly" in message or "unable to open" in message:
            remedy = "make the file and its directory readable and writable, or choose another --state-dir"
        else:
            remedy = "look at the file and its disk"
        return f"{self.name}: {message}; {remedy}"


def _engine(path: Path, read_only: bool) -> Engine:
    where = f"file:{quote(str(path.absolute()))}?mode={'ro' if read_only else 'rwc'}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(where, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            if not read_only:
                _switch_to_wal(connection, SystemClock())
                connection.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=4, max_overflow=16)
    # SQLite would take its lock at the first write, too late for what was read before it
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(_begin(connection)))
    return engine


def _switch_to_wal(connection: sqlite3.Connection, clock: Clock) -> None:
    """SQLite's own patience does not cover this: two that make a ledger at once would meet, and one would fail."""
    deadline = clock.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & PRIMARY != sqlite3.SQLITE_BUSY or clock.monotonic() >= deadline:
                raise
            clock.sleep(BUSY_PAUSE_S)
        else:
            return


def _begin(connection: Connection) -> str:
    return "BEGIN IMMEDIATE" if connection.get_execution_options().get("eagle_eye_writes") else "BEGIN"
