"""Ticks that run over: what judges minutes is asked less often, counted and told; what finds hangs and deaths sees every tick; a replay does the same."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from detectors.runtime.tick_load import CALM, LATE, MOST, OF, TickLoad
from eagle_eye.frames import Frame
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.types import Claim, Mark
from fakes.runner_partition import World, settle


@dataclass
class Heavy:
    """Takes long, and judges minutes."""

    asked: ClassVar[list[float]] = []
    costs: ClassVar[list[float]] = [0.0]
    clock: ClassVar[Any] = None
    every: ClassVar[int] = 3

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        self.asked.append(frame.time)
        self.clock.advance(self.costs[0])
        return iter(())


@dataclass
class Light:
    """Is asked at each tick."""

    asked: ClassVar[list[float]] = []
    every: ClassVar[int] = 1

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        self.asked.append(frame.time)
        return iter(())


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    Heavy.asked, Light.asked, Heavy.costs, Heavy.clock = [], [], [0.0], world.clock
    yield world
    world.close()


def test_detectors_of_minutes_are_asked_less_often_while_ticks_run_over_and_the_others_always(world: World) -> None:
    runner = world.runner(Heavy(), Light())
    Heavy.costs[0] = 4.5
    for _ in range(60):
        world.second(runner)
    frames = [frame for frame in world.frames if frame.tick]
    assert len(Light.asked) == len(frames), "each tick that there is"
    assert 0 < len(Heavy.asked) < len(frames) / 5
    assert runner.counts.missed_ticks >= LATE
    assert runner.counts.stretch > 1
    assert set(world.notices) >= {"ticks.late"}
    marks = [mark for mark in world.marks() if mark.mark == "tick"]
    assert marks[0].stretch == 1
    assert marks[-1].stretch == runner.counts.stretch


def test_once_ticks_are_on_time_they_are_asked_as_often_as_before(world: World) -> None:
    runner = world.runner(Heavy(), Light())
    Heavy.costs[0] = 4.5
    for _ in range(30):
        world.second(runner)
    told = len([name for name in world.notices if name == "ticks.late"])
    Heavy.costs[0] = 0.0
    for _ in range(CALM * 6):
        world.second(runner)
    assert runner.counts.stretch == 1
    assert len([name for name in world.notices if name == "ticks.late"]) > told


def test_a_replay_asks_at_the_same_ticks(world: World) -> None:
    runner = world.runner(Heavy(), Light())
    Heavy.costs[0] = 4.5
    for _ in range(40):
        world.second(runner)
    live, Heavy.asked, Heavy.costs[0] = Heavy.asked, [], 0.0
    again = World()
    for message in world.stream.read(OBSERVATIONS, 0, 0, 100_000):
        again.stream.append(OBSERVATIONS, [(message.key, message.value)])
    settle(again.runner(Heavy(), Light(), marks=False))
    again.close()
    assert Heavy.asked == live


@pytest.mark.parametrize("late", [[5.0], [1.0, 1.0], [0.9] * 50])
def test_twin_a_pause_of_the_machine_and_ticks_that_are_only_just_late_change_nothing(late: list[float]) -> None:
    load = TickLoad()
    assert [load.tick(each, 1.0) for each in [*late, *[0.0] * OF]] == [""] * (len(late) + OF)
    assert load.stretch == 1
    assert load.missed == sum(map(int, late))


def test_it_has_an_end() -> None:
    load = TickLoad()
    for _ in range(1000):
        load.tick(2.0, 1.0)
    assert load.stretch == MOST


def test_a_mark_of_somebody_else_cannot_silence_them(world: World) -> None:
    runner = world.runner(Heavy(), marks=False)
    for number in range(1, 4 * 3 * MOST):
        world.clock.advance(1.0)
        world.batch(20.0)
        world.put(Mark(mark="tick", generation=1, number=number, time=world.clock.now(), stretch=10**9))
        settle(runner)
    assert len(Heavy.asked) == 3
