"""Pages over a history that is not whole: what is missing is said, and no line is drawn over it."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dashboard.pages.cluster import stale
from dashboard.queries import cluster, job
from dashboard.sources import RECORDED, VARIABLE, Recorded, Sources
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config, HistoryConfig
from eagle_eye.ledger import Ledger
from eagle_eye.types import Culprit, Entity, IncidentState, Kind
from fakes.dashboard_page import drawn, numbers, page, shown
from fakes.sample_values import JOB, a_layout, an_incident
from fakes.small_deployment import T0, RecordedJob

LENGTH = 180


@pytest.fixture
def whole(tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run of three minutes that is over, without its history yet."""
    import streamlit

    streamlit.cache_resource.clear()
    config = Config(state_dir=str(tmp_path))
    monkeypatch.setenv(VARIABLE, msgspec.json.encode(config).decode())
    (tmp_path / RECORDED).write_bytes(msgspec.json.encode(Recorded(began=T0, ended=T0 + LENGTH, command="eagle-eye demo")))
    ledger.save_job(JOB, a_layout(), "127.0.0.1:1", "none", 0)
    yield tmp_path
    streamlit.cache_resource.clear()


def inside(times: list[str]) -> list[int]:
    """Indices of points well within the gap, from 22:16:00 to 22:17:00 UTC."""
    return [place for place, time in enumerate(times) if "22:16:02" < time[11:] < "22:16:50"]


def unbroken(figure: dict) -> list[str]:
    """Names of lines that have a number within the gap, or no point there that breaks them."""
    lines = [trace for trace in figure["data"] if trace.get("name") and trace.get("yaxis") not in ("y5", "y6")]
    assert lines
    return [trace["name"] for trace in lines if not inside(trace["x"]) or any(trace["y"][place] is not None for place in inside(trace["x"]))]


def test_a_time_of_which_nothing_was_written_breaks_every_line_and_is_told_from_a_job_that_stood(whole: Path) -> None:
    RecordedJob(whole).run(60).run(60, 120, step=60).write()
    test = page("job", job=JOB).run()
    timeline, workers = drawn(test)
    assert unbroken(timeline) == []
    [cells] = workers["data"]
    shares = numbers(cells["z"])
    assert np.isnan(shares[:, inside(cells["x"])]).all()
    assert np.isfinite(shares).any()
    assert "No number for 1\u202fmin" in shown(test)
    assert "22:15:59 to 22:17:00" in shown(test)
    assert "nothing was written" in shown(test)


def test_a_job_that_stood_still_while_its_nodes_were_heard_is_told_so_and_that_it_cost_goodput(whole: Path) -> None:
    RecordedJob(whole).run(60).run(60, 60, idle=True).run(60, 120, step=60).write()
    test = page("job", job=JOB).run()
    assert unbroken(drawn(test)[0]) == ["Goodput"], "it is known, and falls"
    assert "No step for 1\u202fmin" in shown(test)
    assert "the job was stalled, while its nodes sent telemetry" in shown(test)


def test_a_whole_history_is_drawn_whole_and_says_nothing_of_gaps(whole: Path) -> None:
    RecordedJob(whole).run(LENGTH).write()
    test = page("job", job=JOB).run()
    assert "ee-pauses" not in shown(test)
    assert all(value is not None for trace in drawn(test)[0]["data"] if trace.get("name") == "Loss" for value in trace["y"])


def test_evidence_around_a_gap_says_why_its_lines_break(whole: Path, ledger: Ledger) -> None:
    RecordedJob(whole).run(60).run(60, 120, step=60).write()
    node = Entity(kind=Kind.NODE, name="node-a")
    ledger.save_incident(an_incident(cause="slow node", culprits=(Culprit(entity=node, confidence=0.9),), since=T0 + 125, time=T0 + 127), IncidentState.OPEN)
    test = page("incident", incident="incident-1").run()
    assert drawn(test)
    assert all(None in trace["y"] for figure in drawn(test) for trace in figure["data"])
    assert "A line breaks where no step was done, or no number was written." in shown(test)


def test_numbers_that_stopped_coming_are_said_before_anything_else(tmp_path: Path, ledger: Ledger) -> None:
    RecordedJob(tmp_path).run(60).write()
    ledger.save_job(JOB, a_layout(), "127.0.0.1:1", "none", 0)
    for later, file_s, said in ((0, 30.0, ""), (60, 30.0, ""), (120, 30.0, "in the last 90 s"), (120, 60.0, ""), (300, 60.0, "in the last 180 s")):
        known = Sources(Config(state_dir=str(tmp_path), history=HistoryConfig(file_s=file_s)), clock=FakeClock(T0 + 60 + later))
        banner = stale(known, cluster.overview(known, since=T0, until=T0 + 60 + later))
        known.close()
        assert said in (banner or "nothing") if said else banner is None


def test_where_no_job_runs_nobody_is_called_for_numbers_that_do_not_come(tmp_path: Path, ledger: Ledger) -> None:
    RecordedJob(tmp_path).run(60).write()
    known = Sources(Config(state_dir=str(tmp_path)), clock=FakeClock(T0 + 500))
    assert stale(known, cluster.overview(known, since=T0, until=T0 + 500)) is None
    assert [pause.sampled for pause in job.timeline(known, JOB, since=T0, until=T0 + 500).pauses] == []
    known.close()
