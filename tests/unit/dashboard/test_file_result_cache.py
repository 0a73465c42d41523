"""What single files answer is asked for once; and what is begun ahead of its time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.cache import FileResultCache
from dashboard.errors import BrokenHistory
from dashboard.queries import steps
from dashboard.sources import Sources
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config
from eagle_eye.errors import HistoryError
from eagle_eye.history.file_names import HistoryFile
from eagle_eye.history.object_store import ObjectStore
from eagle_eye.history.queries import History
from fakes.sample_values import JOB
from fakes.small_deployment import T0, RecordedJob

QUESTION = "SELECT step, count(*) AS workers FROM {rows} GROUP BY step"
NEWEST = "SELECT max(step) AS newest, count(*) AS steps FROM committed"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Of steps, the oldest first: one for each half of a minute."""
    RecordedJob(tmp_path).run(60).write()
    return sorted((tmp_path / "history" / "steps").rglob("*.parquet"))


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(ObjectStore.of(tmp_path / "history"))
    yield made
    made.close()


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[Sources]:
    made = Sources(Config(state_dir=str(tmp_path)), clock=FakeClock(T0 + 60))
    yield made
    made.close()


def spoil(file: Path) -> None:
    """Whoever reads it again notices."""
    file.write_bytes(b"x" * file.stat().st_size)


def test_a_file_is_read_once_however_often_and_of_whatever_span_it_is_asked(sources: Sources, files: list[Path]) -> None:
    first = steps.ask(sources, NEWEST, since=T0, until=T0 + 30)
    spoil(files[0])
    again = steps.ask(sources, NEWEST, since=T0 + 10, until=T0 + 60)
    assert first is not None
    assert again is not None
    assert (first["newest"].tolist(), first["steps"].tolist()) == ([29], [30])
    assert (again["newest"].tolist(), again["steps"].tolist()) == ([59], [50])


def test_steps_of_another_job_are_told_from_the_same_answers(sources: Sources, files: list[Path]) -> None:
    assert steps.ask(sources, NEWEST, since=T0, until=T0 + 60) is not None
    for file in files:
        spoil(file)
    of_it = steps.ask(sources, NEWEST, job=JOB, since=T0, until=T0 + 60)
    assert of_it is not None
    assert of_it["steps"].tolist() == [60]
    assert steps.ask(sources, "SELECT * FROM committed", job="team/other/run", since=T0, until=T0 + 60) is None


def test_a_file_that_cannot_be_read_is_named(sources: Sources, files: list[Path]) -> None:
    spoil(files[1])
    with pytest.raises(BrokenHistory, match=files[1].name):
        steps.ask(sources, NEWEST, since=T0, until=T0 + 60)


class Late(History):
    """Its first list is one of before a file became a part of another."""

    def __init__(self, place: ObjectStore, gone: Path) -> None:
        super().__init__(place)
        self._gone: Path | None = gone

    def files(self, table: str, *, since: float, until: float) -> tuple[HistoryFile, ...]:
        found = super().files(table, since=since, until=until)
        if self._gone is not None:
            self._gone.unlink()
            self._gone = None
        return found


def test_a_file_that_is_gone_since_it_was_listed_is_not_missed(tmp_path: Path, files: list[Path]) -> None:
    history = Late(ObjectStore.of(tmp_path / "history"), files[0])
    answer = FileResultCache(history).of("steps", QUESTION, since=T0, until=T0 + 60)
    assert answer is not None
    assert min(answer["step"].to_pylist()) == 29, "what is in the others"
    history.close()


def test_what_nobody_asked_for_lately_is_forgotten(history: History, files: list[Path]) -> None:
    summaries = FileResultCache(history, rows_max=40)
    for since in (T0, T0 + 30):
        assert summaries.of("steps", QUESTION, since=since, until=since + 20) is not None
    spoil(files[1])
    assert summaries.of("steps", QUESTION, since=T0 + 31, until=T0 + 50) is not None
    spoil(files[0])
    with pytest.raises(HistoryError, match=files[0].name):
        summaries.of("steps", QUESTION, since=T0, until=T0 + 20)


def test_nothing_written_is_no_answer(history: History) -> None:
    assert FileResultCache(history).of("steps", QUESTION, since=T0, until=T0 + 60) is None


def test_what_was_begun_ahead_is_not_made_twice_and_its_error_is_told_to_whoever_asks(sources: Sources) -> None:
    made: list[int] = []

    def question() -> int:
        return sources.remembered(("x",), lambda: made.append(1) or len(made))

    def impossible() -> None:
        sources.remembered(("y",), lambda: 1 // len(made[1:]))

    sources.ahead(question, impossible)
    assert question() == 1
    assert len(made) == 1
    with pytest.raises(ZeroDivisionError):
        impossible()
