"""A process's time goes on as it passes, whoever sets the machine's clock; it comes back to that clock, and the jump is told once."""

import pytest

from eagle_eye.clock import FOLLOWED_AT_ONCE_S, FakeClock, SteadyClock


@pytest.mark.parametrize("jump", [30.0, -30.0, -250.0])
def test_a_duration_across_a_jump_is_as_long_as_it_was(clock: FakeClock, jump: float) -> None:
    steady = SteadyClock(clock)
    began = steady.now()
    clock.jump(jump)
    clock.advance(2.0)
    assert steady.now() - began == pytest.approx(2.0, rel=0.06)


@pytest.mark.parametrize("jump", [30.0, -30.0])
def test_the_machines_clock_is_caught_up_with_and_time_never_goes_back(clock: FakeClock, jump: float) -> None:
    steady = SteadyClock(clock)
    clock.jump(jump)
    times = []
    for _ in range(700):
        clock.advance(1.0)
        times.append(steady.now())
    assert times == sorted(times)
    assert steady.now() == pytest.approx(clock.now())


def test_a_clock_that_was_wrong_by_an_hour_is_taken_over_at_once(clock: FakeClock) -> None:
    steady = SteadyClock(clock)
    clock.jump(FOLLOWED_AT_ONCE_S + 1.0)
    assert steady.now() == clock.now()


def test_each_jump_is_told_once_and_what_a_time_server_corrects_is_not(clock: FakeClock) -> None:
    told: list[float] = []
    steady = SteadyClock(clock, on_jump=told.append)
    for jump in (0.0, 0.5, 30.0, 0.0, 0.0, -4000.0, 0.0):
        clock.jump(jump)
        clock.advance(1.0)
        steady.now()
    assert told == [pytest.approx(30.0), pytest.approx(-4000.0)]
