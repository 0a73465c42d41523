"""The job stands still: who keeps it waiting?"""

from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pytest

from detectors.features.worker_positions import ACTIVITIES
from detectors.stall import Stall
from eagle_eye.activity.hang_verdict import ActivityKind
from eagle_eye.config import StallConfig
from eagle_eye.frames import Frame
from eagle_eye.training.messages import PHASES
from eagle_eye.types import Claim, Event, Kind
from fakes.synthetic_events import claims_of, cut_frame, event, job, worker
from fakes.synthetic_frames import BEGAN, Draft, FrozenWorker, job_frames, layout_of

LAYOUT = layout_of(2, 2)
NOW = BEGAN + 6.0
HANGS = "run/node-0/1"


def healthy(count: int = 6) -> list[Frame]:
    return list(job_frames(2, 2, count, np.random.default_rng(0)))


def stalls(phases: str, *, step: int = 12, marks: int = 120, behind: int = 0, state: str = "S", activity: str = "hung", **more: object) -> list[Event]:
    """One stall event per worker, e.g. phases "f ccc": the first is in forward, the others in communication."""
    short = {"c": "communication", "f": "forward", "d": "data", "e": "evaluation", "o": "other"}
    found = []
    for index, place in enumerate(LAYOUT.placements):
        slow = phases[index] != "c" or (index == 0 and behind > 0)
        entity = worker(place.node, place.local_rank)
        told = {"step": step - (behind if slow else 0), "marks": marks - (1 if slow else 0), "phase": short[phases[index]]}
        told |= {"step_marks": told["marks"], "activity": "awaits peers" if phases[index] == "c" else activity, "doing": f"is in train.py:{index}"}
        found.append(event("stall", entity, NOW, **{"age_s": 2.0, "state": state if slow else "S", "epoch": 1, **told, **more}))
    return found


def run(*frames: Frame) -> list[Claim]:
    return claims_of(Stall(), [*healthy(), *frames])


def kinds(claims: list[Claim]) -> list[tuple[str, str, bool]]:
    return [(claim.kind, claim.entity.name, claim.active) for claim in claims]


def test_fault_a_python_hang_is_blamed_once_all_positions_are_known() -> None:
    events = stalls("cfcc")
    first = cut_frame(NOW, *events[:2], layout=LAYOUT)
    assert kinds(run(first)) == []
    claims = run(first, cut_frame(NOW + 0.2, *events[2:], layout=LAYOUT))
    assert kinds(claims) == [("job.stalled", job().name, True), ("worker.stalled", HANGS, True)]
    assert claims[1].since == pytest.approx(NOW - 2.0)
    assert claims[1].evidence[1].value == 3
    assert claims[1].evidence[0].event == events[1].id


def test_fault_a_stopped_process_is_the_culprit_at_once_and_in_any_phase() -> None:
    (event_,) = [each for each in stalls("cccc", state="T", behind=1) if each.attributes["state"] == "T"]
    claims = run(cut_frame(NOW, event_, layout=LAYOUT))
    assert kinds(claims) == [("worker.stopped", "run/node-0/0", True)]


@pytest.mark.parametrize(("more", "epoch"), [({"ended": 1}, 1), ({}, 2)], ids=["its process was ended", "another epoch has begun"])
def test_a_stop_that_is_over_when_it_is_told_is_told_and_withdrawn(more: dict[str, object], epoch: int) -> None:
    (event_,) = [each for each in stalls("cccc", state="T", behind=1, **more) if each.attributes["state"] == "T"]
    begun = event("epoch.started", job(), NOW - 0.1, epoch=epoch, reason="death")
    claims = run(cut_frame(NOW, begun, layout=LAYOUT), cut_frame(NOW, event_, layout=LAYOUT))
    assert kinds(claims) == [("worker.stopped", "run/node-0/0", True), ("worker.stopped", "run/node-0/0", False)]


@pytest.mark.parametrize("found", [True, False], ids=["it was found before", "it was over when it was found"])
def test_a_stop_that_several_looks_report_is_told_once(found: bool) -> None:
    (event_,) = [each for each in stalls("cccc", state="T", behind=1) if each.attributes["state"] == "T"]
    again = msgspec.structs.replace(event_, time=event_.time + 0.2, number=99, attributes={**event_.attributes, "age_s": "2.2"})
    begun = event("epoch.started", job(), NOW + 0.1, epoch=2, reason="stall")
    order = ((event_,), (begun,), (again,)) if found else ((begun,), (event_,), (again,))
    claims = run(*(cut_frame(NOW + 0.1 * number, *events, layout=LAYOUT) for number, events in enumerate(order)))
    assert kinds(claims) == [("worker.stopped", "run/node-0/0", True), ("worker.stopped", "run/node-0/0", False)]


@pytest.mark.parametrize("ended", [{}, {"ended": "1"}], ids=["it lives", "it was ended"])
@pytest.mark.parametrize(("marks", "times"), [("120", 1), ("121", 2)], ids=["of a new agent, which has just begun to count", "twin that went on, and was stopped again"])
def test_a_stop_that_is_reported_again_seconds_later_is_told_once(marks: str, times: int, ended: dict[str, str]) -> None:
    stop = event("stall", worker("node-0", 1), NOW, epoch=1, step=12, state="T", age_s="0.7", marks="120")
    later = event("stall", worker("node-0", 1), NOW + 4.0, epoch=1, step=12, state="T", age_s="0.7", marks=marks, **ended)
    assert told_late((BEGUN,), (stop,), (later,)) == [("worker.stopped", "run/node-0/1", active) for active in (True, False) * times]


@pytest.mark.parametrize("end", ["epoch.started", "restart.delayed", "job.failed"])
@pytest.mark.parametrize("resumed", [False, True], ids=["stopped to the end", "twin that moved again"])
def test_a_stop_that_a_late_server_reads_together_with_the_end_of_its_epoch_is_told(end: str, resumed: bool) -> None:
    (event_,) = [each for each in stalls("cccc", state="T", behind=1) if each.attributes["state"] == "T"]
    moved = [event("resumed", worker("node-0", 0), NOW + 0.1, epoch=1, step=12)] * resumed
    over = event(end, job(), NOW + 0.2, epoch=2 if end == "epoch.started" else 1, reason="death")
    claims = run(cut_frame(NOW + 0.3, event_, *moved, over, layout=LAYOUT))
    told = [("worker.stopped", "run/node-0/0", True), ("worker.stopped", "run/node-0/0", False)]
    assert kinds(claims) == ([] if resumed else told)


def told_late(*order: tuple[Event, ...]) -> list[tuple[str, str, bool]]:
    """What is said of workers where a server reads these events 0.1 s apart and time goes on."""
    frames = [cut_frame(NOW + 0.1 * number, *events, layout=LAYOUT) for number, events in enumerate(order)]
    later = [replace(healthy()[-1], time=NOW + seconds) for seconds in (1.0, 4.0, 5.0, 8.0)]
    return [each for each in kinds(run(*frames, *later)) if each[0].startswith("worker")]


BEGUN = event("epoch.started", job(), NOW, epoch=2, reason="stall", in_place=1)
LEFT_OUT = event("worker.excluded", worker("node-0", 1), NOW, epoch=1, step=12, reason="it was stalled while all others waited for it")
TOLD = [("worker.stalled", "run/node-0/1", True), ("worker.stalled", "run/node-0/1", False)]


@pytest.mark.parametrize(
    "order",
    [
        [(BEGUN,), tuple(stalls("cfcc"))], [(*stalls("cfcc"), BEGUN)], [(BEGUN,), (LEFT_OUT,)], [(LEFT_OUT, BEGUN), tuple(stalls("cfcc"))],
    ],
    ids=["it came late", "it came together with the end", "only its exclusion came", "both came"],
)  # fmt: skip
def test_a_hang_that_the_job_has_healed_before_it_is_told_is_told_once_and_withdrawn(order: list[tuple[Event, ...]]) -> None:
    assert told_late(*order) == TOLD


def test_twin_a_hang_that_was_accused_in_time_is_not_told_again() -> None:
    assert told_late(tuple(stalls("cfcc")), (LEFT_OUT, BEGUN), tuple(stalls("cfcc"))) == TOLD


STOPPED = event("stall", worker("node-0", 1), NOW, epoch=1, step=12, state="T", age_s="0.6", activity="stopped")


@pytest.mark.parametrize("order", [[(STOPPED,), (LEFT_OUT, BEGUN)], [(LEFT_OUT, BEGUN), (STOPPED,)], [(STOPPED, LEFT_OUT, BEGUN)]], ids=["first", "late", "together"])
def test_twin_a_worker_that_was_stopped_by_a_signal_and_left_out_for_it_does_not_hang(order: list[tuple[Event, ...]]) -> None:
    """An elastic job leaves out who is stalled, whatever holds it."""
    assert told_late(*order) == [("worker.stopped", "run/node-0/1", True), ("worker.stopped", "run/node-0/1", False)]


def test_twin_a_stop_that_a_new_agent_reports_seconds_behind_the_exclusion_is_no_hang() -> None:
    ticks = [replace(healthy()[-1], time=NOW + seconds) for seconds in (1.0, 4.0)]
    claims = run(cut_frame(NOW, LEFT_OUT, BEGUN, layout=LAYOUT), *ticks, cut_frame(NOW + 4.5, STOPPED, layout=LAYOUT), replace(ticks[0], time=NOW + 8.0))
    assert [each for each in kinds(claims) if each[0].startswith("worker")] == [("worker.stopped", "run/node-0/1", active) for active in (True, False)]


@pytest.mark.parametrize(("moved", "told"), [(NOW - 3.0, TOLD), (NOW - 1.0, [])], ids=["it hung after that", "twin that did not go on before it hung"])
def test_a_worker_that_was_stopped_and_went_on_may_hang_in_the_same_epoch(moved: float, told: list[tuple[str, str, bool]]) -> None:
    stop = msgspec.structs.replace(STOPPED, time=NOW - 4.0)
    found = told_late((stop,), (event("resumed", worker("node-0", 1), moved, epoch=1, step=12),), (LEFT_OUT, BEGUN), tuple(stalls("cfcc")))
    assert found == [("worker.stopped", "run/node-0/1", True), ("worker.stopped", "run/node-0/1", False), *told]


def test_twin_where_all_hung_in_an_epoch_that_is_over_nobody_is_accused() -> None:
    assert told_late((BEGUN,), tuple(stalls("ffff"))) == []


@pytest.mark.parametrize(("age_s", "kind"), [(2.0, "job.paused"), (31.0, "job.stalled")])
def test_twin_all_wait_at_the_same_place_nobody_is_accused(age_s: float, kind: str) -> None:
    assert kinds(run(cut_frame(NOW, *stalls("cccc", age_s=age_s), layout=LAYOUT))) == [(kind, job().name, True)]


@pytest.mark.parametrize(("activity", "kind"), [("hung", "job.stalled"), ("working", "job.paused"), ("spinning", "job.paused"), ("", "job.paused")])
def test_twin_all_are_in_the_same_unmarked_place_nobody_is_accused(activity: str, kind: str) -> None:
    assert kinds(run(cut_frame(NOW, *stalls("oooo", activity=activity), layout=LAYOUT))) == [(kind, job().name, True)]


@pytest.mark.parametrize(("activity", "age_s", "named"), [
    ("working", 590.0, False), ("working", 601.0, True), ("spinning", 590.0, False), ("spinning", 601.0, True),
    ("standing", 29.0, False), ("standing", 31.0, True), ("hung", 1.1, True), ("", 590.0, False), ("unknown", 590.0, False), ("unknown", 601.0, True),
])  # fmt: skip
def test_who_is_waited_for_is_accused_as_soon_as_what_it_does_proves_it(activity: str, age_s: float, named: bool) -> None:
    claims = run(cut_frame(NOW, *stalls("cfcc", activity=activity, age_s=age_s), layout=LAYOUT))
    accused = [("job.stalled", job().name, True), ("worker.stalled", HANGS, True)]
    assert kinds(claims) == (accused if named else [("job.paused", job().name, True)])


def test_twin_a_pause_tells_what_the_worker_does_and_again_when_it_does_something_else() -> None:
    first, second = stalls("cfcc", activity="working"), stalls("cfcc", activity="working", doing="reads in data.py:7")
    claims = run(cut_frame(NOW, *first, layout=LAYOUT), cut_frame(NOW + 1, *first, layout=LAYOUT), cut_frame(NOW + 2, *second, layout=LAYOUT))
    assert [claim.kind for claim in claims] == ["job.paused", "job.paused"]
    assert HANGS in claims[0].evidence[0].text
    assert "it is in train.py:1" in claims[0].evidence[0].text
    assert "it reads in data.py:7" in claims[1].evidence[0].text


def test_a_pause_that_turns_out_to_be_a_hang_is_no_pause_any_more() -> None:
    claims = run(cut_frame(NOW, *stalls("cfcc", activity="working"), layout=LAYOUT), cut_frame(NOW + 5, *stalls("cfcc"), layout=LAYOUT))
    assert kinds(claims) == [
        ("job.paused", job().name, True), ("job.stalled", job().name, True), ("job.paused", job().name, False), ("worker.stalled", HANGS, True),
    ]  # fmt: skip


def standing(age_s: float, until: float, place: str = "rewards.py:7 ask") -> list[Frame]:
    """A worker stands in a line for so long; then all go on by themselves. Two frames."""
    seen = stalls("cfcc", activity="standing", place=place, age_s=age_s)
    seen = [msgspec.structs.replace(each, time=until) for each in seen]
    moved = [event("resumed", each.entity, until + 0.1, step=12, epoch=1) for each in seen]
    return [cut_frame(until, *seen, layout=LAYOUT), cut_frame(until + 0.1, *moved, layout=LAYOUT)]


@pytest.mark.parametrize(("taught_s", "age_s", "named"), [(25.0, 45.0, False), (25.0, 51.0, True), (10.0, 31.0, True), (400.0, 31.0, True)])
def test_a_line_in_which_the_job_has_stood_before_is_given_twice_as_long(taught_s: float, age_s: float, named: bool) -> None:
    """The last case: a worker was accused after 30 s of 400; however it ended, it teaches nothing."""
    detector = Stall()
    before = claims_of(detector, [*healthy(), *standing(taught_s, NOW + 1)])
    later, _ = standing(age_s, NOW + 300)
    again = claims_of(detector, [later])
    assert ("worker.stalled" in {claim.kind for claim in before}) == (taught_s > 30.0)
    assert ("worker.stalled" in {claim.kind for claim in again}) == named


def test_a_wait_for_input_that_somebody_was_accused_of_teaches_no_patience() -> None:
    """A loader's worker that a signal stopped for five minutes: it goes on, and the step ends with a wait of five minutes."""
    detector = Stall()
    *before, last = healthy()
    (stopped,) = [each for each in stalls("dccc", state="T", behind=1, age_s=300.0) if each.attributes["state"] == "T"]
    moved = event("resumed", stopped.entity, NOW + 1.0, epoch=1, step=12)
    (step,) = last.steps[-1:]
    waited = msgspec.structs.replace(step, number=step.number + 1, end=NOW + 2.0, values={**step.values, "step_s": np.array([302.0] * 4), "data_s": np.array([301.0, 0.1, 0.1, 0.1])})
    claims_of(detector, [*before, last, cut_frame(NOW, stopped, layout=LAYOUT), cut_frame(NOW + 1.0, moved, layout=LAYOUT)])
    claims_of(detector, [replace(last, time=NOW + 2.0, steps=(waited,))])
    waiting = stalls("dccc", step=14, behind=1, activity="working", age_s=15.0)
    later = [msgspec.structs.replace(each, time=NOW + 100.0) for each in waiting]
    assert "input.stalled" not in {claim.kind for claim in claims_of(detector, [cut_frame(NOW + 100.0, *later, layout=LAYOUT)])}, "more patience than 10 s"


def test_twin_patience_with_one_line_is_no_patience_with_another_nor_beyond_the_users_limit() -> None:
    taught = Stall(stall=StallConfig(patience_s=40.0))
    claims_of(taught, [*healthy(), *standing(25.0, NOW + 1)])
    other, _ = standing(31.0, NOW + 300, place="train.py:99 step")
    assert "worker.stalled" in {claim.kind for claim in claims_of(taught, [other])}
    limited = Stall(stall=StallConfig(patience_s=40.0))
    claims_of(limited, [*healthy(), *standing(25.0, NOW + 1)])
    same, _ = standing(41.0, NOW + 300)
    assert "worker.stalled" in {claim.kind for claim in claims_of(limited, [same])}


def test_who_saved_checkpoints_alone_is_not_ahead_of_the_others() -> None:
    """Marks are compared within a step: those of its life would make all others stand behind it."""
    events = stalls("cfcc", activity="working", age_s=700.0)
    ahead = [msgspec.structs.replace(each, attributes={**each.attributes, "marks": "300"}) if each.entity.name != HANGS else each for each in events]
    assert kinds(run(cut_frame(NOW, *ahead, layout=LAYOUT)))[1] == ("worker.stalled", HANGS, True)


@dataclass
class Pausing:
    """One worker is in a phase for long, the others wait for it; ticks alone."""

    phase: str
    begin: int = 4

    def __call__(self, draft: Draft) -> None:
        FrozenWorker(worker=1, begin=self.begin, activity=ActivityKind.WORKING)(draft)
        if draft.tick >= self.begin:
            draft.metrics[Kind.WORKER]["phase"][1] = PHASES.index(self.phase)


@pytest.mark.parametrize("phase", ["evaluation", "checkpoint"])
def test_twin_evaluation_and_checkpoint_of_one_worker_raise_nothing(phase: str) -> None:
    frames = list(job_frames(2, 2, 40, np.random.default_rng(0), faults=[Pausing(phase)]))
    waiting = [each for each in stalls("cccc") if each.entity.name != HANGS]
    frames.insert(5, cut_frame(frames[4].time + 0.1, *waiting, layout=LAYOUT))
    assert kinds(claims_of(Stall(), frames)) == []


def test_fault_a_hang_that_the_others_await_in_their_evaluation_is_found() -> None:
    def evaluating(draft: Draft) -> None:
        if draft.tick >= 4:
            draft.metrics[Kind.WORKER]["phase"][[0, 2, 3]] = PHASES.index("evaluation")

    frames = job_frames(2, 2, 12, np.random.default_rng(0), faults=[FrozenWorker(worker=1, begin=4), evaluating])
    found = claims_of(Stall(), frames)
    assert kinds(found) == [("job.stalled", job().name, True), ("worker.stalled", HANGS, True)]


def test_twin_all_stand_in_their_evaluation_nobody_is_accused_because_it_began_a_moment_earlier() -> None:
    def evaluating(draft: Draft) -> None:
        if draft.tick >= 4:
            metrics = draft.metrics[Kind.WORKER]
            metrics["phase"][:], metrics["step_marks"][:] = PHASES.index("evaluation"), metrics["step_marks"].max()
            metrics["activity"][:] = ACTIVITIES.index(ActivityKind.STANDING)
            metrics["progress_age_s"][1] += 0.4

    frames = job_frames(2, 2, 14, np.random.default_rng(0), faults=[FrozenWorker(worker=1, begin=4), evaluating])
    found = claims_of(Stall(stall=StallConfig(patience_s=5.2, standing_s=5.2)), frames)
    assert {(kind, name) for kind, name, _ in kinds(found)} == {("job.paused", job().name), ("job.stalled", job().name)}


def test_twin_a_long_wait_for_input_informs_and_names_no_culprit() -> None:
    frames = list(job_frames(2, 2, 12, np.random.default_rng(0), faults=[Pausing("data")]))
    claims = claims_of(Stall(), frames)
    assert kinds(claims) == [("input.stalled", job().name, True)]


def test_a_wait_for_input_without_end_is_a_stall_of_the_worker_that_never_got_it() -> None:
    frames = list(job_frames(2, 2, 20, np.random.default_rng(0), faults=[Pausing("data")]))
    claims = claims_of(Stall(data_patience_s=8.0, stall=StallConfig(patience_s=9.0)), frames)
    assert [claim.kind for claim in claims] == ["input.stalled", "job.paused", "job.stalled", "job.paused", "worker.stalled"]


@pytest.mark.parametrize("begin", [4, 7])
def test_fault_a_hang_is_found_from_ticks_alone(begin: int) -> None:
    frames = list(job_frames(2, 2, 12, np.random.default_rng(0), faults=[FrozenWorker(worker=1, begin=begin)]))
    detector = Stall()
    found = [(frame.time, claim) for frame in frames for claim in detector.update(frame)]
    assert kinds([claim for _, claim in found]) == [("job.stalled", job().name, True), ("worker.stalled", HANGS, True)]
    assert found[0][0] - (BEGAN + begin) <= 3.0


def test_it_is_over_when_the_workers_move_or_a_new_epoch_begins() -> None:
    events = stalls("cfcc")
    resumed = [event("resumed", each.entity, NOW + 1, step=12, epoch=1) for each in events]
    stalled = cut_frame(NOW, *events, layout=LAYOUT)
    over = [("worker.stalled", HANGS, False), ("job.stalled", job().name, False)]
    assert sorted(kinds(run(stalled, cut_frame(NOW + 1, *resumed, layout=LAYOUT)))[2:]) == sorted(over)
    begun = event("epoch.started", job(), NOW + 1, epoch=2)
    late = stalls("cfcc", epoch=1)
    claims = run(stalled, cut_frame(NOW + 1, begun, layout=LAYOUT), cut_frame(NOW + 1.1, *late, layout=LAYOUT))
    assert sorted(kinds(claims)[2:]) == sorted(over)


def test_twin_what_was_read_before_the_workers_moved_again_accuses_nobody_anew() -> None:
    """A worker moves again between two ticks; the batch of the later tick was read before that."""

    def second_stall(draft: Draft) -> None:
        if draft.tick >= 9:
            draft.metrics[Kind.WORKER]["progress_age_s"][:] = draft.tick - 8.3

    faults = [FrozenWorker(worker=1, begin=4), second_stall]
    frames = list(job_frames(2, 2, 13, np.random.default_rng(0), faults=faults))
    begun, moved = frames[7].time, frames[7].time + 0.6
    frames[8] = replace(frames[8], metrics={Kind.WORKER: frames[7].metrics[Kind.WORKER]})
    resumed = [event("resumed", worker(place.node, place.local_rank), moved, step=12, epoch=1) for place in LAYOUT.placements]
    detector = Stall()
    before = [claim for frame in frames[:8] for claim in detector.update(frame)]
    over = list(detector.update(cut_frame(moved, *resumed, layout=LAYOUT)))
    assert [claim.active for claim in (*before, *over)] == [True, True, False, False]
    assert list(detector.update(frames[8])) == []
    again = [claim for frame in frames[9:] for claim in detector.update(frame)]
    assert kinds(again) == [("job.stalled", job().name, True), ("worker.stalled", HANGS, True)]
    assert again[0].since > begun


def test_twin_survivors_of_a_death_stand_still_without_being_accused() -> None:
    """Nor is the dead one, whose last position is furthest behind: who died is told elsewhere."""
    dead = event("exit", worker("node-0", 1), BEGAN + 4.5, code=-9, signal="SIGKILL", epoch=1)
    frames = list(job_frames(2, 2, 12, np.random.default_rng(0), faults=[FrozenWorker(worker=1, begin=4)]))
    frames.insert(4, cut_frame(BEGAN + 4.5, dead, layout=LAYOUT))
    assert kinds(claims_of(Stall(), frames)) == []


def test_twin_workers_that_were_ended_until_a_back_off_is_over_do_not_stall() -> None:
    frames = list(job_frames(2, 2, 12, np.random.default_rng(0), faults=[FrozenWorker(worker=1, begin=4)]))
    detector = Stall()
    assert [claim for frame in frames[:8] for claim in detector.update(frame)]
    waits = event("restart.delayed", job(), frames[7].time + 0.1, seconds="60", epoch=1)
    over = list(detector.update(cut_frame(waits.time, waits, layout=LAYOUT)))
    assert over
    assert not any(claim.active for claim in over)
    assert [claim for frame in frames[8:] for claim in detector.update(frame)] == []


def test_before_the_first_step_of_an_epoch_slow_workers_are_not_stalled() -> None:
    def loading(draft: Draft) -> None:
        draft.steps.clear()
        draft.metrics[Kind.WORKER]["progress_age_s"][:] = draft.tick + 1

    frames = list(job_frames(2, 2, 30, np.random.default_rng(0), faults=[loading]))
    assert kinds(claims_of(Stall(), frames)) == []


def test_late_batches_of_a_node_leave_its_workers_where_they_were() -> None:
    def late(draft: Draft) -> None:
        if draft.tick in (7, 8):
            for values in draft.metrics[Kind.WORKER].values():
                values[2:] = np.nan

    faults = [FrozenWorker(worker=1, begin=4), late]
    frames = list(job_frames(2, 2, 12, np.random.default_rng(0), faults=faults))
    assert [claim.active for claim in claims_of(Stall(), frames)] == [True, True]


def test_positions_that_stay_unknown_accuse_nobody() -> None:
    def half(draft: Draft) -> None:
        if draft.tick >= 4:
            for values in draft.metrics[Kind.WORKER].values():
                values[2:] = np.nan

    faults = [half, FrozenWorker(worker=1, begin=4), half]
    frames = list(job_frames(2, 2, 14, np.random.default_rng(0), faults=faults))
    kinds_ = [claim.kind for claim in claims_of(Stall(late_ticks=0), frames)]
    assert kinds_ == ["job.paused"]


@dataclass
class Finished:
    """A worker's loop is over and its process is gone from a tick on, as its node reads it."""

    worker: int
    begin: int = 4
    steps_short: int = 0
    end: float = float("inf")
    """From this tick on another process has its name."""

    def __call__(self, draft: Draft) -> None:
        if self.begin <= draft.tick < self.end:
            metrics = draft.metrics[Kind.WORKER]
            metrics["running"][self.worker] = 0
            metrics["state"][self.worker] = np.nan
            for name in ("marks", "step_marks"):
                metrics[name][self.worker] += 5
            metrics["step"][self.worker] -= self.steps_short


def test_fault_who_hangs_after_a_peer_has_finished_is_named_and_the_peer_is_not() -> None:
    frames = job_frames(1, 2, 12, np.random.default_rng(0), faults=[FrozenWorker(worker=1, begin=4), Finished(0)])
    found = claims_of(Stall(), frames)
    assert kinds(found) == [("job.stalled", job().name, True), ("worker.stalled", HANGS, True)]
    assert not any("node-0/0" in line.text for claim in found for line in claim.evidence)


@pytest.mark.parametrize("phase", ["communication", "other"])
def test_twin_those_that_wait_for_a_peer_that_has_left_early_are_not_named_nor_is_it(phase: str) -> None:
    def waiting(draft: Draft) -> None:
        if draft.tick >= 4:
            draft.metrics[Kind.WORKER]["phase"][1] = PHASES.index(phase)

    faults = [FrozenWorker(worker=1, begin=4, activity=ActivityKind.AWAITS_PEERS), waiting, Finished(0, steps_short=3)]
    found = claims_of(Stall(stall=StallConfig(standing_s=4.0)), job_frames(1, 2, 12, np.random.default_rng(0), faults=faults))
    assert [kind for kind, _, active in kinds(found) if active] == ["job.paused", "job.stalled"]
    assert not any("worker run/node-0/0" in line.text for claim in found for line in claim.evidence)


def test_twin_workers_that_have_all_finished_do_not_stand_still() -> None:
    faults = [FrozenWorker(worker=1, begin=4), Finished(0), Finished(1)]
    assert claims_of(Stall(), job_frames(1, 2, 12, np.random.default_rng(0), faults=faults)) == []


def test_a_stall_told_by_events_is_judged_without_waiting_for_who_has_finished() -> None:
    frames = list(job_frames(2, 2, 6, np.random.default_rng(0), faults=[Finished(0)]))
    told = cut_frame(NOW, *stalls("cfcc", step=1000)[1:], layout=LAYOUT)
    named = [("job.stalled", job().name, True), ("worker.stalled", HANGS, True)]
    assert kinds(claims_of(Stall(), [*frames, told])) == named


BEFORE = Finished(0, begin=4, end=5)
"""The last reading of who had the worker's name in the epoch before: its process has ended."""


def test_fault_a_stopped_worker_is_named_though_the_last_reading_of_its_predecessor_came_into_its_epoch() -> None:
    begun = cut_frame(NOW - 2.1, event("epoch.started", job(), NOW - 2.1, epoch=2, reason="death"), layout=LAYOUT)
    frames = list(job_frames(2, 2, 5, np.random.default_rng(0), faults=[BEFORE]))
    assert kinds(claims_of(Stall(), [*frames[:4], begun, frames[4], stopped_in_epoch(2)])) == [("worker.stopped", "run/node-0/0", True)]


def test_fault_who_is_read_again_has_not_finished_and_is_found_where_it_hangs() -> None:
    claims = claims_of(Stall(), job_frames(2, 2, 14, np.random.default_rng(0), faults=[FrozenWorker(worker=0, begin=7), BEFORE]))
    assert ("worker.stalled", "run/node-0/0", True) in kinds(claims)


def test_twin_a_stop_of_before_that_is_told_late_is_none_of_a_worker_that_has_ended_well() -> None:
    ended = cut_frame(NOW, event("worker.finished", worker("node-0", 0), NOW + 0.1, epoch=1, step=12), layout=LAYOUT)
    assert kinds(run(ended, stopped_in_epoch(1))) == []


def stopped_in_epoch(epoch: int) -> Frame:
    (stop,) = [each for each in stalls("cccc", state="T", behind=1, epoch=epoch) if each.attributes["state"] == "T"]
    return cut_frame(NOW + 2.0, stop, layout=LAYOUT)
