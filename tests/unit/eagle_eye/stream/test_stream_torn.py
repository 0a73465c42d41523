"""A torn log: reported with the file and the remedy, set aside, what is readable saved, and the stream goes on."""

import os
import sqlite3
from pathlib import Path

import pytest

from eagle_eye.clock import FakeClock
from eagle_eye.errors import StreamError, StreamUnavailable
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.stream.partition_files import ERA_OFFSETS
from eagle_eye.stream.sqlite_files import PAGE_BYTES

RECORDS = 600


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with EmbeddedStream(tmp_path, clock=FakeClock()) as stream:
        for first in range(0, RECORDS, 100):
            stream.append("t", [("k", b"%05d" % i + bytes(2000)) for i in range(first, first + 100)])
    return tmp_path / "t" / "0-0.sqlite"


def numbers(stream: EmbeddedStream) -> list[int]:
    return [int(message.value[:5]) for message in stream.read("t", 0, 0, 10_000)]


def until_it_goes_on(stream: EmbeddedStream) -> tuple[list[int], list[str]]:
    errors = []
    while True:
        try:
            return numbers(stream), errors
        except StreamError as error:
            errors.append(str(error))


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_torn_pages_cost_only_the_records_on_them(log: Path) -> None:
    overwrite(log, 40 * PAGE_BYTES, b"\xa5" * 2 * PAGE_BYTES)
    with EmbeddedStream(log.parent.parent, clock=FakeClock()) as stream:
        found, errors = until_it_goes_on(stream)
    assert RECORDS - 20 <= len(found) < RECORDS
    assert found == sorted(found)
    assert {0, RECORDS - 1} <= set(found)
    assert len(errors) == 1
    assert str(log) in errors[0]
    assert "set aside" in errors[0]
    assert f"{len(found)} readable records" in errors[0]


def test_the_torn_file_stays_as_it_was(log: Path) -> None:
    overwrite(log, 40 * PAGE_BYTES, b"\xa5" * PAGE_BYTES)
    before = log.read_bytes()
    with EmbeddedStream(log.parent.parent, clock=FakeClock()) as stream:
        until_it_goes_on(stream)
        stream.append("t", [("k", b"99999")])
    assert log.read_bytes() == before


def test_a_file_cut_in_half_keeps_its_first_half(log: Path) -> None:
    os.truncate(log, log.stat().st_size // 2)
    with EmbeddedStream(log.parent.parent, clock=FakeClock()) as stream:
        found, errors = until_it_goes_on(stream)
    assert errors
    assert found == list(range(len(found)))


@pytest.mark.parametrize("content", [b"", b"no database at all" * 500])
def test_a_file_that_is_none_of_ours_any_more_is_replaced(log: Path, content: bytes) -> None:
    log.write_bytes(content)
    with EmbeddedStream(log.parent.parent, clock=FakeClock()) as stream:
        found, errors = until_it_goes_on(stream)
        assert found == []
        assert len(errors) == 1
        stream.append("t", [("k", b"00001")])
        assert numbers(stream) == [1]
        assert stream.begin("t", 0) == ERA_OFFSETS


def test_a_single_changed_byte_in_a_value_is_never_returned(log: Path) -> None:
    content = log.read_bytes()
    overwrite(log, content.index(b"00300") + 1000, b"\x01")
    with EmbeddedStream(log.parent.parent, clock=FakeClock()) as stream:
        found, errors = until_it_goes_on(stream)
    assert len(errors) == 1
    assert found == [i for i in range(RECORDS) if i != 300]


def test_offsets_go_on_rising_over_a_torn_file(log: Path) -> None:
    with EmbeddedStream(log.parent.parent, clock=FakeClock()) as stream:
        end = stream.end("t", 0)
    log.write_bytes(b"")
    with EmbeddedStream(log.parent.parent, clock=FakeClock()) as stream:
        until_it_goes_on(stream)
        stream.append("t", [("k", b"00001")])
        assert [message.value for message in stream.read("t", 0, end)] == [b"00001"]


def test_another_user_of_the_log_follows_to_the_new_file(log: Path) -> None:
    directory = log.parent.parent
    with EmbeddedStream(directory, clock=FakeClock()) as writer, EmbeddedStream(directory, clock=FakeClock()) as reader:
        writer.append("t", [("k", b"70000")])
        content = log.read_bytes()
        overwrite(log, content.index(b"00300") + 1000, b"\x01")
        found, _told = until_it_goes_on(reader)
        assert 70000 in found
        try:
            writer.append("t", [("k", b"80000")])
        except StreamUnavailable:
            writer.append("t", [("k", b"80000")])
        assert numbers(reader)[-1] == 80000
        assert numbers(writer)[-1] == 80000


def test_a_file_of_a_newer_version_is_refused_and_left_alone(log: Path) -> None:
    connection = sqlite3.connect(log)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with EmbeddedStream(log.parent.parent) as stream, pytest.raises(StreamError, match="upgrade this one"):
        stream.read("t", 0, 0)
    assert not log.with_name("0-1.sqlite").exists()


def test_torn_groups_are_told_with_the_remedy(log: Path) -> None:
    groups = log.parent.parent / "groups.sqlite"
    groups.write_bytes(b"nothing of ours" * 1000)
    with pytest.raises(StreamError, match=r"groups\.sqlite is torn.*move the file away"):
        EmbeddedStream(log.parent.parent)
