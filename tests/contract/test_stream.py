"""What every stream must do. A new kind of stream is one more entry in FACTORIES.

EAGLE_EYE_KAFKA=host:port adds Kafka on that broker, as tests/services/test_kafka.py does; it keeps their topics.
"""

import json
import multiprocessing
import os
import runpy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from eagle_eye.clock import FakeClock, SystemClock
from eagle_eye.config import KafkaConfig
from eagle_eye.errors import StreamError, StreamRefused, StreamUnavailable
from eagle_eye.stream import Message, Position, Stream
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.stream.kafka import KafkaStream
from eagle_eye.stream.memory import MemoryLog, MemoryStream
from eagle_eye.stream.partitioner import MAX_RECORD_BYTES
from eagle_eye.types import digest_of

TOPIC = "observations"
Open = Callable[[], Stream]


def _embedded(directory: Path) -> Open:
    return lambda: EmbeddedStream(directory, partitions=4, busy_s=0.2)


def _memory(_: Path) -> Open:
    log = MemoryLog(partitions=4)
    return lambda: MemoryStream(log)


class Apart:
    """A stream whose topics and groups are of one test alone, on a broker that many tests use."""

    def __init__(self, stream: Stream, prefix: str) -> None:
        self._stream, self._prefix = stream, prefix

    def append(self, topic: str, items: Sequence[tuple[str, bytes]]) -> list[Position]:
        return self._stream.append(self._prefix + topic, items)

    def read(self, topic: str, partition: int, offset: int, limit: int = 1024) -> list[Message]:
        found = self._stream.read(self._prefix + topic, partition, offset, limit)
        return [message._replace(topic=message.topic.removeprefix(self._prefix)) for message in found]

    def partitions(self, topic: str) -> int:
        return self._stream.partitions(self._prefix + topic)

    def partition_of(self, topic: str, key: str) -> int:
        return self._stream.partition_of(self._prefix + topic, key)

    def begin(self, topic: str, partition: int) -> int:
        return self._stream.begin(self._prefix + topic, partition)

    def end(self, topic: str, partition: int) -> int:
        return self._stream.end(self._prefix + topic, partition)

    def wait(self, topic: str, partition: int, offset: int, timeout: float) -> bool:
        return self._stream.wait(self._prefix + topic, partition, offset, timeout)

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        self._stream.commit(self._prefix + group, self._prefix + topic, partition, offset)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        return self._stream.committed(self._prefix + group, self._prefix + topic, partition)

    def close(self) -> None:
        self._stream.close()


BROKER = os.environ.get("EAGLE_EYE_KAFKA")


def _kafka(directory: Path) -> Open:
    prefix = f"test-{digest_of(str(directory))}-"
    return lambda: Apart(KafkaStream(KafkaConfig(brokers=str(BROKER), timeout_s=5.0), partitions=4), prefix)


FACTORIES = {"embedded": _embedded, "memory": _memory, **({"kafka": _kafka} if BROKER else {})}
"""Name → function of a directory that returns a function which opens the stream (again, or in another process)."""
SHARED = sorted(FACTORIES.keys() - {"memory"})
"""Those that several processes can use."""
between_processes = pytest.mark.parametrize("name", SHARED, indirect=True)
only_embedded = pytest.mark.parametrize("name", ["embedded"], indirect=True)


@pytest.fixture(params=sorted(FACTORIES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def reopen(name: str, tmp_path: Path) -> Open:
    return FACTORIES[name](tmp_path / "stream")


@pytest.fixture
def stream(reopen: Open) -> Iterator[Stream]:
    with closing(reopen()) as stream:
        yield stream


def values(stream: Stream, partition: int, topic: str = TOPIC) -> list[bytes]:
    offset, found = stream.begin(topic, partition), []
    while messages := stream.read(topic, partition, offset, 100):
        found += [message.value for message in messages]
        offset = messages[-1].offset + 1
    return found


def everything(stream: Stream, topic: str = TOPIC) -> list[bytes]:
    return [value for partition in range(stream.partitions(topic)) for value in values(stream, partition, topic)]


def key_of(stream: Stream, partition: int) -> str:
    return next(key for key in map(str, range(1000)) if stream.partition_of(TOPIC, key) == partition)


# --- records ---------------------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was_written(stream: Stream) -> None:
    stream.append(TOPIC, [("tenant/name/rün", b"\x00\xff" * 100)])
    partition = stream.partition_of(TOPIC, "tenant/name/rün")
    (message,) = stream.read(TOPIC, partition, 0)
    assert (message.topic, message.partition, message.key, message.value) == (
        TOPIC,
        partition,
        "tenant/name/rün",
        b"\x00\xff" * 100,
    )
    assert abs(message.time - SystemClock().now()) < 60


def test_records_of_a_key_stay_in_order_over_appends_of_many_keys(stream: Stream) -> None:
    for step in range(50):
        stream.append(TOPIC, [(f"job-{job}", f"{job}:{step}".encode()) for job in range(10)])
    for job in range(10):
        found = values(stream, stream.partition_of(TOPIC, f"job-{job}"))
        assert [v for v in found if v.startswith(b"%d:" % job)] == [f"{job}:{step}".encode() for step in range(50)]


def test_append_tells_where_each_record_lies(stream: Stream) -> None:
    items = [(str(i), b"%d" % i) for i in range(40)]
    for _ in range(2):
        for (key, value), place in zip(items, stream.append(TOPIC, items), strict=True):
            (found,) = stream.read(TOPIC, place.partition, place.offset, 1)
            assert (found.key, found.value, found.offset) == (key, value, place.offset)


def test_a_read_far_behind_begins_at_the_oldest_and_one_beyond_the_end_finds_nothing(stream: Stream) -> None:
    stream.append(TOPIC, [("k", b"%d" % i) for i in range(3000)])
    partition = stream.partition_of(TOPIC, "k")
    end = stream.end(TOPIC, partition)
    assert [message.value for message in stream.read(TOPIC, partition, end - 2)] == [b"2998", b"2999"]
    assert stream.read(TOPIC, partition, end) == stream.read(TOPIC, partition, end + 50) == []
    assert [message.value for message in stream.read(TOPIC, partition, -5, 2)] == [b"0", b"1"]
    assert [message.value for message in stream.read(TOPIC, partition, stream.begin(TOPIC, partition) + 2, 2)] == [b"2", b"3"]


def test_keys_spread_over_all_partitions_and_offsets_rise(stream: Stream) -> None:
    stream.append(TOPIC, [(str(i), b"x") for i in range(200)])
    for partition in range(stream.partitions(TOPIC)):
        messages = stream.read(TOPIC, partition, 0, 1000)
        assert messages
        offsets = [message.offset for message in messages]
        assert offsets == sorted(set(offsets))
        assert stream.begin(TOPIC, partition) <= offsets[0]
        assert stream.end(TOPIC, partition) == offsets[-1] + 1


@between_processes
def test_a_key_goes_to_the_same_partition_in_another_process(stream: Stream, name: str, tmp_path: Path) -> None:
    mine = [stream.partition_of(TOPIC, f"job-{i}") for i in range(50)]
    finish(start_child("partitions", name, tmp_path / "stream"))
    assert json.loads((tmp_path / "partitions").read_text()) == mine


def test_topics_do_not_mix(stream: Stream) -> None:
    stream.append("one", [("k", b"1")])
    stream.append("two", [("k", b"2")])
    assert everything(stream, "one") == [b"1"]
    assert everything(stream, "two") == [b"2"]


def test_an_empty_topic_reads_as_empty(stream: Stream) -> None:
    assert stream.read(TOPIC, 0, 0) == []
    assert stream.begin(TOPIC, 0) == stream.end(TOPIC, 0)
    stream.append(TOPIC, [])


def test_what_can_never_be_taken_is_refused_for_good(stream: Stream) -> None:
    with pytest.raises(StreamRefused, match="name a topic"):
        stream.append("../outside", [("k", b"v")])
    with pytest.raises(StreamRefused, match="split it"):
        stream.append(TOPIC, [("k", bytes(MAX_RECORD_BYTES + 1))])


def test_a_partition_that_is_not_there_is_named(stream: Stream) -> None:
    with pytest.raises(StreamError, match="no partition 99: it has 4"):
        stream.read(TOPIC, 99, 0)


def test_records_and_commits_are_there_after_reopening(reopen: Open) -> None:
    with closing(reopen()) as stream:
        stream.append(TOPIC, [("k", b"%d" % i) for i in range(10)])
        partition = stream.partition_of(TOPIC, "k")
        end = stream.end(TOPIC, partition)
        stream.commit("engine", TOPIC, partition, end)
    with closing(reopen()) as stream:
        assert everything(stream) == [b"%d" % i for i in range(10)]
        assert stream.committed("engine", TOPIC, partition) == end
        stream.append(TOPIC, [("k", b"next")])
        assert [message.value for message in stream.read(TOPIC, partition, end)] == [b"next"]


def test_closed_means_closed(reopen: Open) -> None:
    stream = reopen()
    stream.append(TOPIC, [("k", b"v")])
    stream.close()
    with pytest.raises(StreamError, match="closed"):
        stream.append(TOPIC, [("k", b"v")])


# --- waiting ---------------------------------------------------------------------------------------------------


@between_processes
def test_wait_returns_when_another_process_appends(stream: Stream, name: str, tmp_path: Path) -> None:
    partition = stream.partition_of(TOPIC, "0:0")
    assert not stream.wait(TOPIC, partition, 0, 0.0)
    child = start_child("append", name, tmp_path / "stream", 0, 1)
    assert stream.wait(TOPIC, partition, 0, 30.0)
    assert values(stream, partition) == [b"0:0"]
    finish(child)


def test_wait_for_a_later_offset_does_not_return_for_an_earlier_record(stream: Stream) -> None:
    partition = stream.partition_of(TOPIC, "k")
    assert stream.append(TOPIC, [("k", b"v")]) == [Position(partition, stream.begin(TOPIC, partition))]
    end = stream.end(TOPIC, partition)
    assert stream.wait(TOPIC, partition, end - 1, 5.0)
    assert not stream.wait(TOPIC, partition, end, 0.01)


# --- groups ----------------------------------------------------------------------------------------------------


def test_groups_do_not_see_each_others_commits(stream: Stream) -> None:
    stream.commit("engine", TOPIC, 0, 5)
    assert stream.committed("history", TOPIC, 0) is None
    assert stream.committed("engine", TOPIC, 1) is None


# --- several processes and threads -----------------------------------------------------------------------------


@between_processes
def test_processes_append_side_by_side_and_nothing_is_lost_or_doubled(
    stream: Stream, name: str, tmp_path: Path
) -> None:
    children = [start_child("append", name, tmp_path / "stream", writer, 300) for writer in range(2)]
    for child in children:
        finish(child)
    found = everything(stream)
    for writer in range(2):
        assert [v for v in found if v.startswith(b"%d:" % writer)] == [b"%d:%d" % (writer, i) for i in range(300)]
    assert len(found) == 600


@between_processes
def test_processes_that_start_at_once_make_one_stream_together(reopen: Open, name: str, tmp_path: Path) -> None:
    children = [start_child("append", name, tmp_path / "stream", writer, 5) for writer in range(4)]
    for child in children:
        finish(child)
    with closing(reopen()) as stream:
        assert len(everything(stream)) == 20


def test_threads_share_one_stream(stream: Stream) -> None:
    def work(writer: int) -> None:
        for i in range(100):
            stream.append(TOPIC, [("k", b"%d:%d" % (writer, i))])
            stream.read(TOPIC, 0, 0, 10)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = everything(stream)
    assert len(found) == 400
    for writer in range(4):
        assert [v for v in found if v.startswith(b"%d:" % writer)] == [b"%d:%d" % (writer, i) for i in range(100)]


# --- what only the embedded one promises -----------------------------------------------------------------------


@only_embedded
def test_while_the_stream_is_held_appends_are_away_and_reads_answer(stream: Stream, reopen: Open) -> None:
    assert isinstance(stream, EmbeddedStream)
    stream.append(TOPIC, [("k", b"before")])
    with closing(reopen()) as other:
        with stream.hold():
            with pytest.raises(StreamUnavailable, match="held the write lock"):
                other.append(TOPIC, [("k", b"meanwhile")])
            assert everything(other) == [b"before"]
        other.append(TOPIC, [("k", b"after")])
        assert everything(other) == [b"before", b"after"]


def test_records_beyond_the_retention_go_and_begin_moves(tmp_path: Path) -> None:
    clock = FakeClock()
    with EmbeddedStream(tmp_path, retention_s=60.0, clock=clock) as stream:
        stream.append(TOPIC, [("k", b"old")] * 300)
        clock.advance(61.0)
        stream.append(TOPIC, [("k", b"new")])
        stream.trim()
        assert everything(stream) == [b"new"]
        assert stream.begin(TOPIC, 0) == 300
        assert stream.end(TOPIC, 0) == 301


def test_records_beyond_max_bytes_go_and_offsets_go_on(tmp_path: Path) -> None:
    with EmbeddedStream(tmp_path, max_bytes=1 << 20) as stream:
        for i in range(600):
            stream.append(TOPIC, [("k", b"%05d" % i + bytes(4000))])
        stream.trim()
        found = values(stream, 0)
        assert 50 <= len(found) <= 300
        assert found[-1].startswith(b"00599")
        assert stream.end(TOPIC, 0) == 600


def test_the_newest_record_outlives_every_limit_so_that_offsets_never_fall(tmp_path: Path) -> None:
    clock = FakeClock()
    with EmbeddedStream(tmp_path, retention_s=1.0, clock=clock) as stream:
        stream.append(TOPIC, [("k", b"1"), ("k", b"2")])
        clock.advance(100.0)
        stream.trim()
        assert values(stream, 0) == [b"2"]
    with EmbeddedStream(tmp_path, clock=clock) as stream:
        assert stream.end(TOPIC, 0) == 2


def test_an_existing_topic_keeps_its_number_of_partitions(tmp_path: Path) -> None:
    with EmbeddedStream(tmp_path, partitions={"a": 3}) as stream:
        assert (stream.partitions("a"), stream.partitions("b")) == (3, 1)
    with EmbeddedStream(tmp_path, partitions=8) as stream:
        assert (stream.partitions("a"), stream.partitions("b"), stream.partitions("c")) == (3, 1, 8)


# --- other processes: this file, run as a program ---------------------------------------------------------------

FORKS = multiprocessing.get_context("forkserver")  # a process that was never ours, and the imports of all that it forks only once
FORKS.set_forkserver_preload(["pytest", "eagle_eye.stream.embedded", "eagle_eye.stream.kafka"])
AS_CHILD = "child"


def start_child(command: str, name: str, directory: Path, *arguments: int) -> BaseProcess:
    child = FORKS.Process(target=runpy.run_path, args=(__file__, {"TOLD": (command, name, directory, *arguments)}, AS_CHILD), daemon=True)
    child.start()
    return child


def finish(child: BaseProcess) -> None:
    child.join(60)
    assert child.exitcode == 0


def _as_child(command: str, name: str, directory: Path, *arguments: int) -> None:
    patient = EmbeddedStream(directory, partitions=4, busy_s=30.0) if name == "embedded" else FACTORIES[name](directory)()  # however busy the machine is
    with closing(patient) as stream:
        if command == "partitions":
            directory.with_name("partitions").write_text(json.dumps([stream.partition_of(TOPIC, f"job-{i}") for i in range(50)]))
        else:
            writer, count = arguments
            for i in range(count):
                stream.append(TOPIC, [(f"{writer}:0", b"%d:%d" % (writer, i))])


if __name__ == AS_CHILD:
    _as_child(*globals()["TOLD"])
