"""A clock that is set ahead deletes nothing of what is kept; time that passes does."""

from pathlib import Path

import pytest

from eagle_eye.app.serving.leader_services import retention_service
from eagle_eye.clock import FakeClock, SteadyClock
from eagle_eye.config import HistoryConfig
from eagle_eye.history.compaction import Compactor
from eagle_eye.history.file_names import HistoryFile
from eagle_eye.history.object_store import ObjectStore
from eagle_eye.ledger import JobOwner, Ledger
from eagle_eye.retention_clock import RetentionClock
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import Notice

DAY = 86_400.0
KEPT_S = 7 * DAY
TOPIC = "eagle-eye.observations"


def believed(clock: FakeClock, *stored: float) -> RetentionClock:
    return RetentionClock(SteadyClock(clock), KEPT_S, lambda: stored, "test")


def test_time_that_passes_is_believed_also_where_nothing_is_stored() -> None:
    clock = FakeClock()
    retention = believed(clock)
    assert retention.now() == clock.now()
    clock.advance(40 * DAY)
    assert retention.now() == clock.now()


@pytest.mark.parametrize("leap", [DAY, 40 * DAY, 400 * DAY])
def test_a_leap_is_believed_once_a_whole_retention_has_passed(leap: float) -> None:
    clock = FakeClock()
    retention = believed(clock)
    at = retention.now()
    clock.jump(leap)
    assert retention.now() == pytest.approx(at)
    clock.advance(KEPT_S - 1.0)
    assert retention.now() == pytest.approx(at + KEPT_S - 1.0)
    clock.advance(1.0)
    assert retention.now() == pytest.approx(clock.now())


def test_a_clock_that_comes_back_is_as_it_was() -> None:
    clock = FakeClock()
    retention = believed(clock)
    at = retention.now()
    for _ in range(20):
        clock.jump(40 * DAY)
        assert retention.now() == pytest.approx(at)
        clock.jump(-40 * DAY)
        assert retention.now() == pytest.approx(at)


def test_what_costs_little_is_believed() -> None:
    clock = FakeClock()
    retention = believed(clock, clock.now() - 3600.0)
    retention.now()
    clock.jump(0.09 * KEPT_S)
    assert retention.now() == pytest.approx(clock.now())


def test_a_start_under_a_wrong_clock_is_no_better_nor_is_the_second_one() -> None:
    clock = FakeClock()
    stored = [clock.now() - hours * 3600.0 for hours in range(100)]
    at = clock.now()
    clock.jump(400 * DAY)
    assert believed(clock, *stored).now() == pytest.approx(at)
    stored += [clock.now(), clock.now() + 3600.0]
    clock.advance(7200.0)
    assert believed(clock, *stored).now() == pytest.approx(at + 7200.0)
    clock.jump(-400 * DAY)  # what was written under the wrong clock says nothing
    assert believed(clock, *stored).now() == pytest.approx(clock.now())


def test_the_stream_keeps_its_records_over_a_leap_and_over_starts_under_a_wrong_clock(tmp_path: Path) -> None:
    clock = FakeClock()
    for _ in range(3):
        with EmbeddedStream(tmp_path, retention_s=KEPT_S, clock=SteadyClock(clock)) as stream:
            for _ in range(100):
                stream.append(TOPIC, [("a/b/c", b"x")])
                clock.advance(600.0)
            clock.jump(40 * DAY)
            assert stream.trim() == 0
            assert stream.begin(TOPIC, 0) == 0
    assert len(stream_messages(tmp_path, clock)) == 300


def stream_messages(directory: Path, clock: FakeClock) -> list[object]:
    with EmbeddedStream(directory, retention_s=KEPT_S, clock=clock) as stream:
        return list(stream.read(TOPIC, 0, 0))


def test_a_stream_whose_machine_was_off_for_forty_days_lets_go_of_its_records_a_retention_later(tmp_path: Path) -> None:
    clock = FakeClock()
    with EmbeddedStream(tmp_path, retention_s=KEPT_S, clock=clock) as stream:
        stream.append(TOPIC, [("a/b/c", b"old")] * 300)
    clock.advance(40 * DAY)
    with EmbeddedStream(tmp_path, retention_s=KEPT_S, clock=clock) as stream:
        stream.append(TOPIC, [("a/b/c", b"new")])
        assert stream.trim() == 0
        clock.advance(KEPT_S + 1.0)
        assert stream.trim() == 300


def test_a_stream_beyond_its_bytes_is_cut_whatever_the_clock_says(tmp_path: Path) -> None:
    clock = FakeClock()
    with EmbeddedStream(tmp_path, retention_s=KEPT_S, max_bytes=1 << 20, clock=SteadyClock(clock)) as stream:
        for _ in range(600):
            stream.append(TOPIC, [("k", bytes(4000))])
        clock.jump(40 * DAY)
        assert stream.trim() > 100


def kept_in(ledger: Ledger) -> tuple[int, int]:
    return len(ledger.job_owners()), len(ledger.notices())


def test_the_ledger_keeps_notices_and_owners_over_a_leap(tmp_path: Path) -> None:
    clock = FakeClock()
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    ledger.save_notice(Notice(name="x", time=clock.now(), message="m"))
    ledger.save_job_owner("a/b/c", JobOwner(local=True, user=1000), clock.now())
    retention = retention_service(ledger, 30 * DAY, SteadyClock(clock))
    clock.jump(400 * DAY)
    retention._work()
    assert kept_in(ledger) == (1, 1)
    ledger.save_notice(Notice(name="y", time=clock.now(), message="m"))
    retention_service(ledger, 30 * DAY, SteadyClock(clock))._work()  # the next term
    assert kept_in(ledger) == (1, 2)
    clock.advance(31 * DAY)
    retention._work()
    assert kept_in(ledger) == (0, 0)


def test_the_history_keeps_its_files_over_a_leap(tmp_path: Path) -> None:
    clock = FakeClock()
    place = ObjectStore.of(str(tmp_path / "history"))
    begin = int(clock.now())
    for window in range(begin, begin + 7200, 3600):
        file = HistoryFile(table="gpu/gpu", window=window, partition=0, first=0, last=1, earliest=window, latest=window + 30, schema="5f2c81aa")
        path = place.new(f"{window}.parquet")
        path.write_bytes(b"x")
        place.put(path, file)
    clock.advance(7200.0)
    compactor = Compactor(place, HistoryConfig(), SteadyClock(clock))
    clock.jump(40 * DAY)
    assert compactor.retain() == 0
    clock.advance(HistoryConfig().retention_s + 3600.0)
    assert compactor.retain() == 2
