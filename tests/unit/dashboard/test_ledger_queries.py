"""What the dashboard asks the ledger: incidents, their stories, actions and guards; and what it reads from."""

import socket
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from dashboard.errors import NewerLedger, NothingFound, NothingToDecide, OlderLedger
from dashboard.queries import actions, incident, incidents
from dashboard.sources import RECORDED, VARIABLE, Recorded, Sources
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config, ServerConfig
from eagle_eye.errors import ConfigError
from eagle_eye.ledger import Ledger
from eagle_eye.types import (
    Allow,
    Approval,
    Breaker,
    Culprit,
    Entity,
    Evidence,
    Hold,
    IncidentNote,
    IncidentState,
    Kind,
    Outcome,
    Plan,
    Refuse,
    Rival,
    Silence,
    Verdict,
)
from fakes.sample_values import JOB, WORKER, a_finding, a_plan, a_step, an_incident

NOW = 1000.0


@pytest.fixture
def sources(tmp_path: Path, ledger: Ledger) -> Iterator[Sources]:
    made = Sources(Config(state_dir=str(tmp_path), server=ServerConfig(http="")), clock=FakeClock(NOW))
    yield made
    made.close()


def opened(ledger: Ledger, name: str = "incident-1", time: float = 900.0, **changes) -> None:
    ledger.save_incident(an_incident(id=name, since=time - 1, time=time, **changes), IncidentState.OPEN)


def planned(ledger: Ledger, *verdicts: Verdict, plan: str = "plan-1", **changes) -> Plan:
    made = a_plan(plan, made=905.0, expires=1500.0, **changes)
    ledger.save_plan(made)
    for verdict in verdicts:
        ledger.save_verdict(made, verdict, 906.0)
    return made


HELD = (Allow(guard="cooldown"), Hold(guard="approval", reason="the mode is recommend"))


# --- the list ----------------------------------------------------------------------------------------------------------


def test_incidents_come_newest_first_with_cause_culprit_and_bill(sources: Sources, ledger: Ledger) -> None:
    opened(ledger, "older", 800.0)
    opened(ledger, "newer", 900.0, bill_gpu_hours=1.5)
    newer, older = incidents.listed(sources)
    assert (newer.id, older.id) == ("newer", "older")
    assert (newer.cause, newer.severity, newer.state, newer.culprits, newer.bill_gpu_hours, newer.over) == ("worker killed", "sev2", "open", (str(WORKER),), 1.5, False)


def test_those_that_are_not_over_are_listed_with_failed_ones_and_of_one_job(sources: Sources, ledger: Ledger) -> None:
    opened(ledger, "healed")
    ledger.move_incident("healed", IncidentState.HEALED, 950.0)
    opened(ledger, "failed")
    ledger.move_incident("failed", IncidentState.FAILED, 950.0)
    opened(ledger, "other job", job="other/job/run")
    assert {line.id for line in incidents.listed(sources, open_only=True)} == {"failed", "other job"}
    assert [line.id for line in incidents.listed(sources, open_only=True, job=JOB)] == ["failed"]


def test_a_plan_that_waits_for_a_person_is_told(sources: Sources, ledger: Ledger) -> None:
    opened(ledger)
    planned(ledger, *HELD)
    (line,) = incidents.listed(sources)
    assert (line.waiting_plan, line.waiting_action) == ("plan-1", "restart_worker")


@pytest.mark.parametrize("why", ["approved", "refused by a guard", "held by another guard", "expired", "begun", "stale", "incident over"])
def test_a_plan_that_needs_nobody_any_more_does_not_wait(sources: Sources, ledger: Ledger, why: str) -> None:
    opened(ledger)
    held = (Hold(guard="cooldown", reason="a moment"),) if why == "held by another guard" else HELD
    plan = planned(ledger, *held, *((Refuse(guard="silence", reason="no"),) if why == "refused by a guard" else ()))
    if why == "approved":
        ledger.save_approval(Approval(digest=plan.digest, person="ada", approved=True, time=910.0, expires=2000.0))
    elif why == "begun":
        ledger.record_intent(plan, a_step("intended"))
    elif why == "stale":
        ledger.save_outcome(Outcome(plan=plan.id, incident=plan.incident, action=plan.action, state="stale", time=920.0))
    elif why == "incident over":
        ledger.move_incident("incident-1", IncidentState.HEALED, 950.0)
    elif why == "expired":
        ledger.save_plan(msgspec.structs.replace(plan, expires=950.0))
    assert [line.waiting_plan for line in incidents.listed(sources)] == [""]


# --- one ---------------------------------------------------------------------------------------------------------------


def test_a_story_holds_everything_about_an_incident(sources: Sources, ledger: Ledger) -> None:
    finding = a_finding(evidence=(Evidence(text="worker was ended by SIGKILL"), Evidence(text="its last words: Killed")))
    opened(ledger, evidence=(Evidence(text="worker was ended by SIGKILL"),), parts=(finding,), rivals=(Rival(cause="out of memory", apart="the kernel's log"),))
    plan = planned(ledger, *HELD)
    ledger.save_note(IncidentNote(incident="incident-1", person="ada", time=910.0, text="I look"))
    ledger.save_suppression(Silence(id="s", person="ada", reason="test", since=900.0, until=2000.0, node="node-a"))
    ledger.save_suppression(Silence(id="t", person="ada", reason="elsewhere", since=900.0, until=2000.0, node="node-z"))
    told = incident.story(sources, "incident-1")
    assert (told.incident.cause, told.state, told.nodes) == ("worker killed", "open", ("node-a",))
    assert [(line.text, line.finding, line.supports) for line in told.evidence] == [("worker was ended by SIGKILL", "worker.exited", True)]
    assert told.log_lines == ("Killed",)
    assert told.rivals[0].apart == "the kernel's log"
    assert told.waiting is not None
    assert (told.waiting.plan, told.waiting.digest, told.waiting.state) == (plan, plan.digest, "waiting")
    assert [note.text for note in told.notes] == ["I look"]
    assert [silence.id for silence in told.silences] == ["s"]
    assert [moment.what for moment in told.timeline] == ["fault", "incident", "state", "plan", "verdict", "verdict", "note"]


def test_what_several_findings_say_is_one_line_with_its_number(sources: Sources, ledger: Ledger) -> None:
    with_number, without = Evidence(text="it stands", metric="age_s", value=1.5, threshold=1.0), Evidence(text="it stands")
    parts = (a_finding(evidence=(with_number,)), a_finding(id="f-2", kind="job.stalled", evidence=(without,)))
    opened(ledger, evidence=(with_number, without), parts=parts)
    [line] = incident.story(sources, "incident-1").evidence
    assert (line.text, line.value, line.finding) == ("it stands", 1.5, "worker.exited")


def test_predicted_stands_beside_actual_and_stacks_are_merged(sources: Sources, ledger: Ledger) -> None:
    opened(ledger)
    dump = planned(ledger, plan="plan-0", action="dump")
    ledger.record_intent(dump, a_step("intended", step="dump"))
    stacks = {"stacks": [{"workers": ["run1/node-a/1"], "stack": "loop.py:7"}, {"workers": ["run1/node-a/0", "run1/node-b/0"], "stack": "wait.py:1"}]}
    ledger.record_result(dump, msgspec.structs.replace(a_step("done", step="dump"), detail=msgspec.json.encode(stacks).decode()))
    plan = planned(ledger)
    ledger.save_outcome(Outcome(plan=plan.id, incident=plan.incident, action=plan.action, state="done", time=920.0, predicted={"downtime_s": 3.0}, actual={"downtime_s": 2.5}))
    told = incident.story(sources, "incident-1")
    assert told.last is not None
    assert (told.last.plan.id, told.last.state, told.last.predicted, told.last.actual) == ("plan-1", "done", {"downtime_s": 3.0}, {"downtime_s": 2.5})
    assert [(stack.workers, stack.text) for stack in told.stacks] == [(("run1/node-a/1",), "loop.py:7"), (("run1/node-a/0", "run1/node-b/0"), "wait.py:1")]


def test_what_is_left_of_broken_stacks_is_shown_as_it_is(sources: Sources, ledger: Ledger) -> None:
    opened(ledger)
    dump = planned(ledger, action="dump")
    ledger.record_intent(dump, a_step("intended", step="dump"))
    ledger.record_result(dump, msgspec.structs.replace(a_step("done", step="dump"), detail="no JSON"))
    assert [stack.text for stack in incident.story(sources, "incident-1").stacks] == ["no JSON"]


def test_similar_ones_are_of_the_same_cause_same_culprit_first(sources: Sources, ledger: Ledger) -> None:
    other = (Culprit(entity=Entity(kind=Kind.WORKER, name="run1/node-b/0"), confidence=0.9),)
    opened(ledger, "same culprit", 100.0)
    opened(ledger, "other culprit", 200.0, culprits=other)
    opened(ledger, "other cause", 300.0, cause="python hang")
    opened(ledger)
    assert [line.id for line in incident.story(sources, "incident-1").similar] == ["same culprit", "other culprit"]


def test_the_beginning_of_an_id_will_do_and_what_is_not_there_is_said(sources: Sources, ledger: Ledger) -> None:
    opened(ledger, "abc1")
    opened(ledger, "abc2")
    assert incident.story(sources, "abc1").incident.id == incident.story(sources, "abc1"[:4]).incident.id == "abc1"
    with pytest.raises(NothingFound, match="2 incidents begin with 'abc'"):
        incident.story(sources, "abc")
    for nothing in ("zzz", "", "'; DROP TABLE incidents; --"):
        with pytest.raises(NothingFound, match="the ledger has no incident"):
            incident.story(sources, nothing)


# --- actions -----------------------------------------------------------------------------------------------------------


def test_actions_tell_cause_targets_and_figures_newest_first(sources: Sources, ledger: Ledger) -> None:
    opened(ledger)
    for number, time in ((1, 910.0), (2, 920.0), (3, 700.0)):
        plan = planned(ledger, plan=f"plan-{number}")
        ledger.save_outcome(Outcome(plan=plan.id, incident=plan.incident, action=plan.action, state="done", time=time, predicted={"downtime_s": 3.0}, transition_s=2.0))
    newest, oldest = actions.done(sources, since=800.0)
    assert (newest.plan, oldest.plan) == ("plan-2", "plan-1")
    assert (newest.cause, newest.job, newest.targets, newest.predicted, newest.transition_s) == ("worker killed", JOB, f"{JOB} at epoch 1", {"downtime_s": 3.0}, 2.0)


def test_guards_are_counted_with_the_last_reason_those_that_refused_first(sources: Sources, ledger: Ledger) -> None:
    opened(ledger)
    planned(ledger, Allow(guard="cooldown"), Hold(guard="approval", reason="waits for approval"), Refuse(guard="blast_radius", reason="too many nodes"))
    planned(ledger, Allow(guard="cooldown"), plan="plan-2")
    lines = actions.guards(sources, since=0.0)
    assert [(line.guard, line.allowed, line.held, line.refused, line.last_said, line.last_reason) for line in lines] == [
        ("blast_radius", 0, 0, 1, "refused", "too many nodes"), ("approval", 0, 1, 0, "held", "waits for approval"), ("cooldown", 2, 0, 0, "", ""),
    ]  # fmt: skip
    assert actions.guards(sources, since=950.0) == ()


def test_open_breakers_and_silences_stand_in_the_way(sources: Sources, ledger: Ledger) -> None:
    ledger.save_suppression(Breaker(id="b", job=JOB, action="restart_worker", plan="p", incident="i", reason="did not help", since=900.0))
    ledger.save_suppression(Breaker(id="c", job=JOB, action="isolate", plan="p", incident="i", reason="did not help", since=800.0, until=850.0, person="ada"))
    assert [breaker.id for breaker in actions.breakers(sources)] == ["b", "c"]
    assert [breaker.id for breaker in actions.active_suppressions(sources).breakers] == [breaker.id for breaker in actions.breakers(sources, open_only=True)] == ["b"]


# --- sources -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "kind", "words"), [("9999", NewerLedger, "is of version 9999"), ("0001", OlderLedger, "start `eagle-eye server` once")])
def test_a_ledger_of_another_version_is_told_with_the_remedy(sources: Sources, ledger_path: Path, version: str, kind: type[Exception], words: str) -> None:
    with sqlite3.connect(ledger_path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (version,))
    connection.close()
    with pytest.raises(kind, match=words):
        incidents.listed(sources)


def test_a_ledger_that_comes_into_being_later_is_found(tmp_path: Path, ledger_path: Path) -> None:
    late = tmp_path / "late"
    sources = Sources(Config(state_dir=str(late)), clock=FakeClock(NOW))
    with pytest.raises(Exception, match="there is no ledger"):
        incidents.listed(sources)
    late.mkdir()
    (late / "ledger.sqlite").write_bytes(ledger_path.read_bytes())
    assert incidents.listed(sources) == ()
    sources.close()


def test_in_a_recorded_run_time_stands_and_nothing_is_ordered(tmp_path: Path, ledger: Ledger) -> None:
    (tmp_path / RECORDED).write_bytes(msgspec.json.encode(Recorded(began=100.0, ended=200.0, command="eagle-eye demo")))
    sources = Sources(Config(state_dir=str(tmp_path)))
    assert sources.now() == sources.clock.now() == 200.0
    assert sources.figures() is None
    with pytest.raises(NothingToDecide):
        sources.order("status", None)
    sources.close()


@pytest.mark.parametrize("answer", [b"\0\0\x12\4\0\0\0\0\0" + 18 * b"\1", b"HTTP/1.0 200 OK\r\n\r\n\xff\xfe"], ids=["gRPC", "no text"])
def test_another_program_at_the_servers_address_has_no_figures(tmp_path: Path, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        sources = Sources(Config(state_dir=str(tmp_path), server=ServerConfig(http=f"127.0.0.1:{listener.getsockname()[1]}")))
        figures = pool.submit(sources.figures)
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)
        assert figures.result() is None
        sources.close()


def test_the_configuration_is_handed_over_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(state_dir=str(tmp_path), engine={"mode": "auto"})
    monkeypatch.setenv(VARIABLE, msgspec.json.encode(config).decode())
    assert Sources.from_environment().config == config
    monkeypatch.setenv(VARIABLE, "{")
    with pytest.raises(ConfigError, match="start the dashboard with"):
        Sources.from_environment()


def test_a_token_is_not_sent_to_another_machine_in_the_clear(tmp_path: Path) -> None:
    sources = Sources(Config(state_dir=str(tmp_path), server=ServerConfig(listen="10.0.0.1:7467")))
    with pytest.raises(ConfigError, match=r"your token is not sent to 10.0.0.1:7467 without TLS"):
        sources.order("status", None, token="eet_secret")


def test_viewers_who_ask_at_the_same_time_are_given_one_answer(sources: Sources) -> None:
    made: list[int] = []
    first = sources.remembered(("x",), lambda: made.append(1) or len(made))
    assert sources.remembered(("x",), lambda: made.append(1) or len(made)) == first == 1
    assert sources.remembered(("y",), lambda: made.append(1) or len(made)) == 2
