"""`eagle-eye dashboard`: where it may listen, and recorded runs made small and opened again."""

import socket
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from dashboard.queries import cluster, incidents
from dashboard.sources import Sources
from eagle_eye.access import Role
from eagle_eye.access.tokens import add_person, tokens_path
from eagle_eye.app import dashboard_process
from eagle_eye.app.cli import main
from eagle_eye.app.dashboard_process import Dashboard, refuse_open
from eagle_eye.app.demo import run_archive
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config, ServerConfig
from eagle_eye.errors import ConfigError
from eagle_eye.ledger import Ledger
from eagle_eye.types import IncidentState, Notice
from fakes.sample_values import JOB, an_incident
from fakes.small_deployment import T0, RecordedJob


def test_beyond_loopback_it_opens_only_with_tokens_or_where_it_is_told_to(tmp_path: Path) -> None:
    config, clock = Config(state_dir=str(tmp_path)), FakeClock()
    refuse_open(config, "127.0.0.1:8501", clock)
    with pytest.raises(ConfigError, match="everybody there would be an administrator"):
        refuse_open(config, "0.0.0.0:8501", clock)
    refuse_open(msgspec.structs.replace(config, server=ServerConfig(insecure=True)), "0.0.0.0:8501", clock)
    add_person(tokens_path(config), "ada", Role.VIEWER, now=0.0)
    refuse_open(config, "0.0.0.0:8501", clock)


def test_an_address_that_is_none_and_a_missing_package_are_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(main, ["dashboard", "--listen", "8501", "--state-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert "write it as host:port, e.g. 127.0.0.1:8501" in done.output
    monkeypatch.setattr(dashboard_process, "installed", lambda: False)
    done = CliRunner().invoke(main, ["dashboard", "--state-dir", str(tmp_path)])
    assert "pip install 'eagle-eye[dashboard]'" in done.output


def test_the_address_is_told_as_this_machine_reaches_it(tmp_path: Path) -> None:
    reached = {"0.0.0.0:80": "http://127.0.0.1:80", "[::1]:80": "http://[::1]:80", "10.0.0.1:8501": "http://10.0.0.1:8501"}
    assert {listen: Dashboard(Config(state_dir=str(tmp_path)), listen, FakeClock()).url for listen in reached} == reached


def test_a_run_that_was_packed_is_the_same_when_it_is_opened_again(tmp_path: Path, ledger: Ledger) -> None:
    RecordedJob(tmp_path).run(90).write()
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    run_archive.mark(tmp_path, began=T0, ended=T0 + 90, seed=7, command="eagle-eye demo --seed 7")
    packed, opened = tmp_path / "packed", tmp_path / "opened"
    run_archive.pack(tmp_path, packed)
    assert len(list(packed.rglob("*.parquet"))) == 3
    opened.mkdir()
    sources = Sources(run_archive.unpack(opened, packed))
    assert [line.id for line in incidents.listed(sources)] == ["incident-1"]
    (job,) = cluster.overview(sources, since=T0, until=sources.now()).jobs
    assert (job.job, job.step) == (JOB, 89)
    sources.close()


def test_a_packed_run_names_neither_this_machine_nor_its_folders(tmp_path: Path, ledger: Ledger) -> None:
    RecordedJob(tmp_path).run(90).write()
    ledger.save_notice(Notice(name="x", time=1.0, message=f"{socket.gethostname()} runs {dashboard_process.__file__}"))
    ledger.close()
    run_archive.mark(tmp_path, began=T0, ended=T0 + 90, seed=7, command="eagle-eye demo --seed 7")
    run_archive.pack(tmp_path, tmp_path / "packed")
    (tmp_path / "opened").mkdir()
    sources = Sources(run_archive.unpack(tmp_path / "opened", tmp_path / "packed"))
    assert [notice.message for notice in sources.ledger.notices()] == ["this-machine runs /opt/eagle-eye/eagle_eye/app/dashboard_process.py"]
    sources.close()


def test_a_folder_without_a_recorded_run_says_how_one_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make one with `eagle-eye demo --record"):
        run_archive.unpack(tmp_path, tmp_path / "nothing")
