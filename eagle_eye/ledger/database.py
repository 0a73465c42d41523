"""The database under the ledger: opened, brought up to date, read and written in transactions."""

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

import msgspec
from sqlalchemy import Connection, Engine, Table, insert, inspect, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.errors import LedgerError, LedgerRefused, LedgerUnavailable, LedgerVersion, Stale

from . import tables
from .sqlite import SqliteDialect
from .table_version import VERSION

RETRY_S = 0.2
"""Between two attempts to reach a database that has gone away."""
log = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Opened = TypeVar("Opened", bound="Database")


class Dialect(Protocol):
    """What the ledger needs of a database: `SqliteDialect` or `PostgreSqlDialect`. Its methods raise SQLAlchemy's errors."""

    name: str
    """How errors call it: no secrets in it."""
    engine: Engine

    def prepare(self) -> None:
        """Create what must exist before the first connection. Raises LedgerError."""
        ...

    def reading(self) -> Connection:
        """A connection whose transaction sees one state of the ledger."""
        ...

    def writing(self) -> Connection:
        """A connection whose transaction is the only one that writes."""
        ...

    def lock_writes(self, connection: Connection) -> None:
        """Called first in each writing transaction: wait until no other writes."""
        ...

    def now(self, connection: Connection, caller_time: float) -> float:
        """The time by which leases expire: of the caller, or of the database where the callers' clocks differ."""
        ...

    def transaction_id(self, connection: Connection) -> str:
        """The id of this transaction, for `was_committed`."""
        ...

    def was_committed(self, transaction: str) -> bool:
        """Whether the transaction of that id was committed although its commit was not answered."""
        ...

    def is_disconnect(self, error: DBAPIError) -> bool:
        """True where the database has gone away and may come back: nothing was kept, and trying again may help."""
        ...

    def describe(self, error: BaseException | None) -> str:
        """The error and its remedy."""
        ...


class Database:
    """One ledger, opened. Subclasses add what is kept in it."""

    def __init__(self, dialect: Dialect, *, writable: bool, patience_s: float = 0.0, clock: Clock | None = None) -> None:
        self._dialect = dialect
        self._writable = writable
        self._patience_s = patience_s
        self._clock = clock or SystemClock()
        self._fence: tuple[str, int] | None = None

    @classmethod
    def open(
        cls, place: str | Path, *, read_only: bool = False, password: str = "", patience_s: float = 0.0, clock: Clock | None = None
    ) -> Self:
        """Open a path or a URL, and bring the tables up to date; read-only, they must be so already.

        patience_s: how long every call waits for a database that has gone away (leases excepted). LedgerError if it is
        no ledger, of a newer version, or cannot be read or written.
        """
        clock = clock or SystemClock()
        database = cls(_dialect_of(place, read_only, password, clock), writable=not read_only, patience_s=patience_s, clock=clock)
        try:
            database._dialect.prepare()
            database._bring_up_to_date()
        except LedgerError:
            database.close()
            raise
        return database

    def close(self) -> None:
        """Release the connections."""
        self._dialect.engine.dispose()

    def fence_writes(self, lease: str, term: int) -> None:
        """From now on write only while this term of the lease is the last one; Stale otherwise."""
        self._fence = (lease, term)

    @property
    def _name(self) -> str:
        return self._dialect.name

    # --- transactions --------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A consistent view."""
        with self._translated_errors(), self._dialect.reading() as connection, connection.begin():
            yield connection

    @contextmanager
    def _writing(self, *, fenced: bool = True) -> Iterator[Connection]:
        """One transaction: all of it, or nothing if the block raises. No other writes meanwhile."""
        if not self._writable:
            raise LedgerError(f"{self._name} was opened for reading only")
        with self._translated_errors(), self._dialect.writing() as connection:
            transaction = connection.begin()
            try:
                self._dialect.lock_writes(connection)
                if fenced and self._fence is not None:
                    self._check_fence(connection, *self._fence)
                yield connection
                transaction_id = self._dialect.transaction_id(connection)
            except BaseException:
                transaction.rollback()
                raise
            self._commit(transaction.commit, transaction_id)

    def _commit(self, commit: Callable[[], None], transaction: str) -> None:
        """A commit whose answer was lost may have been kept: ask the database."""
        try:
            commit()
        except DBAPIError as error:
            if not (self._dialect.is_disconnect(error) and self._dialect.was_committed(transaction)):
                raise

    def _check_fence(self, connection: Connection, lease: str, term: int) -> None:
        last = connection.execute(select(tables.leases.c.term).where(tables.leases.c.name == lease)).scalar()
        if last != term:
            raise Stale(f"term {term} of {lease!r} is over: term {last} writes the ledger now; this process must stop")

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn the database's errors into ours."""
        try:
            yield
        except DBAPIError as error:
            if isinstance(error, DataError | IntegrityError):
                raise LedgerRefused(f"{self._name} cannot take a row: {error.orig}") from error
            kind = LedgerUnavailable if self._dialect.is_disconnect(error) else LedgerError
            raise kind(self._dialect.describe(error.orig)) from error
        except (UnicodeError, OverflowError) as error:  # raised by the driver itself, for a text or a number
            raise LedgerRefused(f"{self._name} cannot take a row: {error}") from error
        except SQLAlchemyError as error:
            raise LedgerError(f"{self._name}: {error}") from error
        except (msgspec.MsgspecError, RecursionError) as error:
            raise LedgerError(
                f"{self._name} holds a row that this version cannot read ({error}): use the version that wrote it"
            ) from error

    # --- versions ------------------------------------------------------------------------------------------------

    def _bring_up_to_date(self) -> None:
        with self._reading() as connection:
            version = _version(connection)
        if version == VERSION:
            return
        if not self._writable:
            newer = (version or "") > VERSION
            remedy = "" if newer else "start `eagle-eye server` once to bring it up to date, or "
            raise LedgerVersion(f"{self._name} is of version {version or 'none'}, this program reads {VERSION}: {remedy}use the version that wrote it", newer=newer)
        from .migration import upgrade

        with self._writing() as connection:
            if _version(connection) != VERSION:  # another process may have been faster
                upgrade(connection, self._name, _version(connection))


def patient(
    method: Callable[Concatenate[Opened, Arguments], Answer],
) -> Callable[Concatenate[Opened, Arguments], Answer]:
    """A call that waits for a database which has gone away, as long as the ledger's patience goes.

    Nothing was kept when LedgerUnavailable is raised, so that doing all of it again does it once.
    """

    @functools.wraps(method)
    def until_answered(self: Opened, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        deadline: float | None = None
        while True:
            try:
                answer = method(self, *args, **kwargs)
            except LedgerUnavailable as error:
                now = self._clock.monotonic()
                if deadline is None:
                    deadline = now + self._patience_s
                    log.warning("the ledger cannot be reached, trying again: %s", error)
                if now >= deadline:
                    raise
                self._clock.sleep(RETRY_S)
            else:
                if deadline is not None:
                    log.warning("the ledger answers again")
                return answer

    return until_answered


def put(connection: Connection, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
    """Update the row of that key, or insert it. Values go beside the statement, which SQLAlchemy then finds compiled: within it they cost as much as the rest."""
    where = [table.c[name] == value for name, value in key.items()]
    if connection.execute(update(table).where(*where), values).rowcount == 0:
        connection.execute(insert(table), key | values)


def to_json(noun: Any) -> str:
    """A noun as it is kept."""
    return msgspec.json.encode(noun).decode()


def _dialect_of(place: str | Path, read_only: bool, password: str, clock: Clock) -> Dialect:
    if isinstance(place, Path) or "://" not in place:
        return SqliteDialect(Path(place), read_only=read_only)
    try:
        url = make_url(place)
    except ArgumentError:
        raise LedgerError(f"{place!r} is no URL of a ledger: give a path, or postgresql://user@host/database") from None
    backend = url.get_backend_name()
    if backend == "sqlite" and url.database:
        return SqliteDialect(Path(url.database), read_only=read_only)
    if backend in ("postgresql", "postgres") and url.database:
        from .postgresql import PostgreSqlDialect

        return PostgreSqlDialect(url, password, clock=clock)
    raise LedgerError(f"a ledger cannot be kept in {backend}: give a path, or postgresql://user@host/database")


def _version(connection: Connection) -> str | None:
    """The revision that the ledger says it has; None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return version
