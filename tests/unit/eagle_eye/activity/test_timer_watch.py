"""A main thread that waits for a thread which sleeps: woken by it in time, or in vain."""

from collections.abc import Callable

from eagle_eye.activity.hang_verdict import ActivityKind, ProcessLook
from eagle_eye.clock import FakeClock
from fakes.process_looks import TRAIN, VALIDATE, FakeProcesses, look, sleep, thread


def verdicts(processes: FakeProcesses, clock: FakeClock, sight: Callable[[float], ProcessLook], seconds: int) -> list[ActivityKind]:
    """Verdicts of an inspector, one a second."""
    inspector, began, found = processes.inspector(clock), clock.monotonic(), list[ActivityKind]()
    processes.sights[7] = lambda _: sight(clock.monotonic() - began)
    for _ in range(seconds):
        inspector.watch([("a", 7)])
        activity = inspector.activity("a")
        assert activity is not None
        found.append(activity.kind)
        clock.advance(1.0)
    return found


def beside(*remaining_s: float, time: float, name: str = "loader") -> ProcessLook:
    """The main thread waits for a lock; others sleep."""
    return look(TRAIN, time=time, others=tuple((thread(VALIDATE, name=name), sleep(left)) for left in remaining_s))


def test_twin_a_loader_that_comes_back_after_a_minute_is_waited_for(processes: FakeProcesses, clock: FakeClock) -> None:
    assert set(verdicts(processes, clock, lambda now: beside(60.0 - now, time=now), 59)) == {ActivityKind.WORKING}


def test_a_progress_bar_that_sleeps_again_and_again_is_no_sign_of_life(processes: FakeProcesses, clock: FakeClock) -> None:
    found = verdicts(processes, clock, lambda now: beside(10.0 - now % 10.0, time=now), 30)
    assert found[-1] is ActivityKind.STANDING


def test_fault_a_sleep_beyond_the_patience_and_a_thread_of_ours_wake_nobody(processes: FakeProcesses, clock: FakeClock) -> None:
    assert set(verdicts(processes, clock, lambda now: beside(1e6 - now, time=now), 3)) == {ActivityKind.STANDING}
    assert set(verdicts(processes, clock, lambda now: beside(60.0 - now, time=now, name="eagle-eye-probe"), 3)) == {ActivityKind.HUNG}
