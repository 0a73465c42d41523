"""A collector that does not return: what is told of it, and of the call that it is in."""

from dataclasses import dataclass

from collectors.agent.schedule import CollectorThread, HealthState, Schedule
from eagle_eye.types import Reading


@dataclass
class Silent:
    def collect(self) -> list[Reading]:
        return []


@dataclass
class Telling(Silent):
    doing: str = ""


def hung(collector: Silent) -> CollectorThread:
    thread = CollectorThread("gpu", collector, Schedule(timeout_s=3.0))
    thread.schedule.started(100.0, 50.0)
    return thread


def test_the_call_that_hangs_is_named() -> None:
    change = hung(Telling("nvmlDeviceGetFieldValues of GPU 3 (GPU-x)")).check_timeout(53.5)
    assert change is not None
    assert change == ("collector.failing", "no result within 3 s: nvmlDeviceGetFieldValues of GPU 3 (GPU-x) has not returned")


def test_a_collector_that_does_not_say_what_it_does_is_told_too() -> None:
    for collector in (Silent(), Telling("")):
        assert hung(collector).check_timeout(53.5) == ("collector.failing", "no result within 3 s")


def test_twin_one_that_is_within_its_time_is_not_hung() -> None:
    thread = hung(Telling("nvmlInit"))
    assert thread.check_timeout(52.9) is None
    assert thread.schedule.health is HealthState.OK


def test_it_is_told_once() -> None:
    thread = hung(Telling("nvmlInit"))
    thread.check_timeout(53.5)
    assert thread.check_timeout(60.0) is None


class Asked(Silent):
    """Counts how often it is asked what it is doing."""

    asked = 0

    @property
    def doing(self) -> str:
        self.asked += 1
        return "a call"


def test_a_collector_is_asked_what_it_does_only_once_it_takes_too_long() -> None:
    collector = Asked()
    thread = hung(collector)
    for tenth in range(29):
        assert thread.check_timeout(50.0 + tenth / 10) is None
    assert collector.asked == 0
    assert thread.check_timeout(53.5) == ("collector.failing", "no result within 3 s: a call has not returned")
    assert thread.check_timeout(60.0) is None
    assert collector.asked == 1
