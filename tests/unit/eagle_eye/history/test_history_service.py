"""The thread that keeps a partition's history: it commits what is durable, and nothing else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from eagle_eye import wire
from eagle_eye.clock import FakeClock, SystemClock
from eagle_eye.config import HistoryConfig
from eagle_eye.history import history_service as module
from eagle_eye.history.history_service import HISTORY_GROUP, HistoryService
from eagle_eye.history.object_store import ObjectStore
from eagle_eye.history.queries import History
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.types import Batch, Block, Kind, Notice, Reading

JOB = "team/gpt/run"
T0 = 1_700_000_100.0
PATIENCE_S = 20.0


class Site:
    """A stream, its history, and a clock that both obey."""

    def __init__(self, place: ObjectStore) -> None:
        self.clock = FakeClock(T0)
        self.stream = MemoryStream(clock=self.clock)
        self.place = place
        self.notices: list[Notice] = []
        self._schemas = wire.Schemas()

    def write(self, seconds: int) -> None:
        for _ in range(seconds):
            second = round(self.clock.now() - T0)
            reading = Reading(source="host", kind=Kind.NODE, entities=("n",), names=("cpu_percent",), matrix=np.array([[second]], dtype=np.float32), time=self.clock.now())
            schema = self._schemas.schema_of(reading)
            batch = Batch(node="n", incarnation="b", job=JOB, number=second, time=self.clock.now(), blocks=(Block(schema_id=schema.id, reading=reading),))
            records = [wire.encode(schema)] if second == 0 else []
            self.stream.append(OBSERVATIONS, [(JOB, record) for record in (*records, wire.encode(batch))])
            self.clock.advance(1.0)

    @contextmanager
    def serving(self, **config) -> Iterator[HistoryService]:
        settings = HistoryConfig(**{"file_s": 30.0} | config)
        service = HistoryService(self.stream, 0, lambda: self.place, settings, clock=self.clock, on_notice=self.notices.append)
        service.start()
        try:
            yield service
        finally:
            service.stop()

    def seconds(self) -> list[float]:
        return History(self.place).series("node", ["cpu_percent"], since=T0 - 1, until=T0 + 10**6)["cpu_percent"].to_pylist()

    def committed(self, offset: int) -> Callable[[], bool]:
        return lambda: (self.stream.committed(HISTORY_GROUP, OBSERVATIONS, 0) or 0) >= offset


def wait(look: Callable[[], object]) -> None:
    clock = SystemClock()
    until = clock.monotonic() + PATIENCE_S
    while not look():
        assert clock.monotonic() < until, "waited in vain"
        clock.sleep(0.01)


@pytest.fixture
def site(tmp_path, monkeypatch) -> Site:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "WAIT_S", 0.02)
    return Site(ObjectStore.of(tmp_path / "history"))


def test_what_is_committed_is_in_the_files_and_a_restart_goes_on_there(site: Site) -> None:
    site.write(70)
    with site.serving() as first:
        wait(site.committed(61))
        assert site.seconds() == list(range(60))
        assert (first.figures.files, first.figures.rows) == (2, 60)
    site.write(50)
    with site.serving():
        wait(site.committed(91))
    assert site.seconds() == list(range(90))


def test_a_place_that_cannot_be_written_is_told_and_nothing_is_lost(site: Site, tmp_path) -> None:
    (tmp_path / "history").write_text("in the way")
    site.write(70)
    with site.serving() as service:
        wait(lambda: [notice.name for notice in site.notices] == ["history.failing"])
        wait(lambda: service.figures.failures > 1)
        assert site.stream.committed(HISTORY_GROUP, OBSERVATIONS, 0) is None
        (tmp_path / "history").unlink()
        wait(site.committed(61))
        wait(lambda: [notice.name for notice in site.notices] == ["history.failing", "history.recovered"])
    assert site.seconds() == list(range(60))


def test_a_stream_that_is_away_is_waited_for(site: Site) -> None:
    site.write(40)
    site.stream.away = True
    with site.serving():
        site.stream.away = False
        wait(site.committed(31))
    assert site.seconds() == list(range(30))
    assert site.notices == []


def test_it_tidies_up_by_itself(site: Site, monkeypatch) -> None:
    monkeypatch.setattr(module, "TEND_S", 0.0)
    monkeypatch.setattr(module, "RETAIN_S", 0.0)
    site.write(70)
    with site.serving(compact_s=60.0):
        wait(site.committed(61))
        site.clock.advance(1000.0)
        wait(lambda: any(file.merged for file in site.place.files()))
        site.clock.advance(1000.0)
        wait(lambda: len(list(site.place.files())) == 1)
    assert site.seconds() == list(range(60))


def test_what_is_too_old_is_removed_by_the_owner_of_the_first_partition(site: Site, monkeypatch) -> None:
    monkeypatch.setattr(module, "RETAIN_S", 0.0)
    site.write(70)
    with site.serving(retention_s=1000.0):
        wait(site.committed(61))
        wait(lambda: site.clock.advance(100.0) or not list(site.place.files()))
