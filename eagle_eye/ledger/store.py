"""The file under the ledger: opened, brought up to date, read and written in transactions."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import msgspec
from sqlalchemy import Connection, Engine, Table, create_engine, event, insert, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.errors import LedgerError, Stale

from . import tables

BUSY_S = 5.0
"""How long a write waits for another process's."""
BUSY_PAUSE_S = 0.01


class Store:
    """One ledger, opened. Subclasses add what is kept in it."""

    def __init__(self, engine: Engine, name: str, *, writable: bool) -> None:
        self._engine = engine
        self._name = name
        self._writable = writable
        self._fence: tuple[str, int] | None = None

    @classmethod
    def open(cls, place: str | Path, *, read_only: bool = False) -> Self:
        """Open a path or a URL, and bring the tables up to date; read-only, they must be so already.

        LedgerError if it is no ledger, of a newer version, or cannot be read or written.
        """
        path = _path_of(place)
        if read_only and not path.exists():
            raise LedgerError(f"there is no ledger at {path}: name the right --state-dir, or start `eagle-eye server`")
        store = cls(_engine(path, read_only), str(path), writable=not read_only)
        try:
            if not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            store._bring_up_to_date()
        except OSError as error:
            raise LedgerError(f"cannot make {path.parent}: {error.strerror}; choose another --state-dir") from error
        except LedgerError:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Release the file."""
        self._engine.dispose()

    def write_as(self, lease: str, term: int) -> None:
        """From now on write only while this term of the lease is the last one; Stale otherwise."""
        self._fence = (lease, term)

    # --- transactions --------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A consistent view."""
        with self._told(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def _writing(self, *, fenced: bool = True) -> Iterator[Connection]:
        """One transaction: all of it, or nothing if the block raises."""
        if not self._writable:
            raise LedgerError(f"{self._name} was opened for reading only")
        with (
            self._told(),
            self._engine.connect().execution_options(eagle_eye_writes=True) as connection,
            connection.begin(),
        ):
            if fenced and self._fence is not None:
                self._check_fence(connection, *self._fence)
            yield connection

    def _check_fence(self, connection: Connection, lease: str, term: int) -> None:
        last = connection.execute(select(tables.leases.c.term).where(tables.leases.c.name == lease)).scalar()
        if last != term:
            raise Stale(f"term {term} of {lease!r} is over: term {last} writes the ledger now; this process must stop")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn the database's errors into ours."""
        try:
            yield
        except DBAPIError as error:
            raise LedgerError(_words(self._name, error.orig)) from error
        except SQLAlchemyError as error:
            raise LedgerError(f"{self._name}: {error}") from error
        except msgspec.MsgspecError as error:
            raise LedgerError(
                f"{self._name} holds a row that this version cannot read ({error}): use the version that wrote it"
            ) from error

    # --- versions ------------------------------------------------------------------------------------------------

    def _bring_up_to_date(self) -> None:
        with self._reading() as connection:
            version = _version(connection)
        if version == tables.VERSION:
            return
        if not self._writable:
            raise LedgerError(
                f"{self._name} is of version {version or 'none'}, this program reads {tables.VERSION}: "
                "start `eagle-eye server` once to bring it up to date, or use the version that wrote it"
            )
        from .migration import upgrade

        with self._writing() as connection:
            if _version(connection) != tables.VERSION:  # another process may have been faster
                upgrade(connection, self._name, _version(connection))


def put(connection: Connection, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
    """Update the row of that key, or insert it."""
    where = [table.c[name] == value for name, value in key.items()]
    if connection.execute(update(table).where(*where).values(**values)).rowcount == 0:
        connection.execute(insert(table).values(**key, **values))


def words(noun: Any) -> str:
    """A noun as it is kept."""
    return msgspec.json.encode(noun).decode()


def _path_of(place: str | Path) -> Path:
    if isinstance(place, Path) or "://" not in place:
        return Path(place)
    try:
        url = make_url(place)
    except ArgumentError:
        raise LedgerError(f"{place!r} is no URL of a ledger: give a path, or sqlite:///path") from None
    if url.get_backend_name() != "sqlite" or not url.database:
        raise LedgerError(f"a ledger in {url.get_backend_name()} comes in a later release: give a path, or sqlite:///path")
    return Path(url.database)


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
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or clock.monotonic() >= deadline:
                raise
            clock.sleep(BUSY_PAUSE_S)
        else:
            return


def _begin(connection: Connection) -> str:
    return "BEGIN IMMEDIATE" if connection.get_execution_options().get("eagle_eye_writes") else "BEGIN"


def _version(connection: Connection) -> str | None:
    """The revision that the file says it has; None for an empty one."""
    known = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE name = 'alembic_version'").scalar()
    if known is None:
        return None
    version: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return version


def _words(name: str, error: BaseException | None) -> str:
    said = str(error)
    if "locked" in said or "busy" in said:
        remedy = f"another process has been writing it for more than {BUSY_S:g} s; see which with `fuser {name}`"
    elif "full" in said or "disk I/O" in said:
        remedy = "free space on its disk, or look whether the disk is failing"
    elif "not a database" in said or "malformed" in said:
        remedy = "it is damaged or no ledger: move it aside, and a new one is begun"
    elif "readonly" in said or "unable to open" in said:
        remedy = "make the file and its directory readable and writable, or choose another --state-dir"
    else:
        remedy = "look at the file and its disk"
    return f"{name}: {said}; {remedy}"
