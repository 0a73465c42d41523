"""A spool on a stream that may forget: it keeps what was acknowledged until the reader has committed it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle_eye.clock import SystemClock
from eagle_eye.stream.memory import MemoryLog, MemoryStream
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.types import Notice

TOPIC, GROUP = "t", "readers"
DEADLINE_S = 20.0


class World:
    """A writer, the stream that it writes to, and the notices that it gave."""

    def __init__(self, directory: Path) -> None:
        self.log, self.directory, self.notices = MemoryLog(), directory, list[Notice]()
        self.stream = MemoryStream(self.log)
        self.writer = self.open()

    def open(self) -> SpooledWriter:
        return SpooledWriter(
            self.stream, self.directory, clock=SystemClock(), retry_s=0.005, confirm_s=0.01, confirmed_by={TOPIC: GROUP},
            on_notice=self.notices.append,
        )  # fmt: skip

    def write(self, *values: str) -> None:
        for value in values:
            self.writer.write(TOPIC, "k", value.encode())
        assert self.writer.flush(DEADLINE_S)

    def forget(self) -> None:
        with self.log.changed:
            self.log.topics.clear()
            self.log.committed.clear()

    def values(self) -> list[str]:
        return [message.value.decode() for message in self.stream.read(TOPIC, 0, 0)]

    def until(self, condition: Callable[[], bool]) -> None:
        clock = SystemClock()
        end = clock.monotonic() + DEADLINE_S
        while not condition():
            assert clock.monotonic() < end, (self.values(), self.writer.status())
            clock.sleep(0.002)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.writer.close()


def test_a_record_is_kept_until_the_reader_has_committed_it(world: World) -> None:
    world.write("a", "b", "c")
    world.until(lambda: world.writer.status().unconfirmed == 3)
    world.stream.commit(GROUP, TOPIC, 0, 2)
    world.until(lambda: world.writer.status().unconfirmed == 1)
    world.stream.commit(GROUP, TOPIC, 0, 3)
    world.until(lambda: world.writer.status().unconfirmed == 0)
    assert world.notices == []


def test_what_the_stream_has_forgotten_goes_again_and_nothing_else(world: World) -> None:
    world.write("a", "b", "c")
    world.stream.commit(GROUP, TOPIC, 0, 1)
    world.until(lambda: world.writer.status().unconfirmed == 2)
    world.forget()
    world.until(lambda: world.values() == ["b", "c"])
    world.write("d")
    assert world.values() == ["b", "c", "d"]
    assert [notice.name for notice in world.notices] == ["stream.reset"]


def test_it_goes_again_also_when_others_have_filled_the_new_stream(world: World) -> None:
    world.write("a")
    with world.log.changed:
        world.forget()
        world.stream.append(TOPIC, [("k", b"other%d" % i) for i in range(5)])
    world.until(lambda: world.values()[5:] == ["a"])


def test_after_an_outage_the_forgotten_goes_before_what_was_spooled(world: World) -> None:
    world.write("a", "b")
    world.stream.away = True
    for value in "cd":
        world.writer.write(TOPIC, "k", value.encode())
    world.until(lambda: world.writer.status().spooled == 2)
    world.forget()
    world.stream.away = False
    assert world.writer.flush(DEADLINE_S)
    assert world.values() == ["a", "b", "c", "d"]


def test_what_is_unconfirmed_when_the_writer_ends_goes_again_at_the_next_start(world: World) -> None:
    world.write("a", "b")
    world.writer.close()
    world.forget()
    world.writer = world.open()
    world.write("c")
    assert world.values() == ["a", "b", "c"]


def test_records_that_nobody_confirms_are_bounded(tmp_path: Path) -> None:
    from eagle_eye.stream.spool_file import SpooledRecord, size_of
    from eagle_eye.stream.uncommitted_records import UncommittedRecords

    records = [SpooledRecord(TOPIC, "k", b"%d" % i + bytes(1000), 0.0) for i in range(10)]
    stream = MemoryStream()
    kept = UncommittedRecords(stream, {TOPIC: GROUP}, max_bytes=4 * size_of(records[0]))
    kept.keep(TOPIC, records, stream.append(TOPIC, [(record.key, record.value) for record in records]))
    assert kept.records() == records[6:]
    assert kept.unguarded == 6


# --- how often the stream is asked --------------------------------------------------------------------------------------


class Rarely(World):
    """A writer that does not look within the time of a test, as an agent between two looks."""

    def open(self) -> SpooledWriter:
        return SpooledWriter(
            self.stream, self.directory, clock=SystemClock(), retry_s=0.005, confirm_s=3600.0, confirmed_by={TOPIC: GROUP},
            on_notice=self.notices.append,
        )  # fmt: skip


def test_a_stream_that_has_begun_anew_is_found_by_the_next_record_without_a_look(tmp_path: Path) -> None:
    world = Rarely(tmp_path)
    world.write("a", "b", "c")
    world.forget()
    world.write("d")
    world.until(lambda: sorted(world.values()) == ["a", "b", "c", "d"])
    assert [notice.name for notice in world.notices] == ["stream.reset"]
    world.write("e")
    assert world.values() == ["d", "a", "b", "c", "e"], "the order of what was lost is kept"
    world.writer.close()


def test_what_was_found_lost_by_the_last_record_outlives_the_writer(tmp_path: Path) -> None:
    world = Rarely(tmp_path)
    world.write("a", "b")
    world.forget()
    world.writer.write(TOPIC, "k", b"c")
    world.writer.close()
    world.writer = world.open()
    world.write("d")
    assert set(world.values()) == {"a", "b", "c", "d"}
    world.writer.close()


class CountingStream(MemoryStream):
    """Counts what it is asked."""

    asked = 0

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        self.asked += 1
        return super().committed(group, topic, partition)


def test_ten_thousand_agents_do_not_look_all_at_once_and_less_than_two_hundred_times_a_second(tmp_path: Path) -> None:
    """Many writers that begin at the same moment: each looks once in its time, at moments that differ."""
    from collectors.agent.agent import CONFIRM_S
    from eagle_eye.clock import FakeClock

    clock = FakeClock(1000.0)
    writers = [SpooledWriter(MemoryStream(), tmp_path, clock=clock, name=f"n{index}", confirm_s=CONFIRM_S, confirmed_by={TOPIC: GROUP}) for index in range(40)]
    moments = sorted(writer._look_at - 1000.0 for writer in writers)
    for writer in writers:
        writer.close()
    assert 2 * 10_000 / CONFIRM_S <= 200.0
    assert moments[0] >= CONFIRM_S / 2
    assert moments[-1] <= 1.5 * CONFIRM_S
    assert moments[-1] - moments[0] > CONFIRM_S / 4


def test_an_append_asks_for_no_confirmation(tmp_path: Path) -> None:
    stream = CountingStream()
    writer = SpooledWriter(stream, tmp_path, clock=SystemClock(), confirm_s=3600.0, confirmed_by={TOPIC: GROUP})
    for index in range(50):
        writer.write(TOPIC, "k", b"%d" % index)
        assert writer.flush(DEADLINE_S)
    assert stream.asked == 0
    writer.close()


def test_a_writer_that_ends_asks_once_more_so_that_little_goes_again_at_its_next_start(tmp_path: Path) -> None:
    world = Rarely(tmp_path)
    world.write("a", "b", "c")
    world.stream.commit(GROUP, TOPIC, 0, 2)
    world.writer.close()
    world.writer = world.open()
    world.write("d")
    assert world.values() == ["a", "b", "c", "c", "d"], "the reader drops the one that comes twice"
    world.writer.close()
