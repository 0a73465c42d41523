"""The list of incidents without SQLAlchemy says what the ledger says, and what cannot be read is told in the ledger's words."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from eagle_eye.config import Config
from eagle_eye.errors import LedgerError
from eagle_eye.ledger import Ledger
from eagle_eye.ledger.incident_list import newest_incidents
from eagle_eye.types import IncidentState
from fakes.sample_values import JOB, an_incident

HEAVY = ("sqlalchemy", "numpy", "grpc", "duckdb", "pyarrow", "kafka", "torch", "asyncio", "cryptography")
"""Packages of which one alone takes longer to import than all that the command needs."""


@pytest.fixture
def config(tmp_path: Path, empty_ledger: Path) -> Config:
    """A deployment with four incidents of two jobs."""
    (tmp_path / "ledger.sqlite").write_bytes(empty_ledger.read_bytes())
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    for number, job in enumerate((JOB, JOB, "team/other/1", JOB)):
        ledger.save_incident(an_incident(id=f"incident-{number}", job=job, time=100.0 + number % 3), IncidentState.OPEN)
    ledger.move_incident("incident-0", IncidentState.HEALING, 110.0)
    ledger.move_incident("incident-3", IncidentState.CLOSED, 111.0)
    ledger.close()
    return Config(state_dir=str(tmp_path))


@pytest.mark.parametrize("asked", [{}, {"open_only": True}, {"job": JOB}, {"job": "team/none/1"}, {"limit": 2}, {"open_only": True, "job": JOB, "limit": 1}])
def test_the_list_is_the_ledgers(config: Config, asked: dict[str, object]) -> None:
    ledger = Ledger.open(config.state / "ledger.sqlite", read_only=True)
    listed = newest_incidents(config, **asked)  # type: ignore[arg-type]
    assert listed == ledger.incidents(**asked)  # type: ignore[arg-type]
    assert bool(listed) == (asked.get("job") != "team/none/1")
    ledger.close()


def test_a_writer_in_the_middle_of_a_transaction_keeps_nobody_from_reading(config: Config) -> None:
    writer = sqlite3.connect(config.state / "ledger.sqlite", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM incidents")
    assert len(newest_incidents(config)) == 4
    writer.close()


def test_a_ledger_of_another_version_is_refused_with_the_remedy(config: Config) -> None:
    with sqlite3.connect(config.state / "ledger.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.close()
    with pytest.raises(LedgerError, match=r"is of version 0001, this program reads .*start `eagle-eye server` once"):
        newest_incidents(config)


def test_what_is_no_ledger_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"there is no ledger at .*name the right --state-dir"):
        newest_incidents(Config(state_dir=str(tmp_path / "none")))
    (tmp_path / "ledger.sqlite").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(LedgerError, match="it is damaged or no ledger: move it aside"):
        newest_incidents(Config(state_dir=str(tmp_path)))


def test_the_command_imports_nothing_heavy(config: Config) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from eagle_eye.app.cli import main\n"
        f"done = CliRunner().invoke(main, ['incidents', '--wide', '--state-dir', {str(config.state)!r}])\n"
        f"print(done.output.count('incident-'), done.exit_code, *(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "0"]
