"""The ledger on disk: leases, incidents, plans, approvals, epochs, cordons, letters."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from eagle_eye.errors import LedgerError, Stale
from eagle_eye.ledger import Holder, Ledger, tables
from eagle_eye.ledger.incidents import EDGES
from eagle_eye.ledger.migration import configuration, upgrade
from eagle_eye.types import (
    Allow,
    Approval,
    Culprit,
    Entity,
    Evidence,
    Finding,
    Incident,
    IncidentState,
    Kind,
    Layout,
    Notice,
    Outcome,
    Place,
    Plan,
    Progress,
    Refuse,
    Severity,
    Target,
)

JOB = "tenant/gpt/run1"
ADA = Holder(host="machine-a", pid=101, boot="ada")
BOB = Holder(host="machine-b", pid=202, boot="bob")
WORKER = Entity(kind=Kind.WORKER, name="run1/node-a/0")


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with nothing in it; made once, since the migration takes most of a test's time."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    Ledger.open(path).close()
    return path


@pytest.fixture
def path(empty: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "ledger.sqlite"
    copy.write_bytes(empty.read_bytes())
    return copy


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    ledger = Ledger.open(path)
    yield ledger
    ledger.close()


def an_incident(revision: int = 1, **changes: Any) -> Incident:
    incident = Incident(
        id="incident-1",
        revision=revision,
        job=JOB,
        cause="worker killed",
        culprits=(Culprit(entity=WORKER, confidence=0.9),),
        severity=Severity.SEV2,
        findings=("finding-1",),
        evidence=(),
        since=100.0,
        time=101.0 + revision,
    )
    return msgspec.structs.replace(incident, **changes)


def a_finding(revision: int = 1, **changes: Any) -> Finding:
    finding = Finding(
        id="finding-1",
        revision=revision,
        detector="exits",
        digest="d",
        job=JOB,
        entity=WORKER,
        kind="worker.exited",
        score=1.0,
        since=100.0,
        time=100.5,
        evidence=(Evidence(text="killed by SIGKILL"),),
        active=True,
    )
    return msgspec.structs.replace(finding, **changes)


def a_plan(plan: str = "plan-1", **changes: Any) -> Plan:
    made = Plan(
        id=plan,
        incident="incident-1",
        action="restart_worker",
        targets=(Target(job=JOB, epoch=1, basis="b"),),
        made=103.0,
        expires=703.0,
        severity=Severity.SEV2,
        reason="the process is dead",
    )
    return msgspec.structs.replace(made, **changes)


def a_step(state: Any, time: float = 104.0, step: str = "restart") -> Progress:
    return Progress(step=step, state=state, time=time, detail="epoch 2")


def a_layout(epoch: int = 2, coordinator: str = "node-a", time: float = 50.0) -> Layout:
    place = Place(worker="run1/node-a/0", node=coordinator, rank=0, local_rank=0)
    launchers = {coordinator: "127.0.0.1:7001"}
    return Layout(job=JOB, epoch=epoch, time=time, coordinator=coordinator, launchers=launchers, places=(place,))


# --- the file ----------------------------------------------------------------------------------------------------


def test_the_migrations_lead_to_the_tables_of_this_program(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    engine.dispose()
    assert ScriptDirectory.from_config(configuration()).get_heads() == [tables.VERSION]


def test_a_new_ledger_is_brought_up_to_date_once_by_two_that_open_it_at_once(tmp_path: Path) -> None:
    place, opened = tmp_path / "new" / "ledger.sqlite", threading.Barrier(2)
    place.parent.mkdir()

    def begin() -> int | None:
        opened.wait()
        ledger = Ledger.open(place)
        try:
            return ledger.acquire("leader", ADA, 5, 100.0)
        finally:
            ledger.close()

    with ThreadPoolExecutor(2) as both:
        assert [future.result() for future in [both.submit(begin), both.submit(begin)]] == [1, 1]


def test_what_is_up_to_date_is_opened_without_alembic(path: Path) -> None:
    code = (
        f"import sys; from eagle_eye.ledger import Ledger; Ledger.open({str(path)!r}).close(); print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_ledger_of_a_newer_version_is_refused_with_the_remedy(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(LedgerError, match=r"is of version 9999, newer than this program knows.*install the version"):
        Ledger.open(path)
    with pytest.raises(LedgerError, match="is of version 9999, this program reads"):
        Ledger.open(path, read_only=True)


def test_a_file_that_is_no_ledger_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not a database at all, but long enough to be looked at as one " * 20)
    with pytest.raises(LedgerError, match="not a database; it is damaged or no ledger: move it aside"):
        Ledger.open(tmp_path / "notes")


@pytest.mark.parametrize(
    ("place", "words"),
    [("postgresql://host/db", "postgresql comes in a later release"), ("what://", "is no URL|later release")],
)
def test_a_place_that_is_not_supported_is_named(place: str, words: str) -> None:
    with pytest.raises(LedgerError, match=words):
        Ledger.open(place)


def test_a_url_of_sqlite_is_a_path(path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{path}")
    assert ledger.incidents() == ()
    ledger.close()


def test_reading_only_reads_and_makes_no_file(path: Path, ledger: Ledger, tmp_path: Path) -> None:
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    reader = Ledger.open(path, read_only=True)
    assert [record.incident for record in reader.incidents()] == [an_incident()]
    with pytest.raises(LedgerError, match="opened for reading only"):
        reader.save_incident(an_incident(2), IncidentState.OPEN)
    reader.close()
    with pytest.raises(LedgerError, match=r"there is no ledger at .*--state-dir"):
        Ledger.open(tmp_path / "nowhere.sqlite", read_only=True)
    assert not (tmp_path / "nowhere.sqlite").exists()


def test_a_write_that_fails_in_the_middle_leaves_nothing(ledger: Ledger) -> None:
    def broken() -> Iterator[Finding]:
        yield a_finding()
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="broke"):
        ledger.save_findings(broken())
    assert ledger.findings() == ()


def test_what_was_written_survives_the_death_of_the_writer(path: Path) -> None:
    code = (
        "import os, signal; from eagle_eye.ledger import Ledger; from eagle_eye.types import Notice\n"
        f"ledger = Ledger.open({str(path)!r})\n"
        "ledger.save_notice(Notice(name='leader.began', time=1.0, message='here'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    reader = Ledger.open(path, read_only=True)
    assert [notice.name for notice in reader.notices()] == ["leader.began"]
    reader.close()


# --- who leads -----------------------------------------------------------------------------------------------------


def test_of_two_servers_the_second_waits_and_can_name_the_first(path: Path, ledger: Ledger) -> None:
    other = Ledger.open(path)
    assert ledger.acquire("leader", ADA, 5, 100.0) == 1
    assert other.acquire("leader", BOB, 5, 104.9) is None
    lease = other.holder_of("leader")
    assert lease is not None
    assert (lease.holder, lease.since, lease.until) == (ADA, 100.0, 105.0)
    assert str(lease) == "process 101 on machine-a (term 1)"
    assert other.acquire("leader", BOB, 5, 105.0) == 2
    other.close()


def test_the_term_rises_with_each_change_of_the_holder_only(ledger: Ledger) -> None:
    assert ledger.acquire("leader", ADA, 5, 100.0) == 1
    assert ledger.acquire("leader", ADA, 5, 102.0) == 1
    assert ledger.acquire("leader", ADA, 5, 500.0) == 1
    assert ledger.acquire("leader", BOB, 5, 600.0) == 2
    assert ledger.acquire("leader", ADA, 5, 700.0) == 3


def test_a_lease_is_renewed_until_another_has_it(ledger: Ledger) -> None:
    assert ledger.acquire("leader", ADA, 5, 100.0) == 1
    assert ledger.renew("leader", ADA, 1, 5, 104.0)
    assert ledger.acquire("leader", BOB, 5, 108.0) is None
    assert ledger.acquire("leader", BOB, 5, 109.0) == 2
    assert not ledger.renew("leader", ADA, 1, 5, 109.5)


def test_who_resigns_need_not_be_waited_for(ledger: Ledger) -> None:
    ledger.acquire("leader", ADA, 5, 100.0)
    ledger.resign("leader", BOB, 101.0)
    assert ledger.acquire("leader", BOB, 5, 101.0) is None
    ledger.resign("leader", ADA, 101.0)
    assert ledger.acquire("leader", BOB, 5, 101.0) == 2


def test_a_term_can_be_lifted_above_what_peers_have_seen(ledger: Ledger) -> None:
    assert ledger.acquire("leader", ADA, 5, 100.0) == 1
    assert ledger.acquire("leader", ADA, 5, 101.0, above=7) == 8
    assert ledger.acquire("leader", ADA, 5, 102.0, above=7) == 8


def test_a_leader_that_was_replaced_cannot_write(path: Path, ledger: Ledger) -> None:
    other = Ledger.open(path)
    term = ledger.acquire("leader", ADA, 5, 100.0)
    assert term == 1
    ledger.write_as("leader", term)
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    other.acquire("leader", BOB, 5, 200.0)
    with pytest.raises(Stale, match="term 1 of 'leader' is over: term 2"):
        ledger.save_incident(an_incident(2), IncidentState.OPEN)
    assert len(other.incident("incident-1")) == 1
    other.close()


# --- what was seen -------------------------------------------------------------------------------------------------


def test_every_revision_of_an_incident_is_kept_and_the_last_one_shown(ledger: Ledger) -> None:
    assert ledger.save_incident(an_incident(1), IncidentState.OPEN)
    assert ledger.save_incident(an_incident(2, cause="node lost"), IncidentState.HEALING)
    assert not ledger.save_incident(an_incident(1), IncidentState.HEALING)  # delivered twice
    assert [incident.revision for incident in ledger.incident("incident-1")] == [1, 2]
    record = ledger.incident_record("incident-1")
    assert record is not None
    assert (record.incident.cause, record.state, record.opened, record.changed) == ("node lost", "healing", 102.0, 103.0)


def test_states_are_kept_with_their_times(ledger: Ledger) -> None:
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    ledger.save_incident(an_incident(), IncidentState.CONTAINED, time=102.5)
    ledger.move_incident("incident-1", IncidentState.HEALED, 110.0)
    ledger.save_incident(an_incident(2), IncidentState.HEALED)
    states = [(change.state.value, change.time) for change in ledger.states("incident-1")]
    assert states == [("open", 102.0), ("contained", 102.5), ("healed", 110.0)]


def test_an_illegal_edge_changes_nothing(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="cannot go from nothing to healed: only to open"):
        ledger.save_incident(an_incident(), IncidentState.HEALED)
    assert ledger.incidents() == ()
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    ledger.move_incident("incident-1", IncidentState.CLOSED, 110.0)
    with pytest.raises(LedgerError, match="cannot go from closed to open: only to nothing"):
        ledger.save_incident(an_incident(2), IncidentState.OPEN)
    assert len(ledger.incident("incident-1")) == 1
    with pytest.raises(LedgerError, match="no incident 'another'"):
        ledger.move_incident("another", IncidentState.CLOSED, 110.0)


def test_every_state_has_its_edges_and_every_incident_can_be_closed() -> None:
    assert set(EDGES) == {None, *IncidentState}
    assert all(IncidentState.CLOSED in EDGES[state] for state in IncidentState if state != IncidentState.CLOSED)


def test_incidents_are_found_by_state_and_job(ledger: Ledger) -> None:
    for number, job in enumerate([JOB, JOB, "tenant/other/run9"]):
        ledger.save_incident(an_incident(id=f"incident-{number}", job=job, time=100.0 + number), IncidentState.OPEN)
    ledger.move_incident("incident-0", IncidentState.HEALED, 120.0)
    assert [record.incident.id for record in ledger.incidents()] == ["incident-2", "incident-1", "incident-0"]
    assert [record.incident.id for record in ledger.incidents(open_only=True, job=JOB)] == ["incident-1"]
    assert [record.incident.id for record in ledger.incidents(limit=1)] == ["incident-2"]


def test_of_a_finding_the_last_revision_counts(ledger: Ledger) -> None:
    ledger.save_findings([a_finding(1), a_finding(2, active=False, time=105.0)])
    ledger.save_findings([a_finding(1)])
    assert ledger.findings() == (a_finding(2, active=False, time=105.0),)
    assert ledger.findings(active_only=True) == ()
    assert ledger.findings(job="tenant/other/run9") == ()
    assert ledger.findings_of(["finding-1", "finding-2"]) == ledger.findings()


def test_a_storm_of_findings_is_kept_whole(ledger: Ledger) -> None:
    storm = [a_finding(id=f"finding-{number:04}", since=float(number)) for number in range(1200)]
    ledger.save_findings(storm)
    assert list(ledger.findings_of([finding.id for finding in storm])) == storm


def test_notices_are_read_newest_first(ledger: Ledger) -> None:
    first, second = (Notice(name=name, time=time, message="m") for name, time in [("stream.away", 1.0), ("stream.back", 2.0)])
    ledger.save_notice(first)
    ledger.save_notice(second)
    assert ledger.notices() == (second, first)
    assert ledger.notices(since=1.5) == (second,)


# --- what was done -------------------------------------------------------------------------------------------------


def test_a_step_is_written_before_and_after_it_runs(ledger: Ledger) -> None:
    ledger.intend(a_plan(), a_step("intended"))
    assert ledger.unfinished() == (a_plan(),)
    ledger.did(a_plan(), a_step("done", 105.0))
    assert ledger.unfinished() == ()
    assert [step.state for step in ledger.progress("plan-1")] == ["intended", "done"]
    assert ledger.plan("plan-1") == a_plan()


def test_a_step_that_was_not_written_before_cannot_be_done(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'restart' of plan plan-1 was not written down before"):
        ledger.did(a_plan(), a_step("done"))
    with pytest.raises(LedgerError, match="only an intended one"):
        ledger.intend(a_plan(), a_step("done"))


def test_a_plan_whose_second_try_began_is_unfinished_again(ledger: Ledger) -> None:
    for state in ("intended", "failed", "intended"):
        (ledger.intend if state == "intended" else ledger.did)(a_plan(), a_step(state))
    ledger.intend(a_plan("plan-2", made=99.0), a_step("intended", step="dump"))
    assert [plan.id for plan in ledger.unfinished()] == ["plan-2", "plan-1"]


def test_an_outcome_is_replaced_by_later_word(ledger: Ledger) -> None:
    intended = Outcome(plan="plan-1", incident="incident-1", action="restart_worker", state="intended", time=104.0)
    done = msgspec.structs.replace(intended, state="done", time=109.0, transition_s=0.8)
    ledger.save_outcome(intended)
    ledger.save_outcome(done)
    assert ledger.outcome("plan-1") == done
    assert ledger.outcomes() == ledger.outcomes(incident="incident-1") == (done,)
    assert ledger.outcomes(since=110.0) == ()


def test_approvals_expire_and_the_newest_word_comes_first(ledger: Ledger) -> None:
    digest = a_plan().digest
    yes = Approval(digest=digest, person="ada", approved=True, time=100.0, expires=200.0)
    no = Approval(digest=digest, person="bob", approved=False, time=101.0, expires=150.0)
    ledger.save_approval(yes)
    ledger.save_approval(no)
    assert ledger.approvals(digest=digest) == (no, yes)
    assert ledger.approvals(now=150.0) == (yes,)
    assert ledger.approvals(digest="another") == ()


def test_every_no_is_kept_with_its_reason(ledger: Ledger) -> None:
    no = Refuse(guard="blast radius", reason="more than a tenth of the nodes")
    ledger.save_verdict(a_plan(), no, 104.0)
    ledger.save_verdict(a_plan(), Allow(guard="duplicates"), 104.0)
    assert [kept.verdict for kept in ledger.verdicts(plan="plan-1")] == [no, Allow(guard="duplicates")]
    assert ledger.verdicts(incident="another") == ()


def test_the_timeline_tells_everything_in_order(ledger: Ledger) -> None:
    plan = a_plan()
    ledger.save_findings([a_finding()])
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    ledger.save_verdict(plan, Refuse(guard="approval", reason="nobody has approved"), 103.2)
    ledger.save_approval(Approval(digest=plan.digest, person="ada", approved=True, time=103.5, expires=200.0))
    ledger.intend(plan, a_step("intended", 104.0))
    ledger.did(plan, a_step("done", 105.0))
    ledger.move_incident("incident-1", IncidentState.HEALING, 103.9)
    ledger.save_outcome(Outcome(plan=plan.id, incident="incident-1", action=plan.action, state="done", time=109.0))
    story = [(moment.what, moment.text) for moment in ledger.timeline("incident-1")]
    assert story == [
        ("fault", "the fault began"),
        ("finding", "worker.exited at worker run1/node-a/0, by exits (score 1.00): killed by SIGKILL"),
        ("incident", "revision 1: worker killed, worker run1/node-a/0 (sev2)"),
        ("state", "open"),
        ("plan", "restart_worker: the process is dead"),
        ("verdict", "approval: refuse, nobody has approved"),
        ("approval", "ada approved restart_worker"),
        ("state", "healing"),
        ("step", "restart intended: epoch 2"),
        ("step", "restart done: epoch 2"),
        ("outcome", "restart_worker done"),
    ]
    assert ledger.timeline("another") == ()


# --- jobs ----------------------------------------------------------------------------------------------------------


def test_two_halves_never_get_the_same_epoch(path: Path, ledger: Ledger) -> None:
    other, start = Ledger.open(path), threading.Barrier(2)

    def ask(mine: Ledger, coordinator: str) -> list[bool]:
        start.wait()
        return [mine.grant_epoch(JOB, epoch, a_layout(epoch, coordinator)) for epoch in range(1, 21)]

    with ThreadPoolExecutor(2) as both:
        halves = [both.submit(ask, ledger, "node-a"), both.submit(ask, other, "node-b")]
        answers = list(zip(*(half.result() for half in halves), strict=True))
    assert all(sum(pair) <= 1 for pair in answers)
    assert any(sum(pair) == 1 for pair in answers)
    other.close()


def test_a_grant_is_given_again_to_the_same_layout_only(ledger: Ledger) -> None:
    assert ledger.grant_epoch(JOB, 2, a_layout(2, time=50.0))
    assert ledger.grant_epoch(JOB, 2, a_layout(2, time=51.0))
    assert not ledger.grant_epoch(JOB, 2, a_layout(2, "node-b"))
    assert not ledger.grant_epoch(JOB, 1, a_layout(1))
    assert ledger.grant_epoch("tenant/other/run9", 1, a_layout(1))


def test_an_epoch_that_is_already_valid_is_not_granted(ledger: Ledger) -> None:
    ledger.save_job(JOB, a_layout(5), "127.0.0.1:7001", "restart:3", 3)
    assert not ledger.grant_epoch(JOB, 5, a_layout(5, "node-b"))
    assert ledger.grant_epoch(JOB, 6, a_layout(6, "node-b"))


def test_a_job_is_remembered_by_its_highest_epoch(ledger: Ledger) -> None:
    assert ledger.save_job(JOB, a_layout(5), "127.0.0.1:7001", "restart:3", 3)
    assert not ledger.save_job(JOB, a_layout(4), "127.0.0.1:9999", "restart:3", 1)
    assert ledger.save_job(JOB, a_layout(5), "127.0.0.1:7001", "restart:3", 2)
    assert {job: (facts.address, facts.budget_left) for job, facts in ledger.jobs().items()} == {JOB: ("127.0.0.1:7001", 2)}
    ledger.forget_job(JOB)
    assert ledger.jobs() == {}


def test_a_node_is_out_until_it_is_released(ledger: Ledger) -> None:
    assert ledger.cordon("node-a", JOB, "plan-1", 100.0, "slow")
    assert not ledger.cordon("node-a", JOB, "plan-2", 101.0)
    assert [(cordon.node, cordon.plan, cordon.reason) for cordon in ledger.cordoned()] == [("node-a", "plan-1", "slow")]
    assert ledger.release("node-a", "ada", 102.0)
    assert not ledger.release("node-a", "ada", 103.0)
    assert ledger.cordoned() == ()
    assert ledger.cordon("node-a", JOB, "plan-3", 104.0)


def test_a_letter_waits_until_it_arrives_or_is_given_up(ledger: Ledger) -> None:
    first, second = ledger.post("pager", "{}", 100.0), ledger.post("chat", "{}", 101.0)
    assert [letter.id for letter in ledger.due(100.5)] == [first]
    ledger.failed(first, 110.0, "connection refused")
    assert [letter.name for letter in ledger.due(109.0)] == ["chat"]
    assert [(letter.name, letter.attempts) for letter in ledger.due(110.0)] == [("chat", 0), ("pager", 1)]
    ledger.delivered(first, 111.0)
    ledger.given_up(second, 111.0, "404")
    assert ledger.due(1000.0) == ()


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "foreign.sqlite"
    with sqlite3.connect(place) as connection:
        connection.execute("CREATE TABLE plans (id TEXT)")
    connection.close()
    with pytest.raises(LedgerError, match="plans already exists"):
        Ledger.open(place)
    with sqlite3.connect(place) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("plans",)]
    connection.close()


def test_a_version_that_nobody_knows_is_never_migrated(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection, pytest.raises(LedgerError, match="newer than this program knows"):
        upgrade(connection, "ledger", "9999")
    engine.dispose()
