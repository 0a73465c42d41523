"""The ledger in PostgreSQL, for servers on many machines.

Writers take turns by one advisory lock, so that what holds of SQLite holds here: a fenced transaction reads the term and
writes before any other can take the lease. A process that is stopped in the middle of a transaction loses its turn
after IDLE_S. After a broken connection the database itself knows whether the last transaction was kept.
"""

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from eagle_eye.clock import Clock
from eagle_eye.errors import LedgerUnavailable

TURN = 0x4541474C
"""Key of the advisory lock by which writers take turns."""
CONNECT_S = 5
TURN_S = 5
"""How long a write waits for its turn."""
IDLE_S = 5
"""A transaction whose process says nothing for so long is ended by the database."""
STATEMENT_S = 30
KEPT_S = 30.0
"""How long we ask whether the last transaction was kept."""
PAUSE_S = 0.2
SETTINGS = (
    f"-c lock_timeout={TURN_S}s -c idle_in_transaction_session_timeout={IDLE_S}s -c statement_timeout={STATEMENT_S}s -c application_name=eagle-eye"
)
REFUSED = ("authentication failed", "no pg_hba.conf entry", "does not exist", "no password supplied", "permission denied")
"""What no waiting helps against."""
GONE = ("08", "57P", "25P03")
"""SQLSTATE: connection exceptions, operator intervention, idle_in_transaction_session_timeout (PostgreSQL, appendix A)."""


class PostgreSqlDialect:
    """A `Database` on a server. Times of leases are the server's: the clocks of its clients may differ."""

    def __init__(self, url: URL, password: str, *, clock: Clock) -> None:
        url = url.set(drivername="postgresql+psycopg")
        if password:
            url = url.set(password=password)
        self.name = url.set(drivername="postgresql").render_as_string(hide_password=True)
        self.engine = _engine(url)
        self._clock = clock

    def prepare(self) -> None:
        """The database itself is made by its administrator."""

    def reading(self) -> Connection:
        return self.engine.connect().execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def writing(self) -> Connection:
        return self.engine.connect()

    def lock_writes(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": TURN})

    def now(self, connection: Connection, _caller_time: float) -> float:
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def transaction_id(self, connection: Connection) -> str:
        return str(connection.execute(text("SELECT pg_current_xact_id()::text")).scalar_one())

    def was_committed(self, transaction: str) -> bool:
        """Waits for the server to come back. Raises LedgerUnavailable if it does not: then nobody knows."""
        deadline = self._clock.monotonic() + KEPT_S
        while True:
            try:
                with self.engine.connect() as connection:
                    status = connection.execute(text("SELECT pg_xact_status(CAST(:transaction AS xid8))"), {"transaction": transaction}).scalar()
                if status != "in progress":
                    return bool(status == "committed")
            except DBAPIError as error:
                if not self.is_disconnect(error) or self._clock.monotonic() >= deadline:
                    raise LedgerUnavailable(self.describe(error.orig)) from error
            self._clock.sleep(PAUSE_S)

    def is_disconnect(self, error: DBAPIError) -> bool:
        if not isinstance(error.orig, psycopg.Error) or any(words in str(error.orig) for words in REFUSED):
            return False
        state = error.orig.sqlstate
        return state.startswith(GONE) if state else isinstance(error.orig, psycopg.OperationalError)

    def describe(self, error: BaseException | None) -> str:
        message = " ".join(" ".join(line for line in str(error).splitlines() if not line.startswith("\t")).split())  # its hints are indented; ours follows
        if "authentication failed" in message or "no password supplied" in message:
            remedy = "put the right password into ledger.password_file or EAGLE_EYE_LEDGER_PASSWORD"
        elif "does not exist" in message:
            remedy = "make the role and the database first: `createuser`, `createdb`"
        elif "permission denied" in message or "no pg_hba.conf entry" in message:
            remedy = "let this role connect and own the schema: see pg_hba.conf and GRANT"
        elif getattr(error, "sqlstate", None) == "55P03":
            remedy = f"another process has been writing it for more than {TURN_S} s; see pg_stat_activity"
        elif isinstance(error, psycopg.OperationalError):
            remedy = "is PostgreSQL running there, and is ledger.url right?"
        else:
            remedy = "see the server's log"
        return f"{self.name}: {message}; {remedy}"


def _engine(url: URL) -> Engine:
    alive = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 5000}
    return create_engine(
        url, pool_size=4, max_overflow=16, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_S, "options": SETTINGS, **alive}
    )
