"""Nodes whose clocks are off: what they tell gets the time that it has on the marks' clock; what is only late keeps its own."""

import numpy as np
import pytest

from eagle_eye import wire
from eagle_eye.frames import Frame, FrameBuilder
from eagle_eye.types import Batch, Block, Entity, Event, Kind, Mark, StepReading

JOB = "t/n/r"
T = 1000.0
UPTIME_S = 5000.0


class Cluster:
    """Nodes that send a batch with one step each second, and marks of a server whose clock is right."""

    def __init__(self) -> None:
        self.schemas = wire.Schemas()
        self.builder = FrameBuilder(JOB, self.schemas)
        self.reader = wire.RecordReader()
        self.second = 0
        self.incarnation = "b"
        """Of the agents."""
        self.booted: dict[str, float] = {}
        """Node → when its monotonic clock began; one that is not named here stamps nothing, as older agents do."""
        self.numbers: dict[str, int] = {}
        self.ended: dict[int, float] = {}
        """Step → when it really ended."""

    @property
    def now(self) -> float:
        return T + self.second

    def batch(self, node: str, clock: float, *, age: float = 0.2) -> None:
        """Its newest step ended 0.1 s before the batch. `clock`: seconds that the node's clock is ahead."""
        number = self.numbers[node] = self.numbers.get(node, -1) + 1
        end = self.now - age + clock
        self.ended[number] = self.now - age - 0.1
        steps = StepReading(
            source="training", workers=(f"r/{node}/0",), names=("step_s",), numbers=np.array([number]), epochs=np.array([1]),
            ends=np.array([[end - 0.1]]), values=np.array([[[1.0]]]),
        )  # fmt: skip
        schema = self.schemas.schema_of(steps)
        stamp = self.stamp(node, self.now - age)
        batch = Batch(node=node, incarnation=self.incarnation, job=JOB, number=number, time=end, blocks=(Block(schema_id=schema.id, reading=steps),), monotonic_s=stamp)
        self.builder.feed(self.reader.read(wire.encode(batch)))

    def stamp(self, node: str, time: float) -> float:
        """Its monotonic clock at a true time."""
        return time - self.booted[node] if node in self.booted else 0.0

    def event(self, node: str, time: float, *, stamp: float = 0.0) -> None:
        entity = Entity(kind=Kind.WORKER, name=f"r/{node}/0")
        self.builder.feed(Event(name="exit", job=JOB, entity=entity, time=time, node=node, incarnation="l", number=self.second, monotonic_s=stamp))

    def killed(self, node: str, clock: float = 0.0, *, age: float = 0.25) -> float:
        """A worker ended so long ago, by a clock that was set by so much; the time that a cut tells."""
        self.event(node, self.now - age + clock, stamp=self.stamp(node, self.now - age))
        (event,) = self.cut().events
        return event.time

    def tick(self) -> Frame:
        return self.builder.tick(self._mark("tick"))

    def cut(self) -> Frame:
        return self.builder.cut(self._mark("cut"))

    def _mark(self, kind: str) -> Mark:
        self.second += kind == "tick"
        return Mark(mark=kind, generation=1, number=100 * self.second + (kind == "cut"), time=self.now)  # type: ignore[arg-type]

    def run(self, seconds: int, **clocks: float) -> list[Frame]:
        frames = []
        for _ in range(seconds):
            for node, clock in clocks.items():
                self.batch(node, clock)
            frames.append(self.tick())
        return frames

    def wrong(self, frame: Frame) -> list[float]:
        """By how much the times of its steps are off."""
        return [step.end - self.ended[step.number] for step in frame.steps]


def test_times_of_a_clock_that_is_right_are_left_as_they_are() -> None:
    cluster = Cluster()
    frames = cluster.run(8, a=0.0, b=0.3)
    wrong = [off for frame in frames for off in cluster.wrong(frame)]
    assert len(wrong) == 5
    assert wrong == [pytest.approx(0.3)] * 5, "less than anybody would notice"
    cluster.event("a", cluster.now - 0.25)
    (event,) = cluster.cut().events
    assert event.time == cluster.now - 0.25


@pytest.mark.parametrize("off", [9.8, 30.0, -30.0, -3600.0, 1e6])
def test_a_clock_that_is_off_from_the_beginning_is_found_and_its_events_and_steps_are_put_right(off: float) -> None:
    cluster = Cluster()
    frames = cluster.run(8, a=off, b=0.0)
    wrong = [off for frame in frames for off in cluster.wrong(frame)][2:]  # it takes three batches to know
    assert len(wrong) == 3
    assert wrong == [pytest.approx(0.0, abs=0.8)] * 3
    cluster.event("a", cluster.now + off - 0.25)
    (event,) = cluster.cut().events
    assert 0.0 <= cluster.now - event.time < 1.5


@pytest.mark.parametrize("jump", [30.0, -30.0])
def test_a_clock_that_jumps_and_is_set_right_again_moves_no_time(jump: float) -> None:
    cluster = Cluster()
    cluster.run(5, a=0.0)
    for off in (jump, 0.0):
        for frame in cluster.run(5, a=off):
            assert cluster.wrong(frame) == [pytest.approx(0.0, abs=0.8)]
        cluster.event("a", cluster.now + off - 0.25)
        (event,) = cluster.cut().events
        assert 0.0 <= cluster.now - event.time < 1.5


def test_nothing_has_happened_later_than_the_mark_behind_it() -> None:
    cluster = Cluster()
    cluster.run(3, a=0.0)
    cluster.event("a", cluster.now + 30.0)  # the clock has just jumped: no batch has told it yet
    (event,) = cluster.cut().events
    assert event.time == cluster.now


def test_what_was_kept_while_the_stream_was_away_keeps_its_times() -> None:
    cluster = Cluster()
    cluster.run(3, a=0.0)
    cluster.second += 60
    cluster.event("a", cluster.now - 40.0)
    (event,) = cluster.cut().events
    assert event.time == cluster.now - 40.0
    told = 0
    for age in (50.0, 40.0, 30.0, 20.0, 10.0, 0.2):  # ten records a tick, until it has caught up
        for more in range(10):
            cluster.batch("a", 0.0, age=age + 9 - more)
        frame = cluster.tick()
        assert cluster.wrong(frame) == [pytest.approx(0.0)] * len(frame.steps)
        told += len(frame.steps)
    assert told > 30


# --- a clock that was set since the newest batch: monotonic clocks say when an event was


@pytest.fixture
def stamping() -> Cluster:
    """Two nodes that write their monotonic clocks down, too, for five seconds."""
    cluster = Cluster()
    cluster.booted = {"a": T - UPTIME_S, "b": T - 3 * UPTIME_S}
    cluster.run(5, a=0.0, b=0.0)
    return cluster


@pytest.mark.parametrize("jump", [-30.0, -3600.0, 30.0, 3600.0, 1e6])
def test_what_happened_in_the_second_of_a_jump_is_told_when_it_was(stamping: Cluster, jump: float) -> None:
    assert stamping.killed("a", jump) == pytest.approx(stamping.now - 0.25)


@pytest.mark.parametrize("jump", [-30.0, 30.0])
def test_a_jump_before_the_first_tick_of_a_server_is_seen_by_the_batch_before_it(jump: float) -> None:
    cluster = Cluster()
    cluster.booted = {"a": T - UPTIME_S}
    cluster.batch("a", 0.0)
    assert cluster.killed("a", jump, age=0.1) == pytest.approx(cluster.now - 0.1)


@pytest.mark.parametrize("jump", [-30.0, 30.0])
def test_a_batch_after_the_jump_that_no_tick_has_seen_changes_nothing(stamping: Cluster, jump: float) -> None:
    stamping.batch("a", jump)
    assert stamping.killed("a", jump) == pytest.approx(stamping.now - 0.25)


@pytest.mark.parametrize("jump", [-30.0, 30.0])
def test_the_clock_of_one_node_alone_moves_no_time_of_another(stamping: Cluster, jump: float) -> None:
    stamping.event("b", stamping.now - 0.5, stamp=stamping.stamp("b", stamping.now - 0.5))
    stamping.event("a", stamping.now - 0.5 + jump, stamp=stamping.stamp("a", stamping.now - 0.5))
    assert [event.time for event in stamping.cut().events] == [stamping.now - 0.5, pytest.approx(stamping.now - 0.5)]


@pytest.mark.parametrize("off", [30.0, -30.0])
def test_a_clock_that_was_off_and_is_set_right_moves_no_time(off: float) -> None:
    cluster = Cluster()
    cluster.booted = {"a": T - UPTIME_S}
    cluster.run(8, a=off)
    assert cluster.killed("a", 0.0) == pytest.approx(cluster.now - 0.25, abs=0.8), "its offset is known to half a second"


def test_on_a_busy_machine_whose_batches_come_late_a_clock_that_is_set_right_moves_no_time() -> None:
    """Such batches make its clock out to be less far ahead than it is: the event seems to come from after the mark."""
    cluster = Cluster()
    cluster.booted = {"a": T - UPTIME_S}
    for _ in range(8):
        cluster.batch("a", 30.0, age=3.0)
        cluster.tick()
    assert cluster.killed("a", 0.0) == cluster.now


@pytest.mark.parametrize("jump", [-30.0, 30.0])
def test_an_event_from_before_the_jump_that_comes_after_it_keeps_its_time(stamping: Cluster, jump: float) -> None:
    stamping.run(2, a=jump, b=0.0)
    assert stamping.killed("a", 0.0, age=2.5) == pytest.approx(stamping.now - 2.5, abs=0.8)


@pytest.mark.parametrize("jump", [-30.0, 30.0])
def test_an_agent_that_is_started_again_after_the_jump_changes_nothing(stamping: Cluster, jump: float) -> None:
    stamping.numbers["a"] = -1
    stamping.incarnation = "b2"
    stamping.run(1, a=jump, b=0.0)
    assert stamping.killed("a", jump) == pytest.approx(stamping.now - 0.25, abs=0.8)


@pytest.mark.parametrize("age", [2.0, 40.0, 500.0])
def test_twin_a_late_event_out_of_a_spool_keeps_its_time(stamping: Cluster, age: float) -> None:
    assert stamping.killed("a", age=age) == stamping.now - age
    stamping.second += 60
    stamping.run(3, a=0.0, b=0.0)
    assert stamping.killed("a", age=age) == stamping.now - age


@pytest.mark.parametrize("up_s", [UPTIME_S, 20.0])
def test_twin_an_event_after_a_reboot_keeps_its_time(up_s: float) -> None:
    """Before the first batch, and behind it."""
    cluster = Cluster()
    cluster.booted["a"] = T - up_s
    cluster.run(5, a=0.0)
    cluster.second += 30
    cluster.booted["a"] = cluster.now - 10.0
    assert cluster.killed("a") == cluster.now - 0.25
    cluster.run(1, a=0.0)
    assert cluster.killed("a") == cluster.now - 0.25


def test_twin_a_late_event_from_before_its_machine_slept_keeps_its_time(stamping: Cluster) -> None:
    """Monotonic clocks stand still meanwhile."""
    stamp, happened = stamping.stamp("a", stamping.now), stamping.now
    stamping.run(70, a=0.0)
    stamping.second += 100
    stamping.booted["a"] += 100.0
    stamping.run(1, a=0.0)
    stamping.event("a", happened, stamp=stamp)
    (event,) = stamping.cut().events
    assert event.time == happened


@pytest.mark.parametrize("age", [100.0, 110.0, 150.0])
def test_twin_an_event_from_before_a_reboot_keeps_its_time(age: float) -> None:
    """A node that was up for a minute or two each time: its monotonic clock stands where it stood before."""
    cluster = Cluster()
    cluster.booted["a"] = T - 60.0
    cluster.run(5, a=0.0)
    stamp = cluster.stamp("a", cluster.now + 120.0 - age)
    cluster.second += 120
    cluster.booted["a"] = cluster.now - 55.0
    cluster.run(1, a=0.0)
    cluster.event("a", cluster.now - age, stamp=stamp)
    (event,) = cluster.cut().events
    assert event.time == cluster.now - age


def test_twin_a_reboot_with_a_wrong_clock_is_told_now_and_not_minutes_ago() -> None:
    cluster = Cluster()
    cluster.booted["a"] = T - 20.0
    cluster.run(5, a=0.0)
    cluster.second += 90
    cluster.booted["a"] = cluster.now - 10.0
    assert cluster.killed("a", 30.0) == cluster.now


@pytest.mark.parametrize("stamped", ["neither", "the batch", "the event"])
def test_twin_without_both_stamps_times_are_as_they_were_before(stamped: str) -> None:
    cluster = Cluster()
    if stamped == "the batch":
        cluster.booted["a"] = T - UPTIME_S
    cluster.run(5, a=0.0)
    cluster.event("a", cluster.now - 30.25, stamp=UPTIME_S + 4.75 if stamped == "the event" else 0.0)
    (event,) = cluster.cut().events
    assert event.time == cluster.now - 30.25


def test_twin_an_event_without_a_stamp_is_not_taken_for_one_of_the_boot() -> None:
    cluster = Cluster()
    cluster.booted["a"] = T - 20.0
    cluster.run(5, a=0.0)
    cluster.event("a", cluster.now + 30.0)
    (event,) = cluster.cut().events
    assert event.time == cluster.now


@pytest.mark.parametrize("stamp", [1e-9, 4000.0, UPTIME_S + 35.0, 9000.0, 1e11])
def test_a_stamp_that_cannot_be_moves_no_time(stamping: Cluster, stamp: float) -> None:
    stamping.event("a", stamping.now - 0.25, stamp=stamp)
    (event,) = stamping.cut().events
    assert event.time == stamping.now - 0.25
