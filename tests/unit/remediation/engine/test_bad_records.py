"""What one record, one incident or one plugin does wrong stops neither the leader nor the next one."""

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import pytest

from eagle_eye.clock import FakeClock
from eagle_eye.dead_letters import dead_letters
from eagle_eye.errors import CalledOff, ControlError, LedgerError, LedgerRefused, LedgerUnavailable, Stale
from eagle_eye.ledger import Ledger
from eagle_eye.rpc import control_pb2 as pb
from eagle_eye.rpc.protobuf_codec import decode_decision, decode_operator_command
from eagle_eye.stream import FINDINGS, INCIDENTS, JOB_SNAPSHOTS
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.types import (
    Allow,
    Entity,
    Event,
    Finding,
    Hold,
    Incident,
    JobSnapshot,
    Kind,
    Notice,
    Plan,
    Progress,
    Refuse,
    Severity,
    Situation,
    SnapshotStep,
)
from fakes.sample_values import JOB, a_finding, an_incident
from remediation.engine import engine, guard_review
from remediation.engine.call_timeout import returns
from remediation.engine.handler_failures import LONGEST_S, HandlingFailures
from remediation.engine.intake import Intake
from remediation.engine.job_state import JobState

WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")
ODD = ("", "x", "9" * 30, "9" * 5000, "-1", "1.5", "inf", "nan", "1e300", "\0")
ATTRIBUTES = {
    "epoch.started": ("epoch", "budget_left", "skipped"), "restart.delayed": ("seconds",), "checkpoint.saved": ("step", "finite"),
    "transition.done": ("notice_s", "plan_s"), "budget.exhausted": ("restarts",), "resumed": ("step",),
}  # fmt: skip


def told(name: str, **attributes: str) -> JobSnapshot:
    event = Event(name=name, job=JOB, entity=Entity(kind=Kind.JOB, name=JOB), time=1.0, node="a", incarnation="i", number=1, attributes=attributes)
    return JobSnapshot(job=JOB, generation=1, number=1, time=100.0, tick=False, events=(event,))


# --- what a job's events say ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "attribute"), [(name, each) for name, attributes in ATTRIBUTES.items() for each in attributes])
@pytest.mark.parametrize("text", [None, *ODD])
def test_no_attribute_of_an_event_stops_the_leader(name, attribute, text):
    job = JobState(name=JOB)
    given = {"epoch": "1"} | ({} if text is None else {attribute: text})
    job.update(told(name, **{key: value for key, value in given.items() if text is not None or key != attribute}), calm=True)
    assert all(math.isfinite(seconds) for seconds in (job.restart_due, *job.regroup_times))
    assert set(job.checkpoints) <= {0}, "of no step that cannot be"


def test_an_epoch_that_nobody_can_read_has_not_begun():
    job = JobState(name=JOB)
    assert job.update(told("epoch.started", epoch="9" * 30), calm=True) == []
    assert (job.epoch, list(job.started_epochs)) == (-1, [])


def test_a_job_that_claims_to_back_off_for_years_is_looked_at_within_the_hour():
    job = JobState(name=JOB)
    job.update(JobSnapshot(job=JOB, generation=1, number=1, time=100.0, tick=True), calm=True)
    job.update(told("restart.delayed", seconds="1e12"), calm=True)
    assert job.backs_off()
    job.update(JobSnapshot(job=JOB, generation=1, number=3, time=3800.0, tick=True), calm=True)
    assert not job.backs_off()


@pytest.mark.parametrize(("tokens", "workers"), [(0.0, 4), (-5.0, 4), (100.0, 0), (100.0, -1)])
def test_steps_without_work_or_workers_teach_no_throughput(tokens, workers):
    job = JobState(name=JOB)
    steps = tuple(SnapshotStep(number=number, epoch=1, end=float(number), workers=workers, tokens=tokens) for number in range(20))
    job.update(JobSnapshot(job=JOB, generation=1, number=1, time=20.0, tick=True, steps=steps), calm=True)
    assert math.isnan(job.expected(4))


def test_jobs_that_nobody_has_declared_do_not_fill_the_memory(make_world):
    world = make_world()
    for number in range(10_050):
        world.engine.receive_snapshot(JobSnapshot(job=f"t/n/{number}", generation=1, number=1, time=world.clock.now(), tick=True))
    assert len(world.engine._state.jobs) <= 10_000
    assert world.engine._state.jobs[world.job.name].layout is not None, "one that runs is not forgotten for them"


# --- the intake -----------------------------------------------------------------------------------------------------


class Picky:
    """An engine that cannot take some incidents and snapshots."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def receive_incidents(self, incidents):
        for incident in incidents:
            if incident.cause == "bad":
                raise KeyError(incident.cause)
            self.taken.append(incident.id)

    def receive_snapshot(self, snapshot):
        if snapshot.number == 13:
            raise ZeroDivisionError
        self.taken.append(str(snapshot.number))

    replay_snapshot = receive_snapshot


@dataclass
class Choosy:
    """A ledger that can never take some findings, or does not answer."""

    ledger: Ledger
    answers: bool = True

    def save_findings(self, findings):
        if not self.answers:
            raise LedgerUnavailable("it is away")
        if any(finding.kind == "bad" for finding in findings):
            raise LedgerRefused("it has no room for that")
        self.ledger.save_findings(findings)

    def save_changes(self, told):
        self.ledger.save_changes(told)

    def save_safety(self, told):
        self.ledger.save_safety(told)

    def incident_record(self, incident):
        return self.ledger.incident_record(incident)


@pytest.fixture
def intake(ledger):
    clock = FakeClock()
    notices: list[Notice] = []
    return Intake(MemoryStream(clock=clock), Choosy(ledger), Picky(), clock, notices.append), notices


def put(intake: Intake, topic: str, *nouns: Incident | Finding | JobSnapshot) -> None:
    intake._stream.append(topic, [(JOB, msgspec.json.encode(noun)) for noun in nouns])


def test_a_record_that_the_engine_or_the_ledger_cannot_take_is_kept_aside_and_the_others_go_on(intake):
    reader, notices = intake
    put(reader, INCIDENTS, an_incident(id="i1"), an_incident(id="i2", cause="bad"), an_incident(id="i3"))
    put(reader, FINDINGS, a_finding(id="f1"), a_finding(id="f2", kind="bad"), a_finding(id="f3"))
    put(reader, JOB_SNAPSHOTS, *(JobSnapshot(job=JOB, generation=1, number=number, time=1.0, tick=True) for number in (12, 13, 14)))
    reader.step()
    assert reader._engine.taken == ["i1", "i3", "12", "14"]
    assert {finding.id for finding in reader._ledger.ledger.findings()} == {"f1", "f3"}
    kept = {(letter.topic, letter.offset) for _, _, letter in dead_letters(reader._stream)}
    assert kept == {(INCIDENTS, 1), (FINDINGS, 1), (JOB_SNAPSHOTS, 1)}
    assert reader.bad_records == 3
    assert [notice.name for notice in notices] == ["record.unreadable"], "the first is told, the others are counted"


def test_twin_a_ledger_that_is_away_loses_no_record(intake):
    reader, _ = intake
    reader._ledger.answers = False
    put(reader, FINDINGS, a_finding(id="f1"))
    with pytest.raises(LedgerUnavailable):
        reader.step()
    assert list(dead_letters(reader._stream)) == []


def test_a_record_as_large_as_the_stream_takes_finds_room_among_the_bad_ones(intake):
    reader, _ = intake
    reader._stream.append(INCIDENTS, [(JOB, b"[" * (16 << 20))])
    reader.step()
    [(_, _, letter)] = dead_letters(reader._stream)
    assert (letter.offset, letter.size, len(letter.record)) == (0, 16 << 20, 1 << 20)


@pytest.mark.parametrize(("field", "value"), [("since", -1e11), ("time", -7e10), ("job", "t/n/\0"), ("id", "x" * 500)])
def test_what_no_calendar_or_database_can_hold_is_kept_aside(intake, field, value):
    reader, _ = intake
    put(reader, INCIDENTS, an_incident(**{field: value}))
    reader.step()
    assert (reader._engine.taken, reader.bad_records) == ([], 1)


# --- plugins and services of the engine ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """A guard that fails, or answers with something that is no verdict."""

    answer: object = None

    def __call__(self, plan: Plan, situation: Situation, /):
        if self.answer is None:
            raise RuntimeError("a bug")
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


NO_VERDICTS = [None, "yes", True, SystemExit(0), Refuse(guard="own", reason=None), Hold(guard="own", reason="r", seconds=math.nan), Allow(guard="\ud800")]


@pytest.mark.parametrize("answer", NO_VERDICTS)
def test_a_guard_that_fails_refuses(make_world, answer):
    world = make_world()
    world.engine._review.guards = [Broken(answer)]
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=world.job.die(WORKER.name))
    world.run(5)
    assert world.sent == []
    [verdict] = {kept.verdict for kept in world.ledger.verdicts(incident="i1")}
    assert isinstance(verdict, Refuse)
    assert "mend it, or set enabled = false" in verdict.reason


@dataclass(frozen=True)
class Silent:
    """A guard that never returns."""

    asked: list[str] = field(default_factory=list)
    let: threading.Event = field(default_factory=threading.Event)

    def __call__(self, plan: Plan, situation: Situation, /):
        self.asked.append(plan.id)
        self.let.wait()
        return Allow(guard="own", reason="it has come back, too late")


def test_a_guard_that_never_returns_refuses_and_holds_nobody_up(make_world, monkeypatch):
    monkeypatch.setattr(guard_review, "GUARD_S", 0.05)
    world, silent = make_world(), Silent()
    others = world.engine._review.guards
    world.engine._review.guards = [*others[:2], silent, *others[2:]]
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=world.job.die(WORKER.name))
    world.run(5)
    assert world.sent == []
    verdicts = {kept.verdict.guard: kept.verdict for kept in world.ledger.verdicts(incident="i1")}
    refused = verdicts["test_bad_records"]
    assert isinstance(refused, Refuse)
    assert "did not return within" in refused.reason
    assert "mend it" in refused.reason
    assert len(verdicts) == len(others) + 1, "all others were asked"
    assert len(silent.asked) == 1, "it is not asked again"
    silent.let.set()


class ForeignNotifier:
    """A stranger's `notify`."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act, self.asked = act, 0

    def run(self, plan: Plan, /) -> Iterator[Progress]:
        self.asked += 1
        yield Progress(step="notify", state="intended", time=plan.made)
        self.act()
        yield Progress(step="notify", state="done", time=plan.made)


def healed_with(world, notifier: ForeignNotifier) -> None:
    world.engine._notifier = notifier
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=world.job.die(WORKER.name))
    world.run(20)
    assert world.sent, "the repair goes on"


def test_a_strangers_notifier_that_never_returns_holds_nobody_up_and_is_told(make_world, monkeypatch):
    monkeypatch.setattr(engine, "NOTIFY_S", 0.05)
    let, world = threading.Event(), make_world()
    notifier = ForeignNotifier(lambda: let.wait() and None)
    healed_with(world, notifier)
    assert (notifier.asked, world.engine._notifier) == (1, None), "it is not asked again"
    assert ["action notify" in notice.message for notice in world.ledger.notices() if notice.name == "action.hung"] == [True]
    let.set()


@pytest.mark.parametrize("act", [lambda: None, lambda: 1 / 0])
def test_twin_a_strangers_notifier_that_fails_or_returns_is_asked_again(make_world, act):
    world, notifier = make_world(), ForeignNotifier(act)
    healed_with(world, notifier)
    assert notifier.asked
    assert world.engine._notifier is notifier
    assert not [notice for notice in world.ledger.notices() if notice.name == "action.hung"]


def test_twin_a_guard_that_answers_while_the_server_was_stopped_is_believed():
    """All looks of the waiting thread but one are after the stop."""
    let, never, looks = threading.Event(), threading.Event(), []

    def progress() -> int:
        looks.append(1)
        if len(looks) == 5:
            let.set()
        return 0

    def waits(event: threading.Event) -> None:
        event.wait()

    assert returns("guards", lambda: waits(let), progress, 0.1)
    assert not returns("guards", lambda: waits(never), lambda: 0, 0.01)
    never.set()


def test_guards_are_asked_also_where_there_is_no_thread_for_them(monkeypatch):
    def no_thread(_self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    asked = []
    assert returns("guards", lambda: asked.append(1), lambda: 0, 5.0)
    assert asked == [1]


def test_a_listener_that_fails_does_not_stop_the_engine(make_world):
    world = make_world()
    world.engine.on_tick(lambda _: 1 / 0)
    world.find("worker killed", WORKER, event=world.job.die(WORKER.name))
    world.run(8)
    assert world.outcomes() == [("restart_worker", "done")]


def test_what_fails_is_tried_again_later_and_later_and_told_once():
    clock, tries = FakeClock(), []
    failures = HandlingFailures(clock)

    def work() -> None:
        tries.append(clock.now())
        raise KeyError("x")

    said = []
    for _ in range(3000):
        said.append(failures.contain("it", work))
        clock.advance(0.1)
    assert [text for text in said if text] == ["KeyError: 'x'"]
    pauses = [round(after - before) for before, after in pairwise(tries)]
    assert pauses[:4] == [1, 2, 4, 8]
    assert max(pauses) == LONGEST_S


def test_what_comes_once_is_done_however_often_the_rest_has_failed():
    failures, done = HandlingFailures(FakeClock()), []
    failures.contain("it", lambda: 1 / 0)
    failures.contain("it", lambda: done.append(1))
    failures.contain("it", lambda: done.append(2), once=True)
    assert done == [2]


@pytest.mark.parametrize(("error", "ends"), [(LedgerError("x"), True), (LedgerUnavailable("x"), True), (Stale("x"), True), (LedgerRefused("x"), False), (CalledOff("x"), False)])
def test_only_a_lost_ledger_or_another_leader_ends_the_term(error, ends):
    def work() -> None:
        raise error

    failures = HandlingFailures(FakeClock())
    if ends:
        with pytest.raises(type(error)):
            failures.contain("it", work)
    else:
        assert failures.contain("it", work)


# --- operators ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e300])
@pytest.mark.parametrize("kind", [pb.SilenceCommand, pb.MaintenanceCommand])
def test_a_period_that_cannot_be_is_refused_and_not_written_down(kind, seconds):
    with pytest.raises(ControlError, match="cannot be"):
        decode_operator_command(kind(person="ada", reason="r", seconds=seconds))
    with pytest.raises(ControlError, match="cannot be"):
        decode_decision(pb.Decision(plan="p", person="ada", valid_s=seconds))
