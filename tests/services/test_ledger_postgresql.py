"""The ledger in a real PostgreSQL: the same cases as on SQLite, and what only a server can do to it."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from contract.ledger_cases import *  # noqa: F403 -- the cases are the same for every database
from eagle_eye.errors import LedgerError, LedgerUnavailable, Stale
from eagle_eye.ledger import LeaseHolder, Ledger, tables
from eagle_eye.types import IncidentState
from fakes.sample_values import an_incident
from servers.postgresql import PASSWORD, Postgres

ADA = LeaseHolder(host="machine-a", pid=101, incarnation="ada")
BOB = LeaseHolder(host="machine-b", pid=202, incarnation="bob")
EMPTIED = ", ".join(tables.metadata.tables)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    server = Postgres()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def place(server: Postgres) -> str:
    """URL of a ledger whose tables are made: the migration takes most of a test's time."""
    url = server.new_url()
    Ledger.open(url, password=PASSWORD).close()
    return url


@pytest.fixture
def ledger(place: str) -> Iterator[Ledger]:
    with_password = place.replace("postgresql://", "postgresql+psycopg://").replace("@", f":{PASSWORD}@")
    engine = create_engine(with_password)
    with engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {EMPTIED} RESTART IDENTITY"))
    engine.dispose()
    ledger = Ledger.open(place, password=PASSWORD, patience_s=30.0)
    yield ledger
    ledger.close()


@pytest.fixture
def reopened(place: str, ledger: Ledger) -> Iterator[Ledger]:
    other = Ledger.open(place, password=PASSWORD)
    yield other
    other.close()


def test_the_migrations_lead_to_the_tables_here_too(place: str, ledger: Ledger) -> None:
    engine = create_engine(place.replace("postgresql://", "postgresql+psycopg://").replace("@", f":{PASSWORD}@"))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    engine.dispose()


def test_two_that_make_a_ledger_at_once_make_one(server: Postgres) -> None:
    url, start = server.new_url(), threading.Barrier(2)

    def begin() -> str | None:
        start.wait()
        ledger = Ledger.open(url, password=PASSWORD)
        ledger.close()
        return None

    with ThreadPoolExecutor(2) as both:
        assert [future.result() for future in [both.submit(begin), both.submit(begin)]] == [None, None]


def test_leases_run_by_the_clock_of_the_database(ledger: Ledger, reopened: Ledger) -> None:
    assert ledger.acquire("leader", ADA, 3600, 100.0) == 1
    assert reopened.acquire("leader", BOB, 5, 1e12) is None  # its own clock is far ahead, and counts for nothing
    assert ledger.renew("leader", ADA, 1, 3600, 0.0)
    ledger.resign("leader", ADA, 0.0)
    assert reopened.acquire("leader", BOB, 5, 0.0) == 2
    assert not ledger.renew("leader", ADA, 1, 3600, 0.0)
    ledger.fence_writes("leader", 1)
    with pytest.raises(Stale, match="term 1 of 'leader' is over: term 2"):
        ledger.save_incident(an_incident(), IncidentState.OPEN)


def test_one_that_stands_still_in_the_middle_of_a_write_is_thrown_out(ledger: Ledger, reopened: Ledger) -> None:
    with pytest.raises(LedgerUnavailable), reopened._writing() as connection:  # noqa: PT012 -- a transaction has a middle
        connection.execute(text("SET idle_in_transaction_session_timeout = '300ms'"))
        assert ledger.save_incident(an_incident(), IncidentState.OPEN)  # waits until the database ends the other's turn
        connection.execute(text("SELECT 1"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_a_restart_in_the_middle_of_writing_loses_and_doubles_nothing(server: Postgres, ledger: Ledger, number: int) -> None:
    stop, posted = threading.Event(), []

    def write() -> None:
        while not stop.is_set():
            posted.append(ledger.enqueue("webhook", str(len(posted)), 1.0))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2):
            before = len(posted)
            while len(posted) < before + 20:
                assert writer.is_alive()
            server.stop(number)
            server.start()
    finally:
        stop.set()
        writer.join()
    assert [notification.body for notification in ledger.due_notifications(2.0, limit=1_000_000)] == [str(index) for index in range(len(posted))]


def test_without_patience_a_server_that_is_down_is_told_at_once(server: Postgres, reopened: Ledger) -> None:
    server.stop()
    try:
        with pytest.raises(LedgerUnavailable, match=r"is PostgreSQL running there, and is ledger.url right\?"):
            reopened.incidents()
    finally:
        server.start()
    assert reopened.incidents() == ()


def test_a_wrong_password_is_told_without_it(place: str) -> None:
    with pytest.raises(LedgerError, match=r"EAGLE_EYE_LEDGER_PASSWORD") as told:
        Ledger.open(place, password="not-this-one")
    assert "not-this-one" not in str(told.value)


def test_a_database_that_does_not_exist_is_told(server: Postgres, place: str) -> None:
    with pytest.raises(LedgerError, match=r"createdb"):
        Ledger.open(place.rpartition("/")[0] + "/nowhere", password=PASSWORD)
