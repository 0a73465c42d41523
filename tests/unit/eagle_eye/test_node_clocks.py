"""Nodes whose clocks are off: what they tell gets the time that it has on the marks' clock; what is only late keeps its own."""

import numpy as np
import pytest

from eagle_eye import wire
from eagle_eye.frames import Frame, FrameBuilder
from eagle_eye.types import Batch, Block, Entity, Event, Kind, Mark, StepReading

JOB = "t/n/r"
T = 1000.0


class Cluster:
    """Nodes that send a batch with one step each second, and marks of a server whose clock is right."""

    def __init__(self) -> None:
        self.schemas = wire.Schemas()
        self.builder = FrameBuilder(JOB, self.schemas)
        self.reader = wire.RecordReader()
        self.second = 0
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
        batch = Batch(node=node, incarnation="b", job=JOB, number=number, time=end, blocks=(Block(schema_id=schema.id, reading=steps),))
        self.builder.feed(self.reader.read(wire.encode(batch)))

    def event(self, node: str, time: float) -> None:
        event = Event(name="exit", job=JOB, entity=Entity(kind=Kind.WORKER, name=f"r/{node}/0"), time=time, node=node, incarnation="l", number=self.second)
        self.builder.feed(event)

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
