"""Who stands still while all others wait for it, and who only pauses."""

import pytest

from eagle_eye.clock import FakeClock
from remediation.launcher.stall_detector import (
    PAUSE_S,
    InactivityTimer,
    NodeReport,
    StallDetector,
    WorkerSample,
    patience,
)

LOOK_S = 0.05
NAMES = ("a", "b", "c")


class Node:
    """Three workers that are looked at every 50 ms."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.quiet = InactivityTimer(self.clock, LOOK_S)
        self.verdicts = StallDetector(self.clock)
        self.marks = dict.fromkeys(NAMES, 0)
        self.phases = dict.fromkeys(NAMES, "communication")
        self.stopped: set[str] = set()
        self.steps: dict[str, float | None] = dict.fromkeys(NAMES, 0.1)
        self.deaf: set[str] = set()

    def look(self) -> NodeReport:
        self.clock.advance(LOOK_S)
        return self.quiet.look(
            WorkerSample(worker=name, marks=self.marks[name], phase=self.phases[name], stopped=name in self.stopped, deaf=name in self.deaf, step_s=self.steps[name])
            for name in NAMES
        )

    def until_found(self, seconds: float, opening: bool = False) -> tuple[dict[str, float], float]:
        """Looks until somebody is found, or the time is over: who, and after how long."""
        began = self.clock.monotonic()
        found: dict[str, float] = {}
        while not found and self.clock.monotonic() - began < seconds:
            found = self.verdicts.culprits("n0", self.look(), NAMES, opening)
        return found, self.clock.monotonic() - began


def test_one_that_stands_still_while_all_others_wait_is_found() -> None:
    node = Node()
    node.phases["b"] = "forward"
    found, after = node.until_found(5.0)
    assert set(found) == {"b"}
    assert 0.5 < after < 0.65


def test_its_patience_follows_the_length_of_its_steps() -> None:
    node = Node()
    node.phases["b"] = "forward"
    node.steps = dict.fromkeys(NAMES, 1.0)
    assert 3.0 < node.until_found(5.0)[1] < 3.2
    node.stopped, node.phases["b"] = {"b"}, "communication"
    assert patience(WorkerSample(worker="b", marks=0, phase="communication", stopped=True, step_s=1.0)) == 2.0


def test_a_pause_that_holds_nobody_up_is_no_stall() -> None:
    node = Node()
    node.phases |= {"b": "forward", "c": "forward"}
    for _ in range(60):
        node.marks["c"] += 1
        assert not node.verdicts.culprits("n0", node.look(), NAMES, False), "c still computes: nobody has to wait for b yet"


def test_a_checkpoint_an_evaluation_and_the_first_steps_take_as_long_as_they_take() -> None:
    for phase in ("checkpoint", "evaluation"):
        node = Node()
        node.phases["b"] = phase
        assert not node.until_found(PAUSE_S / 2)[0]
    node = Node()
    node.phases["b"], node.steps = "forward", dict.fromkeys(NAMES)
    assert not node.until_found(20.0)[0]


def test_a_stopped_process_is_found_also_where_it_seems_to_wait() -> None:
    node = Node()
    node.stopped = {"b"}
    assert set(node.until_found(5.0)[0]) == {"b"}


def test_when_all_wait_nobody_is_to_blame() -> None:
    assert not Node().until_found(10.0)[0]


@pytest.mark.parametrize(("step_s", "times", "after_s"), [(0.1, 0, 5.0), (0.1, 2, 20.0), (2.0, 0, 20.0)])
def test_when_all_wait_for_too_long_they_are_to_meet_again(step_s: float, times: int, after_s: float) -> None:
    node = Node()
    node.steps = dict.fromkeys(NAMES, step_s)
    began = node.clock.monotonic()
    while not node.verdicts.stuck(NAMES, times):
        assert not node.verdicts.culprits("n0", node.look(), NAMES, False)
    assert after_s < node.clock.monotonic() - began < after_s + 0.2
    assert not node.verdicts.stuck((*NAMES, "d"), times), "nothing is known of d"


def test_nobody_meets_again_while_one_computes() -> None:
    node = Node()
    node.phases["b"] = "forward"
    node.verdicts.culprits("n0", node.look(), NAMES, False)
    node.clock.advance(100.0)
    assert not node.verdicts.stuck(NAMES, 0)


def test_whoever_does_not_take_up_an_epochs_orders_stands_still_whatever_its_last_mark_says() -> None:
    node = Node()
    node.deaf = {"b"}
    assert set(node.until_found(10.0, opening=True)[0]) == {"b"}


def test_before_the_first_step_of_an_epoch_state_may_be_on_its_way() -> None:
    node = Node()
    node.phases["b"] = "other"
    assert node.until_found(10.0, opening=True)[1] > 5.0


def test_time_in_which_we_stood_still_ourselves_does_not_count() -> None:
    node = Node()
    node.phases["b"] = "forward"
    node.look()
    node.clock.advance(30.0)
    assert not node.verdicts.culprits("n0", node.look(), NAMES, False)


@pytest.mark.parametrize(("late_s", "found"), [(0.1, True), (0.8, False)])
def test_other_nodes_views_count_while_they_are_fresh(late_s: float, found: bool) -> None:
    clock = FakeClock()
    verdicts = StallDetector(clock)
    assert not verdicts.culprits("n0", NodeReport(waiting=("a",)), ("a", "b"), False), "nothing is known of b"
    clock.advance(late_s)
    assert bool(verdicts.culprits("n1", NodeReport(still={"b": 0.7}), ("a", "b"), False)) is found
