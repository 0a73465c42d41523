"""What the ledger needs of a database, whichever it is."""

from typing import Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError


class Dialect(Protocol):
    """One database, reached. Its methods raise SQLAlchemy's errors."""

    name: str
    """How errors call it: no secrets in it."""
    engine: Engine

    def prepare(self) -> None:
        """Make what must be there before the first connection. Raises LedgerError."""
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
        """The time by which leases run out: of the caller, or of the database where the callers' clocks differ."""
        ...

    def transaction_id(self, connection: Connection) -> str:
        """Something by which this transaction is known again."""
        ...

    def was_committed(self, transaction: str) -> bool:
        """Whether the transaction of that mark was kept although its commit was not answered."""
        ...

    def is_disconnect(self, error: DBAPIError) -> bool:
        """True where the database has gone away and may come back: nothing was kept, and trying again may help."""
        ...

    def describe(self, error: BaseException | None) -> str:
        """The error and its remedy."""
        ...
