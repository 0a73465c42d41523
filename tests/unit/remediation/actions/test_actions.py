"""What each action sends, and what it says of it."""

import threading

import msgspec
import pytest

from eagle_eye.clock import FakeClock
from eagle_eye.errors import PermanentError, Stale, TemporaryError
from eagle_eye.types import Plan, Progress, Severity, Target
from fakes.fake_commander import FakeCommander
from remediation.actions.dump import Dump
from remediation.actions.evict_node import EvictNode
from remediation.actions.release import ReleaseNode
from remediation.actions.resize import Resize
from remediation.actions.roll_back import RollBack
from remediation.actions.undo import Undo
from remediation.engine.execution import MOST_HUNG, SILENT_S, Execution, at_once

JOB = "t/n/r"


def plan(action, *, own=False, **target) -> Plan:
    aim = Target(job=JOB, epoch=3, basis="b", **target)
    return Plan(
        id="p1", incident="i1", action=action, targets=(aim,), made=0.0, expires=60.0, severity=Severity.SEV1, own=own,
        reason="slow node",
    )


class Cordons:
    def __init__(self):
        self.made = []

    def cordon(self, node, job, plan, time, reason=""):
        self.made.append((node, job, plan, reason))
        return True


@pytest.fixture
def commander():
    return FakeCommander(epochs={JOB: 3})


@pytest.fixture
def clock():
    return FakeClock()


def test_a_node_is_cordoned_only_after_the_job_runs_without_it(commander, clock):
    cordons = Cordons()
    action = EvictNode(commander=commander, ledger=cordons, clock=clock)
    steps = action.run(plan("evict_node", exclude=("b",)))
    assert next(steps).state == "intended"
    assert commander.sent == []
    assert next(steps).detail == '{"epoch":4}'
    assert cordons.made == []
    assert [step.step for step in steps] == ["cordon b", "cordon b"]
    assert cordons.made == [("b", JOB, "p1", "slow node")]
    [sent] = commander.sent
    assert (sent.arguments["exclude"], sent.arguments["own"], sent.epoch) == (["b"], False, 3)


def test_a_command_for_an_epoch_that_is_over_is_refused(commander, clock):
    commander.epochs[JOB] = 5
    with pytest.raises(Stale):
        list(RollBack(commander=commander, clock=clock).run(plan("roll_back", resume_step=10)))


def test_the_same_step_of_the_same_plan_is_done_once(commander, clock):
    action = RollBack(commander=commander, clock=clock)
    for _ in range(2):
        steps = list(action.run(plan("roll_back", resume_step=10, skip=(12,))))
    assert len(commander.sent) == 1
    assert steps[-1].detail == '{"epoch":4}'
    assert commander.sent[0].arguments["skip"] == [12]


def test_a_roll_back_to_nowhere_is_refused_before_anything_is_sent(commander, clock):
    with pytest.raises(PermanentError):
        list(RollBack(commander=commander, clock=clock).run(plan("roll_back")))
    assert commander.sent == []


def test_stacks_are_kept_once_for_all_that_stand_there_the_rare_one_first(commander, clock):
    waits = {"stack": "all_reduce", "flight_recorder": None}
    commander.answers["dump"] = {"w0": waits, "w1": {"stack": "sleep", "flight_recorder": {"entries": [1]}}, "w2": waits, "w3": None}
    *_, last = Dump(commander=commander, clock=clock).run(plan("dump"))
    kept = msgspec.json.decode(last.detail)
    assert [stack["workers"] for stack in kept["stacks"]][-1] == ["w0", "w2"]
    assert {"workers": ["w1"], "stack": "sleep"} in kept["stacks"]
    assert kept["flight_recorders"] == {"w1": {"entries": [1]}}


def test_workers_at_the_same_place_are_one_whatever_their_numbers(commander, clock):
    text = 'Process {0}: python t.py\nThread {0} (idle): "MainThread"\n    step (/t.py:{1})\n'
    commander.answers["dump"] = {f"w{rank}": {"stack": text.format(100 + rank, 7 if rank == 1 else 9)} for rank in range(4)}
    *_, last = Dump(commander=commander, clock=clock).run(plan("dump"))
    stacks = msgspec.json.decode(last.detail)["stacks"]
    assert [(stack["workers"], stack["stack"]) for stack in stacks] == [(["w1"], text.format(101, 7)), (["w0", "w2", "w3"], text.format(100, 9))]


def test_a_dump_of_many_stays_small(commander, clock):
    commander.answers["dump"] = {f"w{n}": {"stack": f"{n}" * 5000, "flight_recorder": "x" * 5000} for n in range(200)}
    *_, last = Dump(commander=commander, clock=clock, longest=20_000).run(plan("dump"))
    assert len(last.detail) < 60_000


def test_a_release_names_the_node(commander, clock):
    *_, last = ReleaseNode(commander=commander, clock=clock).run(plan("release", exclude=("b",)))
    assert last.state == "done"
    assert commander.sent[0].arguments == {"node": "b"}


class MemoryProgressLog:
    def __init__(self):
        self.written = []

    def record_intent(self, plan, step):
        self.written.append((step.step, step.state))

    def record_result(self, plan, step):
        self.written.append((step.step, step.state))


def test_every_step_is_written_before_it_runs_and_a_failure_after_it(commander, clock):
    book = MemoryProgressLog()
    seen = []

    def restart(sent):
        seen.append(list(book.written))
        raise PermanentError("too few nodes")

    commander.answers["restart"] = restart
    execution = Execution(
        actions={"roll_back": RollBack(commander=commander, clock=clock)}, log=book, clock=clock, start=at_once
    )
    execution.begin(plan("roll_back", resume_step=1))
    [report] = execution.reports()
    assert seen == [[(f"restart {JOB}", "intended")]]
    assert book.written[-1] == (f"restart {JOB}", "failed")
    assert (report.ending, report.detail) == ("refused", "too few nodes")


def test_an_action_that_breaks_in_a_way_of_its_own_is_reported_too(clock):
    class Odd:
        def run(self, plan):
            raise ZeroDivisionError("odd")
            yield

    book = MemoryProgressLog()
    execution = Execution(actions={"odd": Odd()}, log=book, clock=clock, start=at_once)
    execution.begin(plan("odd"))
    [report] = execution.reports()
    assert report.ending == "refused"
    assert book.written == [("odd", "intended"), ("odd", "failed")]


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError


class Asking(TemporaryError):
    def __init__(self, delay):
        super().__init__("not yet")
        self.delay = delay


@pytest.mark.parametrize("raised", [SystemExit(0), KeyboardInterrupt(), Unspeakable(), *map(Asking, (float("nan"), "soon", -1.0, 10**400, None))])
def test_whatever_an_action_raises_its_job_does_not_stay_busy(clock, raised):
    class Odd:
        def run(self, plan):
            raise raised
            yield

    execution = Execution(actions={"odd": Odd()}, log=MemoryProgressLog(), clock=clock, start=at_once)
    execution.begin(plan("odd"))
    [report] = execution.reports()
    assert report.ending == ("retry" if isinstance(raised, Asking) else "refused")
    assert 0.0 <= report.delay <= 3600.0
    assert not execution.busy(JOB)


class Held:
    """An action that returns only when it is let."""

    def __init__(self):
        self.begun, self.let, self.over = threading.Event(), threading.Event(), threading.Event()

    def run(self, plan):
        yield Progress(step="ask", state="intended", time=0.0)
        self.begun.set()
        try:
            self.let.wait()
            yield Progress(step="ask", state="done", time=0.0)
        finally:
            self.over.set()


def hung(execution, held, clock, *, seconds=None):
    """What is reported while an action does not come back."""
    execution.begin(plan("held"))
    assert held.begun.wait(60.0)
    found = []
    for _ in range(int(SILENT_S if seconds is None else seconds) + 2):
        clock.advance(1.0)
        found += execution.reports()
    return found


def test_an_action_that_never_returns_is_told_and_its_job_is_free_again(clock):
    held, book = Held(), MemoryProgressLog()
    execution = Execution(actions={"held": held}, log=book, clock=clock)
    [report] = hung(execution, held, clock)
    assert (report.ending, execution.busy(JOB)) == ("refused", False)
    assert "the action held has taken no step for 900 s" in report.detail
    held.let.set()
    assert held.over.wait(60.0)
    assert book.written == [("ask", "intended"), ("ask", "failed")], "what it still does is nobody's"
    assert execution.reports() == []


def test_an_action_that_hangs_again_and_again_is_not_begun_again(clock):
    execution = Execution(actions={}, log=MemoryProgressLog(), clock=clock)
    for _ in range(MOST_HUNG):
        held = execution._actions["held"] = Held()
        hung(execution, held, clock)
        held.let.set()
    execution._start = at_once
    execution.begin(plan("held"))
    [report] = execution.reports()
    assert f"has hung {MOST_HUNG} times" in report.detail


def test_twin_an_action_that_takes_its_time_is_waited_for(clock):
    held = Held()
    execution = Execution(actions={"held": held}, log=MemoryProgressLog(), clock=clock)
    assert hung(execution, held, clock, seconds=SILENT_S - 10.0) == []
    held.let.set()
    while not (reports := execution.reports()):
        held.over.wait(0.01)
    assert [report.ending for report in reports] == ["done"]


def test_twin_an_action_whose_timeout_is_longer_is_waited_for(clock):
    held = Held()
    held.timeout_s = SILENT_S
    execution = Execution(actions={"held": held}, log=MemoryProgressLog(), clock=clock)
    assert hung(execution, held, clock) == []
    held.let.set()
    assert held.over.wait(60.0)


def test_twin_a_server_that_was_stopped_for_an_hour_leaves_no_action_behind(clock):
    held = Held()
    execution = Execution(actions={"held": held}, log=MemoryProgressLog(), clock=clock)
    assert hung(execution, held, clock, seconds=0.0) == []
    clock.advance(3600.0)
    assert execution.reports() == []
    held.let.set()


def test_an_action_for_which_there_is_no_thread_is_tried_again(clock):
    """Its job stayed busy for ever, and nothing healed it any more."""

    def no_thread(_name, _work):
        raise RuntimeError("can't start new thread")

    execution = Execution(actions={"held": Held()}, log=MemoryProgressLog(), clock=clock, start=no_thread)
    execution.begin(plan("held"))
    [report] = execution.reports()
    assert (report.ending, report.delay, execution.busy(JOB)) == ("retry", 5.0, False)


def test_an_action_that_steps_for_ever_is_refused(clock):
    class Endless:
        def run(self, plan):
            while True:
                yield Progress(step="s", state="intended", time=0.0)

    execution = Execution(actions={"endless": Endless()}, log=MemoryProgressLog(), clock=clock, start=at_once)
    execution.begin(plan("endless"))
    [report] = execution.reports()
    assert "takes more than" in report.detail


@pytest.mark.parametrize("yielded", ["done", 5, Progress(step="s", state="intended", time=0.0, detail="\ud800")])
def test_an_action_that_yields_what_is_no_step_is_refused(clock, yielded):
    class Odd:
        def run(self, plan):
            yield yielded

    class Book(MemoryProgressLog):
        def record_intent(self, plan, step):
            msgspec.json.encode(step)
            super().record_intent(plan, step)

    execution = Execution(actions={"odd": Odd()}, log=Book(), clock=clock, start=at_once)
    execution.begin(plan("odd"))
    [report] = execution.reports()
    assert report.ending == "refused"


def test_an_action_that_is_not_there_names_the_remedy(clock):
    execution = Execution(actions={}, log=MemoryProgressLog(), clock=clock, start=at_once)
    execution.begin(plan("reboot"))
    [report] = execution.reports()
    assert "remediation/actions/reboot.py" in report.detail


def test_a_lease_lost_between_two_steps_stops_before_the_second(commander, clock):
    leads = iter([True, True, True, False, False])
    cordons = Cordons()
    action = EvictNode(commander=commander, ledger=cordons, clock=clock)
    execution = Execution(
        actions={"evict_node": action}, log=MemoryProgressLog(), clock=clock, start=at_once, leads=lambda: next(leads)
    )
    execution.begin(plan("evict_node", exclude=("b",)))
    [report] = execution.reports()
    assert report.ending == "stopped"
    assert cordons.made == []


# --- who changes jobs ------------------------------------------------------------------------------------------------


def exchanging() -> Plan:
    light = Target(job="t/light/r", epoch=3, basis="b", workers_per_node={"n1": 2}, workers_per_node_before={"n1": 3})
    heavy = Target(job="t/heavy/r", epoch=5, basis="b", workers_per_node={"n1": 3}, workers_per_node_before={"n1": 2})
    return msgspec.structs.replace(plan("resize"), targets=(light, heavy))


def only(job: str, error: Exception):
    def answer(sent):
        if sent.job == job:
            raise error
        return {"epoch": sent.epoch + 1}

    return answer


def asked(commander):
    return [(sent.job, sent.arguments["workers"], sent.epoch) for sent in commander.sent]


def test_who_gives_does_so_before_who_takes():
    commander = FakeCommander()
    steps = list(Resize(commander=commander, clock=FakeClock()).run(exchanging()))
    assert asked(commander) == [("t/light/r", {"n1": 2}, 3), ("t/heavy/r", {"n1": 3}, 5)]
    assert [step.state for step in steps] == ["intended", "done"] * 2


@pytest.mark.parametrize(("error", "raised"), [(PermanentError("no memory"), PermanentError), (Stale("epoch 6"), Stale)])
def test_a_taker_that_fails_gives_back_what_was_given(error, raised):
    commander = FakeCommander(answers={"resize": only("t/heavy/r", error)})
    steps = []
    with pytest.raises(raised, match=str(error)):
        steps.extend(Resize(commander=commander, clock=FakeClock()).run(exchanging()))
    assert asked(commander) == [("t/light/r", {"n1": 2}, 3), ("t/light/r", {"n1": 3}, 0)]
    told = [(step.step, step.state) for step in steps]
    assert ("resize t/heavy/r", "failed") in told
    assert told[-1] == ("give back t/light/r", "done")


def test_a_taker_that_may_have_taken_all_the_same_is_set_back_before_the_giver():
    commander = FakeCommander(loses=lambda sent: sent.job == "t/heavy/r" and sent.epoch > 0)
    with pytest.raises(PermanentError, match="did not answer in time"):
        list(Resize(commander=commander, clock=FakeClock()).run(exchanging()))
    assert asked(commander)[2:] == [("t/heavy/r", {"n1": 2}, 0), ("t/light/r", {"n1": 3}, 0)]


def test_a_giver_gets_nothing_back_while_nobody_knows_what_the_taker_has():
    commander = FakeCommander(answers={"resize": only("t/heavy/r", TemporaryError("no session"))})
    steps = []
    with pytest.raises(PermanentError, match="could not be given back what it had"):
        steps.extend(Resize(commander=commander, clock=FakeClock()).run(exchanging()))
    assert asked(commander) == [("t/light/r", {"n1": 2}, 3)]


def test_a_giver_that_fails_has_given_nothing_and_may_be_asked_again():
    commander = FakeCommander(answers={"resize": only("t/light/r", TemporaryError("no session"))})
    with pytest.raises(TemporaryError):
        list(Resize(commander=commander, clock=FakeClock()).run(exchanging()))
    assert asked(commander) == []


def test_an_exchange_is_undone_by_the_seats_of_before():
    commander = FakeCommander()
    undo = Undo(commander=commander, ledger=Cordons(), clock=FakeClock())
    first = exchanging().targets
    back = tuple(msgspec.structs.replace(each, workers_per_node=each.workers_per_node_before, workers_per_node_before=each.workers_per_node, epoch=0) for each in reversed(first))
    list(undo.run(msgspec.structs.replace(plan("undo"), targets=back, undoes="p1")))
    assert asked(commander) == [("t/heavy/r", {"n1": 2}, 0), ("t/light/r", {"n1": 3}, 0)]
