"""A node whose clock is off is told once, whichever way; one whose batches are only late is not."""

from collections.abc import Iterator

import pytest

from detectors.runtime.runner import Runner
from eagle_eye.types import Notice
from fakes.runner_partition import Exited, World, settle


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.fixture
def told() -> list[Notice]:
    return []


@pytest.fixture
def runner(world: World, told: list[Notice]) -> Runner:
    return world.runner(Exited(), on_notice=told.append)


def seconds(world: World, runner: Runner, count: int) -> None:
    for _ in range(count):
        world.second(runner)


@pytest.mark.parametrize(("ahead_s", "words"), [(30.0, "30 s ahead"), (-60.0, "60 s behind")])
def test_a_clock_that_jumps_is_told_once_and_again_when_it_jumps_anew(world: World, runner: Runner, told: list[Notice], ahead_s: float, words: str) -> None:
    seconds(world, runner, 5)
    for times in (1, 2):
        world.ahead_s = ahead_s
        seconds(world, runner, 8)
        assert [notice.name for notice in told] == ["clock.skewed"] * times
        assert f"the clock of n is {words}" in told[-1].message
        world.ahead_s = 0.0
        seconds(world, runner, 5)


def test_twin_batches_that_were_kept_for_a_minute_are_late_and_no_clock_is_behind(world: World, runner: Runner, told: list[Notice]) -> None:
    seconds(world, runner, 5)
    began = world.clock.now()
    world.clock.advance(60.0)
    for second in range(60):  # ten records a tick, until it has caught up
        world.ahead_s = began + second - world.clock.now()
        world.batch(20.0)
        if second % 10 == 9:
            world.clock.advance(1.0)
            settle(runner)
    world.ahead_s = 0.0
    seconds(world, runner, 5)
    assert told == []


def test_twin_batches_of_a_busy_machine_are_all_some_seconds_old(world: World, runner: Runner, told: list[Notice]) -> None:
    world.ahead_s = -8.0
    seconds(world, runner, 30)
    assert told == []
