"""Fetchers read a partition for whoever evaluates it: the same messages in the same order, whatever becomes of them."""

import random
import select
import socket
from collections.abc import Callable, Iterator, Sequence

import pytest

from detectors.runtime import runner as runner_module
from detectors.runtime.replay import recorded_messages, replay
from detectors.runtime.runner import Runner
from eagle_eye.access.certificates import CertificateKind, Identity
from eagle_eye.clock import Clock, FakeClock, SystemClock
from eagle_eye.stream import FINDINGS, INCIDENTS, OBSERVATIONS, Message
from eagle_eye.stream import fetched_partition as module
from eagle_eye.stream.fetched_partition import FetchedPartition
from eagle_eye.stream.fetcher import NOBODY
from eagle_eye.stream.fetcher_demand import FROM_RECORDS_S, RECORDS_EACH_S, FetcherDemand
from eagle_eye.stream.memory import MemoryLog, MemoryStream
from eagle_eye.stream.record_span import RecordSpan, decode_span, encode_span
from eagle_eye.stream.tailer import Tailer
from eagle_eye.types import Notice
from fakes.fetcher_threads import FetcherThread, by_chance
from fakes.runner_partition import Exited, Hot, OneToOne, World

TOPIC = "t"
LIMIT = 100


class Site:
    """A stream, whoever reads it, and the fetchers that there were."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.stream = MemoryStream(self.log)
        self.clock = FakeClock()
        self.notices: list[Notice] = []
        self.children: list[FetcherThread] = []
        self.fail: Callable[[], str] = lambda: ""
        self.refusals = 0
        self._reads: list[FetchedPartition] = []

    def reads(self, fetchers: int, *, stream: MemoryStream | None = None, topic: str = TOPIC, clock: Clock | None = None, answer_s: float = 60.0) -> FetchedPartition:
        """`answer_s`: what hangs is told apart from what a busy machine keeps waiting."""
        stream = stream or self.stream

        def start(connection: socket.socket) -> FetcherThread:
            if self.refusals:
                self.refusals -= 1
                raise OSError(11, "no process is left")
            self.children.append(FetcherThread(connection, stream, topic, self._how))
            return self.children[-1]

        own = clock or self.clock
        self._reads.append(FetchedPartition(stream, topic, 0, start, FetcherDemand(fetchers, 8, own), clock=own, on_notice=self.notices.append, answer_s=answer_s))
        return self._reads[-1]

    def _how(self) -> str:
        return self.fail()

    def write(self, count: int) -> None:
        self.stream.append(TOPIC, [("k", f"{number}".encode()) for number in range(count)])

    def close(self) -> None:
        for reads in self._reads:
            reads.close()

    @property
    def told(self) -> list[str]:
        return [notice.name for notice in self.notices]


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


def settled(reads: FetchedPartition, fetchers: int, offset: int = 0, topic: str = TOPIC) -> FetchedPartition:
    """So many are ready."""
    clock = SystemClock()
    until = clock.monotonic() + 20.0
    while len(reads.fetchers) < fetchers or any(each.asked == NOBODY for each in reads.fetchers):
        assert clock.monotonic() < until, "waited in vain"
        reads.read(topic, 0, offset, LIMIT + 1)
        clock.sleep(0.001)
    return reads


def idle(reads: FetchedPartition) -> FetchedPartition:
    """They have nothing to do: what was asked for ahead is there, and is not wanted."""
    for each in reads.fetchers:
        assert each.asked is None or each.receive(20.0) is not None
    return reads


def all_of(tailer: Tailer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += tailer.read(LIMIT) or []
    return found


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fetchers", [1, 3])
def test_what_they_read_is_what_the_stream_holds(site: Site, fetchers: int) -> None:
    site.write(1000)
    reads = settled(site.reads(fetchers), fetchers)
    asked: list[int] = []
    site.fail = lambda: asked.append(1) or ""  # type: ignore[func-returns-value]
    tailer, found = Tailer(reads, TOPIC, 0, 0), list[Message]()
    while len(found) < 1000:
        select.select([each._socket for each in reads.fetchers if each.asked is not None], [], [], 20.0)
        found += tailer.read(LIMIT) or []
    assert found == site.stream.read(TOPIC, 0, 0, 2000)
    assert reads.fetched >= 900, "by them, not beside them"
    assert len(site.children) == fetchers
    assert len(asked) <= 1000 // (LIMIT - 1) + 2 + fetchers, "what is read ahead is what is asked for next"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_becomes_of_them_each_message_is_read_once_in_order(site: Site, seed: int) -> None:
    rng, reads = random.Random(seed), settled(site.reads(3, answer_s=0.1), 3)
    site.fail = by_chance(seed, dies=0.15, raises=0.15, hangs=0.02)
    tailer, found, written = Tailer(reads, TOPIC, 0, 0), list[Message](), 0
    while written < 5000 or len(site.children) < 5:
        site.write(count := rng.choice((0, 1, 30, 400)))
        written += count
        site.clock.advance(rng.choice((0.01, 1.0, 100.0)))
        for _ in range(rng.randrange(3)):
            found += tailer.read(LIMIT) or []
    found += all_of(tailer, written - len(found))
    assert found == site.stream.read(TOPIC, 0, 0, written)


@pytest.mark.parametrize("begins", [300, 1000])
def test_a_stream_that_begins_anew_is_noticed_though_fetchers_had_read_ahead(site: Site, begins: int) -> None:
    site.write(1000)
    tailer = Tailer(settled(site.reads(3), 3), TOPIC, 0, 0)
    all_of(tailer, begins)
    site.log.topics.clear()
    site.stream.append(TOPIC, [("k", b"new")] * 400)
    found: list[bytes] = []
    while found.count(b"new") < 400:
        found += [message.value for message in tailer.read(LIMIT) or []]
    old = found[:-400]
    assert old == [f"{begins + place}".encode() for place in range(len(old))], "what had been read of it before, and nothing that is not of one stream"
    assert set(found[-400:]) == {b"new"}


def test_a_message_keeps_its_writer_and_whatever_its_value_is() -> None:
    node = Identity(kind=CertificateKind.NODE, name="node-a", tenants=("team",))
    messages = [
        Message(TOPIC, 3, 7, "ключ", b"value", 1.5, node), Message(TOPIC, 3, 9, "", b"", 2.5, None),
        Message(TOPIC, 3, 10, "ключ", b"\xc1refused: why\n" * 1000, 2.5, node),
    ]  # fmt: skip
    for some in (messages, []):
        assert decode_span(TOPIC, 3, encode_span(RecordSpan(some, True))) == (some, True)


def test_a_span_that_is_cut_off_or_too_long_is_refused() -> None:
    data = encode_span(RecordSpan([Message(TOPIC, 0, 1, "k", b"value", 1.0)], False))
    for torn in (*(data[:end] for end in range(len(data))), data + b"x"):
        with pytest.raises(ValueError, match=r"."):
            decode_span(TOPIC, 0, torn)


# --- the same findings -----------------------------------------------------------------------------------------------


def judged(stream: MemoryStream) -> dict[str, list[bytes]]:
    return {topic: [message.value for message in stream.read(topic, 0, 0, 100_000)] for topic in (FINDINGS, INCIDENTS)}


def copied(stream: MemoryStream) -> MemoryStream:
    """With its observations alone."""
    copy = MemoryStream(clock=FakeClock())
    copy.append(OBSERVATIONS, [(message.key, message.value) for message in stream.read(OBSERVATIONS, 0, 0, 100_000)])
    return copy


@pytest.fixture(scope="module")
def recorded() -> MemoryStream:
    """What a runner without fetchers has evaluated: a node becomes hot and cold again, workers exit, records come twice and late."""
    world, rng = World(), random.Random(5)
    runner = world.runner(Hot(), Exited())
    for second in range(120):
        if rng.random() < 0.2:
            world.exit(f"r/n/{second}")
        world.second(runner, rng.choice((20.0, 90.0)) if second % 20 < 10 else 95.0)
        if rng.random() < 0.3:  # at least once
            message = rng.choice(world.stream.read(OBSERVATIONS, 0, 0, 100_000)[-20:])
            world.stream.append(OBSERVATIONS, [(message.key, message.value)])
    world.close()
    assert len(judged(world.stream)[FINDINGS]) > 20
    return world.stream


@pytest.mark.parametrize(("fetchers", "seed"), [(1, 0), (2, 1), (4, 2)])
def test_the_same_findings_follow_whoever_reads_the_records(site: Site, monkeypatch: pytest.MonkeyPatch, recorded: MemoryStream, fetchers: int, seed: int) -> None:
    monkeypatch.setattr(runner_module, "READ_LIMIT", LIMIT)
    detectors: Sequence[tuple[str, object]] = [("hot", Hot()), ("exited", Exited())]
    assert replay(recorded_messages(recorded), detectors, OneToOne(), from_start=True).differences == ()  # type: ignore[arg-type]
    stream = copied(recorded)
    monkeypatch.setattr(module, "FIRST_S", 0.001)
    reads = settled(site.reads(fetchers, stream=stream, topic=OBSERVATIONS, clock=SystemClock()), fetchers, topic=OBSERVATIONS)
    site.fail = by_chance(seed, dies=0.1, raises=0.1)
    runner = Runner(stream, 0, detectors, OneToOne(), clock=FakeClock(), generation=0, marks=False, reads=reads)  # type: ignore[arg-type]
    while runner.offset < stream.end(OBSERVATIONS, 0):
        runner.step()
    runner.step()
    assert judged(stream) == judged(recorded)
    assert reads.fetched > 0


# --- who is there ----------------------------------------------------------------------------------------------------


def test_one_that_hangs_holds_nobody_up_twice_and_is_killed(site: Site) -> None:
    site.write(300)
    reads = idle(settled(site.reads(1, answer_s=0.1), 1))
    site.fail = lambda: "hangs"
    tailer = Tailer(reads, TOPIC, 0, 0)
    assert len(all_of(tailer, 300)) == 300
    for _ in range(5):
        tailer.read(LIMIT)
    assert reads.fetchers[0].asked == NOBODY, "it is not waited for again"
    assert site.told == []
    site.fail = lambda: ""
    site.clock.advance(module.HUNG_S + 1.0)
    tailer.read(LIMIT)
    assert site.told == ["fetcher.failing"]
    assert site.children[0].exitcode == -9
    site.clock.advance(module.FIRST_S)
    site.write(300)
    settled(reads, 1, 299)
    tailer.read(LIMIT)
    assert site.told == ["fetcher.failing", "fetcher.recovered"]
    assert len(site.children) == 2


def test_one_that_is_slow_to_begin_is_waited_for_longer_than_an_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FetcherThread, "begins", False)
    tailer = Tailer(site.reads(1), TOPIC, 0, 0)
    site.write(50)
    assert len(all_of(tailer, 50)) == 50, "read meanwhile"
    told = []
    for passed_s in (module.HUNG_S + 1.0, module.BEGIN_S):
        site.clock.advance(passed_s)
        tailer.read(LIMIT)
        told.append(list(site.told))
    assert told == [[], ["fetcher.failing"]]


def test_where_none_can_be_started_the_stream_is_read_and_it_is_told_once(site: Site) -> None:
    site.refusals = 3
    site.write(50)
    tailer = Tailer(site.reads(1), TOPIC, 0, 0)
    assert len(all_of(tailer, 50)) == 50
    for _ in range(8):
        tailer.read(LIMIT)
        site.clock.advance(1.0)
    assert site.told.count("fetcher.failing") == 1
    assert "no process is left" in site.notices[0].message
    assert site.refusals == 0, "it was tried again after 1, 2 and 4 s"


def test_once_it_is_closed_none_is_left_and_none_is_started(site: Site) -> None:
    site.write(50)
    reads = settled(site.reads(2), 2)
    reads.close()
    assert len(reads.read(TOPIC, 0, 0, LIMIT)) == 50
    assert (reads.fetchers, site.told) == ((), [])
    assert {child.exitcode for child in site.children} == {-9}


def test_a_small_partition_has_none_and_a_large_one_more(site: Site) -> None:
    def wanted(records_s: float, processors: int = 8, *, before: float = 0.0) -> int:
        clock = FakeClock()
        demand = FetcherDemand(-1, processors, clock)
        for rate in (before, records_s):
            clock.advance(10.0)
            demand.count(int(rate * 10))
        return demand.fetchers

    assert [wanted(rate) for rate in (0.0, FROM_RECORDS_S - 1, FROM_RECORDS_S, RECORDS_EACH_S, RECORDS_EACH_S + 1)] == [0, 0, 1, 1, 2]
    assert [wanted(FROM_RECORDS_S * share, before=FROM_RECORDS_S) for share in (0.6, 0.4)] == [1, 0], "not now on and now off"
    assert [wanted(1e6, processors) for processors in (1, 2, 4)] == [0, 1, 3]
    assert FetcherDemand(5, 1, FakeClock()).fetchers == 5, "who says how many gets as many"
