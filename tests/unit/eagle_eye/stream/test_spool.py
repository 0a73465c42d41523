"""The writer that never waits: order, outages, restarts, bounds, and a full disk under the spool."""

import math
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from eagle_eye.clock import SystemClock
from eagle_eye.errors import StreamError, StreamFull, StreamRefused, StreamUnavailable
from eagle_eye.stream import spool_file
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.stream.spool_file import SpooledRecord, SpoolFile
from eagle_eye.types import Notice
from fakes.full_disk import file_size_limit

DEADLINE_S = 20.0


class Switched(EmbeddedStream):
    """A real stream behind a switch."""

    error: StreamError | None = None

    def append(self, topic: str, items: Sequence[tuple[str, bytes]]) -> None:
        if self.error is not None:
            raise self.error
        super().append(topic, items)


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Switched]:
    with Switched(tmp_path / "stream") as stream:
        yield stream


@pytest.fixture
def notices() -> list[Notice]:
    return []


@pytest.fixture
def make(stream: Switched, tmp_path: Path, notices: list[Notice]) -> Iterator[Callable[..., SpooledWriter]]:
    made: list[SpooledWriter] = []

    def make(**options: int) -> SpooledWriter:
        writer = SpooledWriter(
            stream, tmp_path / "spool", clock=SystemClock(), retry_s=0.005, on_notice=notices.append, **options
        )
        made.append(writer)
        return writer

    yield make
    for writer in made:
        writer.close()


def wait_for(condition: Callable[[], bool]) -> None:
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + DEADLINE_S
    while not condition():
        assert clock.monotonic() < deadline, "waited in vain"
        pause.wait(0.002)


def values(stream: EmbeddedStream) -> list[bytes]:
    return [message.value for message in stream.read("t", 0, 0, 100_000)]


def test_records_arrive_in_order(stream: Switched, make: Callable[..., SpooledWriter]) -> None:
    writer = make()
    for i in range(3000):
        writer.write("t", "k", b"%d" % i)
    assert writer.flush(DEADLINE_S)
    assert values(stream) == [b"%d" % i for i in range(3000)]
    assert writer.status() == (0, 0, 0, 0.0, False, 0)


@pytest.mark.parametrize("error", [StreamUnavailable("gone"), StreamFull("full"), StreamError("odd")])
def test_an_outage_loses_nothing_and_is_told_once(
    stream: Switched, make: Callable[..., SpooledWriter], notices: list[Notice], error: StreamError
) -> None:
    writer = make()
    writer.write("t", "k", b"before")
    assert writer.flush(DEADLINE_S)
    stream.error = error
    for i in range(500):
        writer.write("t", "k", b"%d" % i)
    wait_for(lambda: writer.status().spooled == 500)
    assert writer.status().away
    assert writer.status().oldest_age_s > 0
    assert not writer.flush(0.02)
    stream.error = None
    writer.write("t", "k", b"after")
    assert writer.flush(DEADLINE_S)
    assert values(stream) == [b"before", *[b"%d" % i for i in range(500)], b"after"]
    wait_for(lambda: len(notices) == 2)
    assert [notice.name for notice in notices] == ["stream.away", "stream.recovered"]
    assert str(error) in notices[0].message


def test_the_next_start_hands_on_what_the_last_one_left(
    stream: Switched, make: Callable[..., SpooledWriter], tmp_path: Path
) -> None:
    stream.error = StreamUnavailable("gone")
    first = make()
    for i in range(100):
        first.write("t", "k", b"%d" % i)
    first.close()
    assert (tmp_path / "spool" / "records.spool").stat().st_size > 0
    stream.error = None
    second = make()
    second.write("t", "k", b"next")
    assert second.flush(DEADLINE_S)
    assert values(stream) == [*[b"%d" % i for i in range(100)], b"next"]
    second.close()
    assert not (tmp_path / "spool" / "records.spool").exists()


def test_a_full_spool_refuses_the_newest_batches_and_keeps_events(
    stream: Switched, make: Callable[..., SpooledWriter], notices: list[Notice]
) -> None:
    stream.error = StreamUnavailable("gone")
    writer = make(max_bytes=20_000)
    for i in range(100):
        writer.write("t", "k", b"%02d" % i + bytes(1000))
    writer.write("t", "k", b"event" + bytes(2000), keep=True)
    wait_for(lambda: writer.status().spooled + writer.status().dropped == 101)
    dropped = writer.status().dropped
    assert 75 <= dropped <= 85
    stream.error = None
    assert writer.flush(DEADLINE_S)
    found = values(stream)
    assert [value[:2] for value in found[:-1]] == [b"%02d" % i for i in range(100 - dropped)]
    assert found[-1] == b"event" + bytes(2000)
    assert "spool.dropped" in [notice.name for notice in notices]


def test_a_record_that_can_never_be_taken_does_not_block_the_others(
    stream: Switched, make: Callable[..., SpooledWriter]
) -> None:
    writer = make()
    for i in range(10):
        writer.write("t", "k", b"%d" % i)
        writer.write("no topic!", "k", b"x")
    assert writer.flush(DEADLINE_S)
    assert values(stream) == [b"%d" % i for i in range(10)]
    assert writer.status().dropped == 10


def test_one_bad_record_among_good_ones_of_a_batch(
    tmp_path: Path, make: Callable[..., SpooledWriter], stream: Switched
) -> None:
    original = stream.append

    def picky(topic: str, items: Sequence[tuple[str, bytes]]) -> None:
        if any(value == b"bad" for _key, value in items):
            raise StreamRefused("too odd")
        original(topic, items)

    stream.append = picky  # type: ignore[method-assign]
    writer = make()
    for i in range(20):
        writer.write("t", "k", b"bad" if i == 13 else b"%d" % i)
    assert writer.flush(DEADLINE_S)
    assert values(stream) == [b"%d" % i for i in range(20) if i != 13]


def test_a_full_disk_under_the_spool_falls_back_to_bounded_memory(
    stream: Switched, make: Callable[..., SpooledWriter], notices: list[Notice]
) -> None:
    stream.error = StreamUnavailable("gone")
    writer = make(memory_bytes=50_000)
    with file_size_limit(10_000):
        for i in range(100):
            writer.write("t", "k", b"%02d" % i + bytes(1000))
        wait_for(lambda: writer.status().dropped > 0 and "spool.failing" in [notice.name for notice in notices])
    stream.error = None
    assert writer.flush(DEADLINE_S)
    found = [int(value[:2]) for value in values(stream)]
    assert 40 <= len(found) < 100
    assert found == list(range(len(found)))
    assert [notice.name for notice in notices].count("spool.failing") == 1


def test_write_never_raises_even_after_close(make: Callable[..., SpooledWriter]) -> None:
    writer = make()
    writer.close()
    writer.write("t", "k", b"too late")
    assert writer.status().dropped == 1


def test_a_receiver_of_notices_that_fails_does_not_end_the_writer(stream: Switched, tmp_path: Path) -> None:
    def receiver(notice: Notice) -> None:
        raise RuntimeError("the receiver's mistake")

    stream.error = StreamUnavailable("gone")
    writer = SpooledWriter(stream, tmp_path / "s", clock=SystemClock(), retry_s=0.005, on_notice=receiver)
    writer.write("t", "k", b"1")
    wait_for(lambda: writer.status().spooled == 1)
    stream.error = None
    assert writer.flush(DEADLINE_S)
    writer.close()


# --- the file ----------------------------------------------------------------------------------------------------


def records(*numbers: int) -> list[SpooledRecord]:
    return [SpooledRecord("t", f"k{i}", b"%d" % i * 50, float(i)) for i in numbers]


@pytest.mark.parametrize("cut", [1, 5, 20, 60])
def test_a_torn_tail_is_cut_off(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.spool"
    file = SpoolFile(path)
    file.append(records(0, 1, 2))
    file.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = SpoolFile(path)
    assert again.cut > 0
    assert again.count == 2
    assert again.peek(10, 1 << 20)[0] == records(0, 1)
    again.append(records(7))
    assert again.peek(10, 1 << 20)[0] == records(0, 1, 7)
    again.close()


def test_the_position_outlives_the_writer(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "a.spool")
    file.append(records(0, 1, 2, 3))
    taken, position = file.peek(2, 1 << 20)
    assert taken == records(0, 1)
    file.drop(2, position)
    assert file.oldest == 2.0
    file.close()
    again = SpoolFile(tmp_path / "a.spool")
    assert (again.count, again.oldest, again.cut) == (2, 2.0, 0)
    assert again.peek(10, 1 << 20)[0] == records(2, 3)
    again.close()


def test_peek_keeps_to_its_bounds_but_gives_at_least_one(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "a.spool")
    file.append(records(0, 1, 2))
    assert file.peek(10, 1)[0] == records(0)
    assert file.peek(2, 1 << 20)[0] == records(0, 1)
    file.close()


def test_a_damaged_frame_in_the_middle_costs_itself_and_is_counted(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "a.spool")
    file.append(records(0, 1, 2, 3))
    content = bytearray(file.path.read_bytes())
    content[content.index(b"k2") + 10] ^= 1
    file.path.write_bytes(content)
    taken, position = file.peek(10, 1 << 20)
    assert taken == records(0, 1, 3)
    file.drop(3, position)
    assert (file.count, file.lost) == (0, 1)
    file.close()


def test_a_flipped_byte_costs_one_record_at_most_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.spool"
    file = SpoolFile(path)
    file.append(records(0, 1, 2, 3, 4))
    taken, position = file.peek(1, 1 << 20)
    file.drop(1, position)
    file.close()
    whole, waits = path.read_bytes(), records(1, 2, 3, 4)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        again = SpoolFile(path)
        found = [record for record in again.peek(10, 1 << 20)[0] if record not in taken]  # what was handed on may come again
        assert len(found) >= 3 if place >= position else found == waits, place
        assert [record for record in waits if record in found] == found
        os.close(again._descriptor)


def test_a_position_that_the_disk_gives_back_wrong_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.spool"
    file = SpoolFile(path)
    file.append(records(0, 1, 2))
    file.close()
    content = bytearray(path.read_bytes())
    content[8:16] = (len(content)).to_bytes(8, "little")
    path.write_bytes(content)
    again = SpoolFile(path)
    assert again.peek(10, 1 << 20)[0] == records(0, 1, 2)
    again.close()


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<dHI", 1.0, 3, 2) + b"\xff\xfe\xfdk9value",
        struct.pack("<dHI", 1.0, 1, 2) + b"t\xff\xfevalue",
        struct.pack("<dHI", 1.0, 0xFFFF, 0xFFFFFFFF) + b"tk9value",
        struct.pack("<dHI", math.nan, 1, 2) + b"tk9value",
        struct.pack("<dHI", math.inf, 1, 2) + b"tk9value",
    ],
    ids=["topic", "key", "lengths", "no time", "endless time"],
)
def test_a_frame_that_is_whole_and_says_nothing_costs_itself(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "a.spool"
    file = SpoolFile(path)
    file.append(records(0, 1))
    file.close()
    frame = b"\xeeREC" + struct.pack("<II", len(body), zlib.crc32(body)) + body
    whole = path.read_bytes()
    path.write_bytes(whole + frame + whole[20:])
    again = SpoolFile(path)
    assert again.peek(10, 1 << 20)[0] == [*records(0, 1), *records(0, 1)]
    assert (again.count, again.damaged) == (4, len(frame))
    again.close()


def test_a_spool_full_of_marks_that_lie_does_not_keep_its_reader_busy_for_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.spool"
    file = SpoolFile(path)
    file.append(records(0, 1))
    file.close()
    lie = b"\xeeREC" + struct.pack("<II", 40_000, 0)
    path.write_bytes(path.read_bytes() + lie * 4_000 + b"\0" * 40_000)
    read = 0

    def counted(descriptor: int, length: int, place: int, pread: Callable[[int, int, int], bytes] = os.pread) -> bytes:
        nonlocal read
        read += length
        return pread(descriptor, length, place)

    monkeypatch.setattr(spool_file, "_WASTED_MOST", 1 << 20)
    monkeypatch.setattr(os, "pread", counted)
    again = SpoolFile(path)
    monkeypatch.undo()
    assert read < 40 << 20, "all of them together claim 160 MB"
    assert again.peek(10, 1 << 20)[0] == records(0, 1)
    again.close()


def test_an_append_that_fails_leaves_no_half_frame(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "a.spool")
    file.append(records(0))
    size = file.path.stat().st_size
    with file_size_limit(size + 30), pytest.raises(OSError, match="too large"):
        file.append(records(1))
    assert file.path.stat().st_size == size
    file.append(records(2))
    assert file.peek(10, 1 << 20)[0] == records(0, 2)
    file.close()
