"""The raw records around an incident: from before it to its end, over a restart, within bounds."""

import os
from pathlib import Path

import pytest

from detectors.runtime import incident_recorder
from detectors.runtime.incident_recorder import BEFORE_S, IncidentRecorder, read_records, record_path
from eagle_eye.clock import FakeClock
from eagle_eye.stream import INCIDENTS, OBSERVATIONS, Message
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.types import Incident, Severity

JOB = "t/n/r"


def incident(name: str = "i1", job: str = JOB, active: bool = True) -> Incident:
    return Incident(
        id=name,
        revision=1,
        job=job,
        cause="unknown",
        culprits=(),
        severity=Severity.INFO,
        findings=(),
        evidence=(),
        since=0.0,
        time=0.0,
        active=active,
    )


class Log:
    """A stream that gets one record of each key a second."""

    def __init__(self) -> None:
        self.clock = FakeClock(10_000.0)
        self.stream = MemoryStream(clock=self.clock)

    def pass_(self, seconds: int) -> int:
        for _ in range(seconds):
            self.clock.advance(1.0)
            now = str(self.clock.now()).encode()
            self.stream.append(OBSERVATIONS, [(JOB, now), ("t/other/r", now), ("partition-0-0", now)])
        return self.stream.end(OBSERVATIONS, 0)


@pytest.fixture
def log() -> Log:
    return Log()


def observed(path: Path) -> list[Message]:
    return [message for message in read_records(path) if message.topic == OBSERVATIONS]


def test_the_jobs_records_from_ten_minutes_before_to_the_end(log: Log, tmp_path: Path) -> None:
    recorder = IncidentRecorder(log.stream, 0, tmp_path / "records")
    began = log.pass_(1000)
    recorder.record([incident()], [], began)
    ended = log.pass_(20)
    recorder.record([incident(active=False)], [], ended)
    recorder.copy(log.pass_(50))
    path = record_path(tmp_path / "records", "i1")
    messages = observed(path)
    assert {message.key for message in messages} == {JOB, "partition-0-0"}
    assert messages[0].time == 11_000.0 - BEFORE_S
    assert messages[-1].time == 11_020.0
    assert [message.topic for message in read_records(path) if message.topic != OBSERVATIONS] == [INCIDENTS] * 2


def test_a_part_at_a_time_so_that_judging_never_waits_long(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incident_recorder, "COPIED_AT_ONCE", 10)
    recorder = IncidentRecorder(log.stream, 0, tmp_path)
    end = log.pass_(30)
    recorder.record([incident()], [], end)
    sizes = []
    for _ in range(10):
        recorder.copy(end)
        sizes.append(len(observed(record_path(tmp_path, "i1"))))
    recorder.close()
    assert sizes[0] < 10
    assert sizes[-1] == 60


def test_a_restart_goes_on_after_the_last_whole_record(log: Log, tmp_path: Path) -> None:
    first = IncidentRecorder(log.stream, 0, tmp_path)
    end = log.pass_(10)
    first.record([incident()], [], end)
    first.copy(end)
    first.close()
    path = record_path(tmp_path, "i1")
    path.write_bytes(path.read_bytes()[:-7])  # killed in the middle of a record
    again = IncidentRecorder(log.stream, 0, tmp_path)
    again.resume([incident()], end)
    again.copy(log.pass_(10))
    again.close()
    expected = [message for message in log.stream.read(OBSERVATIONS, 0, 0) if message.key != "t/other/r"]
    assert observed(path) == expected


def test_a_file_that_cannot_be_written_is_given_up(log: Log, tmp_path: Path) -> None:
    blocked = tmp_path / "records"
    blocked.write_text("a file where the directory should be")
    recorder = IncidentRecorder(log.stream, 0, blocked)
    recorder.record([incident()], [], log.pass_(3))
    recorder.copy(log.pass_(3))
    assert blocked.read_text().startswith("a file")


def test_files_are_bounded_in_size_and_number(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_recorder, "LIMIT_BYTES", 2000)
    monkeypatch.setattr(incident_recorder, "FILES_OPEN", 2)
    recorder = IncidentRecorder(log.stream, 0, tmp_path)
    end = log.pass_(100)
    recorder.record([incident(name) for name in ("i1", "i2", "i3")], [], end)
    recorder.copy(end)
    recorder.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert record_path(tmp_path, "i1").stat().st_size < 2200


def test_a_storm_of_incidents_fills_no_disk(log: Log, tmp_path: Path) -> None:
    recorder = IncidentRecorder(log.stream, 0, tmp_path, max_bytes=100_000)
    (tmp_path / "notes.txt").write_text("x" * 30_000)
    for number in range(12):
        end = log.pass_(20)
        recorder.record([incident(f"i{number}")], [], end)
        os.utime(record_path(tmp_path, f"i{number}"), (number, number))
        recorder.record([incident(f"i{number}", active=False)], [], end)
        recorder.copy(end)
        os.utime(record_path(tmp_path, f"i{number}"), (number, number))
    kept = {path.name for path in tmp_path.glob("*.records")}
    assert 1 < len(kept) < 9
    assert kept == {f"i{number}.records" for number in range(12 - len(kept), 12)}, "the oldest went first"
    assert (tmp_path / "notes.txt").exists()


def test_twin_what_is_being_recorded_stays(log: Log, tmp_path: Path) -> None:
    recorder = IncidentRecorder(log.stream, 0, tmp_path, max_bytes=1)
    end = log.pass_(50)
    recorder.record([incident("i1"), incident("i2")], [], end)
    recorder.copy(end)
    assert len(observed(record_path(tmp_path, "i1"))) == len(observed(record_path(tmp_path, "i2"))) == 100
    recorder.close()


def test_the_last_of_a_disk_is_left_to_others(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    recorder = IncidentRecorder(log.stream, 0, tmp_path)
    recorder.record([incident()], [], log.pass_(3))
    monkeypatch.setattr(incident_recorder, "FREE_BYTES", 1 << 60)
    recorder.copy(log.pass_(3))
    assert observed(record_path(tmp_path, "i1")) == []
    assert "are left to the stream and the ledger" in caplog.text


def test_an_id_that_is_no_file_name_does_not_become_a_path(tmp_path: Path) -> None:
    assert record_path(tmp_path, "../../etc/passwd").parent == tmp_path
    assert record_path(tmp_path, "..").name != "..", "two dots and a suffix are a plain name"
