"""The ledger as a file: how it is made, migrated and opened, and what cannot be opened; what survives its writer."""

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from eagle_eye.clock import FakeClock
from eagle_eye.errors import LedgerError, LedgerUnavailable
from eagle_eye.ledger import LeaseHolder, Ledger, tables
from eagle_eye.ledger.migration import configuration, upgrade
from eagle_eye.ledger.table_version import VERSION
from eagle_eye.types import IncidentState
from fakes.full_disk import file_size_limit
from fakes.sample_values import an_incident

ADA = LeaseHolder(host="machine-a", pid=101, incarnation="ada")


def test_the_migrations_lead_to_the_tables_of_this_program(ledger_path: Path) -> None:
    engine = create_engine(f"sqlite:///{ledger_path}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    engine.dispose()
    assert ScriptDirectory.from_config(configuration()).get_heads() == [VERSION]


def test_a_new_ledger_is_brought_up_to_date_once_by_two_that_open_it_at_once(tmp_path: Path) -> None:
    place, opened = tmp_path / "new" / "ledger.sqlite", threading.Barrier(2)
    place.parent.mkdir()

    def begin() -> int | None:
        opened.wait()
        ledger = Ledger.open(place)
        try:
            return ledger.acquire("leader", ADA, 5, 100.0)
        finally:
            ledger.close()

    with ThreadPoolExecutor(2) as both:
        assert [future.result() for future in [both.submit(begin), both.submit(begin)]] == [1, 1]


def test_what_is_up_to_date_is_opened_without_alembic(ledger_path: Path) -> None:
    code = (
        f"import sys; from eagle_eye.ledger import Ledger; Ledger.open({str(ledger_path)!r}).close(); print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_ledger_of_a_newer_version_is_refused_with_the_remedy(ledger_path: Path) -> None:
    with sqlite3.connect(ledger_path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(LedgerError, match=r"is of version 9999, newer than this program knows.*install the version"):
        Ledger.open(ledger_path)
    with pytest.raises(LedgerError, match="is of version 9999, this program reads"):
        Ledger.open(ledger_path, read_only=True)


def test_a_file_that_is_no_ledger_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not a database at all, but long enough to be looked at as one " * 20)
    with pytest.raises(LedgerError, match="not a database; it is damaged or no ledger: move it aside"):
        Ledger.open(tmp_path / "notes")


@pytest.mark.parametrize(
    ("place", "words"),
    [("mysql://host/db", "cannot be kept in mysql: give a path, or postgresql://"), ("what://", "is no URL|cannot be kept in")],
)
def test_a_place_that_is_not_supported_is_named(place: str, words: str) -> None:
    with pytest.raises(LedgerError, match=words):
        Ledger.open(place)


def test_a_url_of_sqlite_is_a_path(ledger_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{ledger_path}")
    assert ledger.incidents() == ()
    ledger.close()


def test_reading_only_reads_and_makes_no_file(ledger_path: Path, ledger: Ledger, tmp_path: Path) -> None:
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    reader = Ledger.open(ledger_path, read_only=True)
    assert [record.incident for record in reader.incidents()] == [an_incident()]
    with pytest.raises(LedgerError, match="opened for reading only"):
        reader.save_incident(an_incident(2), IncidentState.OPEN)
    reader.close()
    with pytest.raises(LedgerError, match=r"there is no ledger at .*--state-dir"):
        Ledger.open(tmp_path / "nowhere.sqlite", read_only=True)
    assert not (tmp_path / "nowhere.sqlite").exists()


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "foreign.sqlite"
    with sqlite3.connect(place) as connection:
        connection.execute("CREATE TABLE plans (id TEXT)")
    connection.close()
    with pytest.raises(LedgerError, match="plans already exists"):
        Ledger.open(place)
    with sqlite3.connect(place) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("plans",)]
    connection.close()


def test_a_version_that_nobody_knows_is_never_migrated(ledger_path: Path) -> None:
    engine = create_engine(f"sqlite:///{ledger_path}")
    with engine.connect() as connection, pytest.raises(LedgerError, match="newer than this program knows"):
        upgrade(connection, "ledger", "9999")
    engine.dispose()


def test_what_was_written_survives_the_death_of_the_writer(ledger_path: Path) -> None:
    code = (
        "import os, signal; from eagle_eye.ledger import Ledger; from eagle_eye.types import Notice\n"
        f"ledger = Ledger.open({str(ledger_path)!r})\n"
        "ledger.save_notice(Notice(name='leader.elected', time=1.0, message='here'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    reader = Ledger.open(ledger_path, read_only=True)
    assert [notice.name for notice in reader.notices()] == ["leader.elected"]
    reader.close()


def fill(ledger: Ledger) -> tuple[int, str]:
    """Save incidents until there is no room: (how many were taken, the error then)."""
    for number in range(1000):
        try:
            ledger.save_incident(an_incident(id=f"i{number}"), IncidentState.OPEN)
        except LedgerUnavailable as error:  # and none that ends a server
            return number, str(error)
    raise AssertionError("the limit did not work")


def test_a_full_disk_under_the_ledger_is_told_and_costs_only_what_was_refused(ledger_path: Path) -> None:
    with closing(Ledger.open(ledger_path)) as ledger:
        with file_size_limit(1 << 16):
            taken, error = fill(ledger)
        assert str(ledger_path) in error
        assert "free space on its disk" in error
        assert len(ledger.incidents(limit=1000)) == taken > 0
        assert ledger.save_incident(an_incident(id="after"), IncidentState.OPEN)


class RoomLater(FakeClock):
    """While it is waited for the third time, somebody makes room on the disk."""

    def __init__(self, limit: ExitStack) -> None:
        super().__init__()
        self._limit, self.waits = limit, 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.waits += 1
        if self.waits == 3:
            self._limit.close()


def test_a_leader_waits_for_room_on_the_disk_and_loses_nothing(ledger_path: Path) -> None:
    with ExitStack() as limit, closing(Ledger.open(ledger_path, patience_s=30.0, clock=(clock := RoomLater(limit)))) as ledger:
        limit.enter_context(file_size_limit(1 << 16))
        for number in range(100):
            ledger.save_incident(an_incident(id=f"i{number}"), IncidentState.OPEN)
        assert clock.waits == 3
        assert len(ledger.incidents(limit=1000)) == 100
