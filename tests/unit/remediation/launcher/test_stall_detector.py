"""Who stands still while all others wait for it, and who only pauses."""

import pytest

from eagle_eye.activity.hang_verdict import Activity, ActivityKind
from eagle_eye.clock import FakeClock
from eagle_eye.config import StallConfig
from remediation.launcher.worker.stall_detector import (
    InactivityTimer,
    NodeReport,
    StallDetector,
    WorkerSample,
    patience,
    suspicion,
)

POLL_S = 0.05
STALL = StallConfig(suspect_s=0.5)
HUNG = Activity(ActivityKind.HUNG, "waits in train.py:33 step for a lock that nobody will release")
WORKING = Activity(ActivityKind.WORKING, "works in train.py:212 validate: 3 of 4 stacks differ")
STANDING = Activity(ActivityKind.STANDING, "stands in train.py:33 step", "train.py:33 step")
TRACED = Activity(ActivityKind.TRACED, "is held by a debugger or a tracer, gdb, process 12, in train.py:33 step")
AWAITS_PEERS = Activity(ActivityKind.AWAITS_PEERS, "waits for its peers in train.py:33 step", "train.py:33 step")
EXCHANGES = Activity(ActivityKind.EXCHANGES, "exchanges data with its peers in train.py:33 step: 7.5 MB sent or received", "train.py:33 step")
NAMES = ("a", "b", "c")


class Node:
    """Three workers that are looked at every 50 ms."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.quiet = InactivityTimer(self.clock, POLL_S, STALL)
        self.verdicts = StallDetector(self.clock, STALL)
        self.marks = dict.fromkeys(NAMES, 0)
        self.phases = dict.fromkeys(NAMES, "communication")
        self.stopped: set[str] = set()
        self.steps: dict[str, float | None] = dict.fromkeys(NAMES, 0.1)
        self.deaf: set[str] = set()
        self.activity: Activity | None = HUNG
        """What a look into any of them shows ..."""
        self.activities: dict[str, Activity | None] = {}
        """... but into these."""

    def look(self) -> NodeReport:
        self.clock.advance(POLL_S)
        return self.quiet.look(
            WorkerSample(worker=name, marks=self.marks[name], phase=self.phases[name], stopped=name in self.stopped, deaf=name in self.deaf, step_s=self.steps[name],
                         activity=self.activities.get(name, self.activity))
            for name in NAMES
        )

    def until_found(self, seconds: float) -> tuple[dict[str, float], float]:
        """Looks until somebody is found, or the time is over: who, and after how long."""
        began = self.clock.monotonic()
        found: dict[str, float] = {}
        while not found and self.clock.monotonic() - began < seconds:
            found = self.verdicts.culprits("n0", self.look(), NAMES)
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
    stopped = WorkerSample(worker="b", marks=0, phase="communication", stopped=True, step_s=1.0)
    assert (suspicion(stopped, STALL), patience(stopped, STALL)) == (3.0, 0.0)


@pytest.mark.parametrize(("marks_after", "least"), [(1, 49.0), (-5, 29.0)])
def test_a_line_in_which_a_worker_stood_before_is_given_twice_as_long(marks_after: int, least: float) -> None:
    """Unless it was ended there: its next process begins to count anew."""
    node = Node()
    node.phases["b"], node.activity = "forward", STANDING
    assert node.until_found(25.0)[0] == {}
    node.marks["b"] = marks_after
    found, after = node.until_found(60.0)
    assert set(found) == {"b"}
    assert least < after < least + 2.0


def test_a_pause_that_holds_nobody_up_is_no_stall() -> None:
    node = Node()
    node.phases |= {"b": "forward", "c": "forward"}
    for _ in range(60):
        node.marks["c"] += 1
        assert not node.verdicts.culprits("n0", node.look(), NAMES), "c still computes: nobody has to wait for b yet"


@pytest.mark.parametrize(("activity", "after_s"), [(HUNG, 0.5), (STANDING, 30.0), (WORKING, 600.0), (None, 600.0)])
def test_who_is_suspected_is_accused_as_soon_as_what_it_does_proves_it(activity: Activity | None, after_s: float) -> None:
    node = Node()
    node.phases["b"], node.activities = "forward", {"b": activity}
    found, after = node.until_found(700.0)
    assert set(found) == {"b"}
    assert after_s < after < after_s + 0.2


def test_twin_who_is_suspected_is_looked_into_and_shown_and_nothing_more() -> None:
    node = Node()
    node.phases["b"], node.activities = "forward", {"b": WORKING}
    assert not node.until_found(20.0)[0]
    view = node.look()
    assert (view.suspected, view.still, view.moving) == (("b",), {}, 0)
    assert view.doing == {"b": WORKING.doing}


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation", "data"])
def test_a_pause_is_suspected_later(phase: str) -> None:
    node = Node()
    node.phases["b"] = phase
    assert 10.0 < node.until_found(20.0)[1] < 10.2


@pytest.mark.parametrize(("phase", "activity", "accused_s"), [
    ("checkpoint", STANDING, 600.0), ("evaluation", STANDING, 600.0), ("data", STANDING, 30.0), ("forward", STANDING, 30.0), ("checkpoint", HUNG, 0.0),
])  # fmt: skip
def test_who_is_marked_to_save_or_to_evaluate_is_waited_for_unless_it_is_proved_to_hang(phase: str, activity: Activity, accused_s: float) -> None:
    assert patience(WorkerSample(worker="b", marks=1, phase=phase, step_s=0.1, activity=activity), STALL) == accused_s


def test_the_first_steps_take_as_long_as_they_take() -> None:
    node = Node()
    node.phases["b"], node.steps = "forward", dict.fromkeys(NAMES)
    assert 10.0 < node.until_found(20.0)[1] < 10.2


def test_a_stopped_process_is_found_also_where_it_seems_to_wait() -> None:
    node = Node()
    node.stopped = {"b"}
    assert set(node.until_found(5.0)[0]) == {"b"}


def test_when_all_wait_nobody_is_to_blame() -> None:
    assert not Node().until_found(10.0)[0]


@pytest.mark.parametrize(("step_s", "times", "after_s"), [(0.1, 0, 5.0), (0.1, 2, 20.0), (2.0, 0, 20.0), (None, 0, 10.0)])
def test_when_all_wait_for_too_long_they_are_to_meet_again(step_s: float | None, times: int, after_s: float) -> None:
    node = Node()
    node.steps = dict.fromkeys(NAMES, step_s)
    began = node.clock.monotonic()
    while not node.verdicts.stuck(NAMES, times):
        assert not node.verdicts.culprits("n0", node.look(), NAMES)
    assert after_s < node.clock.monotonic() - began < after_s + 0.2
    assert not node.verdicts.stuck((*NAMES, "d"), times), "nothing is known of d"


@pytest.mark.parametrize(("activity", "met"), [(WORKING, False), (TRACED, False), (EXCHANGES, False), (AWAITS_PEERS, True), (None, True)])
def test_twin_who_works_after_its_mark_of_communication_waits_for_nobody(activity: Activity | None, met: bool) -> None:
    """A script that evaluates without a mark of its own: the others are not to meet again without it, nor is anybody to blame."""
    node = Node()
    node.activities = {"b": activity}
    assert not node.until_found(20.0)[0]
    assert node.verdicts.stuck(NAMES, 0) is met


def test_who_has_waited_for_long_is_looked_into() -> None:
    node = Node()
    assert node.quiet.overdue(node.look().waiting) == []
    node.until_found(1.0)
    assert set(node.quiet.overdue(node.look().waiting)) == set(NAMES)


def test_nobody_meets_again_while_one_computes() -> None:
    node = Node()
    node.phases["b"] = "forward"
    node.verdicts.culprits("n0", node.look(), NAMES)
    node.clock.advance(100.0)
    assert not node.verdicts.stuck(NAMES, 0)


@pytest.mark.parametrize(("activity", "found"), [(STANDING, {"b"}), (WORKING, set())])
def test_whoever_does_not_take_up_an_epochs_orders_and_does_not_work_is_to_blame_whatever_its_last_mark_says(activity: Activity, found: set[str]) -> None:
    node = Node()
    node.deaf, node.activity = {"b"}, activity
    assert set(node.until_found(10.0)[0]) == found


def test_time_in_which_we_stood_still_ourselves_does_not_count() -> None:
    node = Node()
    node.phases["b"] = "forward"
    node.look()
    node.clock.advance(30.0)
    assert not node.verdicts.culprits("n0", node.look(), NAMES)


@pytest.mark.parametrize(("late_s", "found"), [(0.1, True), (0.8, False)])
def test_other_nodes_views_count_while_they_are_fresh(late_s: float, found: bool) -> None:
    clock = FakeClock()
    verdicts = StallDetector(clock, STALL)
    assert not verdicts.culprits("n0", NodeReport(waiting=("a",)), ("a", "b")), "nothing is known of b"
    clock.advance(late_s)
    assert bool(verdicts.culprits("n1", NodeReport(still={"b": 0.7}), ("a", "b"))) is found
