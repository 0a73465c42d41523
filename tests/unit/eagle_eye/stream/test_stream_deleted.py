"""The stream's directory deleted, moved or replaced under processes that use it: told with the path and the remedy, and nothing is lost."""

import shutil
from pathlib import Path

import pytest

from eagle_eye.clock import FakeClock, SystemClock
from eagle_eye.errors import StreamUnavailable
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.stream.partition import TOLD_S
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.types import Notice


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def opened(directory: Path, clock: FakeClock) -> EmbeddedStream:
    return EmbeddedStream(directory, clock=clock, fsync_interval_s=float("inf"))


def values(stream: EmbeddedStream, since: int = 0) -> list[bytes]:
    return [message.value for message in stream.read("t", 0, since)]


def put(stream: EmbeddedStream, *records: bytes) -> None:
    stream.append("t", [("k", record) for record in records])


def told(stream: EmbeddedStream) -> str:
    with pytest.raises(StreamUnavailable) as error:
        put(stream, b"refused")
    return str(error.value)


@pytest.mark.parametrize("how", ["deleted", "moved", "files deleted", "replaced"])
def test_it_is_told_and_the_stream_goes_on_with_all_that_it_held(tmp_path: Path, clock: FakeClock, how: str) -> None:
    home = tmp_path / "stream"
    with opened(home, clock) as stream:
        put(stream, b"1", b"2")
        stream.commit("group", "t", 0, 1)
        end = stream.end("t", 0)
        if how == "moved":
            home.rename(tmp_path / "old")
        elif how == "files deleted":
            for path in (home / "t").glob("*.sqlite*"):
                path.unlink()
        else:
            shutil.rmtree(home)
        if how == "replaced":
            with opened(home, clock) as another:
                put(another, b"3")
        text = told(stream)
        assert str(home / "t" / "0-0.sqlite") in text
        assert "deleted or moved while it was in use; 2 records went over" in text
        assert "end its processes before you clear or move it" in text
        clock.advance(TOLD_S)
        put(stream, b"4")
        left = [b"3"] if how == "replaced" else []
        assert values(stream) == [b"1", b"2", *left, b"4"]
        assert values(stream, end) == [*left, b"4"], "whoever had read to the end reads what is new"
        assert stream.committed("group", "t", 0) == 1
    with opened(home, clock) as later:
        assert values(later) == [b"1", b"2", *left, b"4"]


def test_everybody_who_asks_within_a_moment_is_told_for_not_each_of_them_tells_a_person(tmp_path: Path, clock: FakeClock) -> None:
    home = tmp_path / "stream"
    with opened(home, clock) as stream:
        put(stream, b"1")
        shutil.rmtree(home)
        first = told(stream)
        with pytest.raises(StreamUnavailable) as again:
            stream.read("t", 0, 0)
        assert str(again.value) == first


@pytest.mark.parametrize("begun", [False, True], ids=["nobody had begun", "another had begun anew"])
def test_two_processes_that_had_it_open_meet_in_the_new_file(tmp_path: Path, clock: FakeClock, begun: bool) -> None:
    home = tmp_path / "stream"
    with opened(home, clock) as server, opened(home, clock) as agent:
        put(server, b"1")
        put(agent, b"2")
        shutil.rmtree(home)
        third = opened(home, clock)
        if begun:
            put(third, b"3")
        told(server)
        clock.advance(TOLD_S)
        for stream, record in ((agent, b"5"), (third, b"6"), (server, b"7")):
            try:
                put(stream, record)
            except StreamUnavailable:
                clock.advance(TOLD_S)
                put(stream, record)
        everything = [b"1", b"2", *([b"3"] if begun else []), b"5", b"6", b"7"]
        assert [values(stream) for stream in (server, agent, third)] == [everything] * 3
        third.close()


def test_where_no_directory_can_be_made_it_is_told_and_goes_on_once_it_can(tmp_path: Path, clock: FakeClock) -> None:
    home = tmp_path / "state" / "stream"
    with opened(home, clock) as stream:
        put(stream, b"1")
        shutil.rmtree(home.parent)
        home.parent.write_text("a file where the directory was")
        assert "no new one can be made" in told(stream)
        home.parent.unlink()
        told(stream)
        clock.advance(TOLD_S)
        put(stream, b"2")
        assert values(stream) == [b"1", b"2"]


def test_a_writer_keeps_its_records_and_tells_once(tmp_path: Path) -> None:
    home, notices = tmp_path / "stream", list[Notice]()
    with EmbeddedStream(home) as stream:
        writer = SpooledWriter(stream, tmp_path / "spool", clock=SystemClock(), retry_s=0.01, on_notice=notices.append)
        writer.write("t", "k", b"1")
        assert writer.flush(10.0)
        shutil.rmtree(home)
        writer.write("t", "k", b"2")
        assert writer.flush(10.0)
        writer.close()
        assert values(stream) == [b"1", b"2"]
    assert [notice.name for notice in notices] == ["stream.away", "stream.recovered"]
    assert str(home) in notices[0].message


def test_twin_a_stream_that_is_left_alone_says_nothing(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock) as stream, opened(tmp_path, clock) as another:
        for number in range(20):
            put(stream if number % 2 else another, b"%d" % number)
            clock.advance(1.0)
            stream.trim()
        assert len(values(stream)) == len(values(another)) == 20
