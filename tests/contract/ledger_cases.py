"""What every ledger keeps, whichever database it lies in: run on SQLite and on a real PostgreSQL.

The importer brings the fixtures `ledger` (empty) and `reopened` (the same ledger, opened once more).
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from eagle_eye.changes import ObservedChange
from eagle_eye.checkpoint_safety import NodeSafety, SafeStep
from eagle_eye.errors import LedgerError
from eagle_eye.ledger import AlertRecord, JobOwner, LeaseHolder, Ledger, Throughput
from eagle_eye.ledger.change_table import KEPT_OF_ONE
from eagle_eye.ledger.incident_states import EDGES
from eagle_eye.types import Allow, Approval, Entity, Finding, IncidentState, Kind, Notice, Outcome, Plan, Refuse
from fakes.sample_values import JOB, a_finding, a_layout, a_plan, a_step, an_incident

# --- what was seen -------------------------------------------------------------------------------------------------


def test_a_write_that_fails_in_the_middle_leaves_nothing(ledger: Ledger) -> None:
    def broken() -> Iterator[Finding]:
        yield a_finding()
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="broke"):
        ledger.save_findings(broken())
    assert ledger.findings() == ()


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
    first, second = (Notice(name=name, time=time, message="m") for name, time in [("stream.away", 1.0), ("stream.recovered", 2.0)])
    ledger.save_notice(first)
    ledger.save_notice(second)
    assert ledger.notices() == (second, first)
    assert ledger.notices(since=1.5) == (second,)


# --- what was done -------------------------------------------------------------------------------------------------


def test_a_step_is_written_before_and_after_it_runs(ledger: Ledger) -> None:
    ledger.record_intent(a_plan(), a_step("intended"))
    ledger.record_result(a_plan(), a_step("done", 105.0))
    assert [step.state for step in ledger.progress("plan-1")] == ["intended", "done"]
    assert ledger.plan("plan-1") == a_plan()


def test_a_step_that_was_not_written_before_cannot_be_done(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'restart' of plan plan-1 was not written down before"):
        ledger.record_result(a_plan(), a_step("done"))
    with pytest.raises(LedgerError, match="only an intended one"):
        ledger.record_intent(a_plan(), a_step("done"))


def test_a_step_that_failed_may_be_tried_again(ledger: Ledger) -> None:
    for state in ("intended", "failed", "intended"):
        (ledger.record_intent if state == "intended" else ledger.record_result)(a_plan(), a_step(state))
    assert [step.state for step in ledger.progress("plan-1")] == ["intended", "failed", "intended"]


def test_an_outcome_is_replaced_by_later_word(ledger: Ledger) -> None:
    intended = Outcome(plan="plan-1", incident="incident-1", action="restart_worker", state="intended", time=104.0)
    done = msgspec.structs.replace(intended, state="done", time=109.0, transition_s=0.8)
    ledger.save_outcome(intended)
    ledger.save_outcome(done)
    assert ledger.outcome("plan-1") == done
    assert ledger.outcomes() == ledger.outcomes(incident="incident-1") == (done,)
    assert ledger.outcomes(since=110.0) == ()


def test_what_was_begun_is_found_with_its_plan_until_it_has_ended(ledger: Ledger) -> None:
    for number, state in ((1, "intended"), (2, "done"), (3, "intended")):
        ledger.save_plan(a_plan(f"plan-{number}"))
        ledger.save_outcome(Outcome(plan=f"plan-{number}", incident="", action="release", state=state, time=100.0 - number))
    assert [(plan.id, outcome.plan) for plan, outcome in ledger.begun()] == [("plan-3", "plan-3"), ("plan-1", "plan-1")]


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
    ledger.record_intent(plan, a_step("intended", 104.0))
    ledger.record_result(plan, a_step("done", 105.0))
    ledger.move_incident("incident-1", IncidentState.HEALING, 103.9)
    ledger.save_outcome(Outcome(plan=plan.id, incident="incident-1", action=plan.action, state="done", time=109.0))
    story = [(moment.what, moment.text) for moment in ledger.timeline("incident-1")]
    assert story == [
        ("fault", "the fault began"),
        ("finding", "worker.exited at worker run1/node-a/0, by exits (score 1.00): killed by SIGKILL"),
        ("incident", "revision 1: worker killed, worker run1/node-a/0 (SEV2)"),
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


def test_two_halves_never_get_the_same_epoch(ledger: Ledger, reopened: Ledger) -> None:
    other, start = reopened, threading.Barrier(2)

    def ask(mine: Ledger, coordinator: str) -> list[bool]:
        start.wait()
        return [mine.grant_epoch(JOB, epoch, a_layout(epoch, coordinator)) for epoch in range(1, 21)]

    with ThreadPoolExecutor(2) as both:
        halves = [both.submit(ask, ledger, "node-a"), both.submit(ask, other, "node-b")]
        answers = list(zip(*(half.result() for half in halves), strict=True))
    assert all(sum(pair) <= 1 for pair in answers)
    assert any(sum(pair) == 1 for pair in answers)


def test_a_grant_is_given_again_to_the_same_layout_only(ledger: Ledger) -> None:
    assert ledger.grant_epoch(JOB, 2, a_layout(2, time=50.0))
    assert ledger.grant_epoch(JOB, 2, a_layout(2, time=51.0))
    assert not ledger.grant_epoch(JOB, 2, a_layout(2, "node-b"))
    assert not ledger.grant_epoch(JOB, 1, a_layout(1))
    assert ledger.grant_epoch("tenant/other/run9", 1, a_layout(1))


def test_an_epoch_that_is_already_valid_is_not_granted(ledger: Ledger) -> None:
    ledger.save_job(JOB, a_layout(5), "127.0.0.1:7001", "restart:3", 3)
    assert not ledger.grant_epoch(JOB, 5, a_layout(5, "node-b"))
    assert not ledger.grant_epoch(JOB, 6, a_layout(6, "node-b")), "it would leave node-a behind, which has gone on"
    assert ledger.grant_epoch(JOB, 6, a_layout(6, "node-b"), 5), "it has been part of that epoch"


def test_the_other_half_gets_no_epoch_under_a_higher_number(ledger: Ledger, reopened: Ledger) -> None:
    assert ledger.grant_epoch(JOB, 2, a_layout(2), 1)
    assert not reopened.grant_epoch(JOB, 3, a_layout(3, "node-b"), 1)
    assert reopened.grant_epoch(JOB, 4, a_layout(4), 1), "the half that has it may try again"


def test_a_job_is_remembered_by_its_highest_epoch(ledger: Ledger) -> None:
    assert ledger.save_job(JOB, a_layout(5), "127.0.0.1:7001", "restart:3", 3)
    assert not ledger.save_job(JOB, a_layout(4), "127.0.0.1:9999", "restart:3", 1)
    assert ledger.save_job(JOB, a_layout(5), "127.0.0.1:7001", "restart:3", 2)
    assert {job: (facts.address, facts.budget_left) for job, facts in ledger.jobs().items()} == {JOB: ("127.0.0.1:7001", 2)}
    ledger.forget_job(JOB)
    assert ledger.jobs() == {}


def test_whose_a_job_is_outlives_the_job_until_retention(ledger: Ledger, reopened: Ledger) -> None:
    owner = JobOwner(nodes=("node-a", "node-b"), tenant="tenant")
    ledger.save_job(JOB, a_layout(5), "127.0.0.1:7001", "restart:3", 3)
    ledger.save_job_owner(JOB, JobOwner(nodes=("node-a",), tenant="tenant"), 100.0)
    ledger.save_job_owner(JOB, owner, 100.0)
    ledger.delete_ended(1000.0)
    assert reopened.job_owners() == {JOB: owner}, "it is still under way"
    ledger.forget_job(JOB)
    ledger.delete_ended(100.0)
    assert reopened.job_owners() == {JOB: owner}
    ledger.delete_ended(100.1)
    assert reopened.job_owners() == {}


def test_a_node_is_out_until_it_is_released(ledger: Ledger) -> None:
    assert ledger.cordon("node-a", JOB, "plan-1", 100.0, "slow")
    assert not ledger.cordon("node-a", JOB, "plan-2", 101.0)
    assert [(cordon.node, cordon.plan, cordon.reason) for cordon in ledger.cordoned()] == [("node-a", "plan-1", "slow")]
    assert ledger.release("node-a", "ada", 102.0)
    assert not ledger.release("node-a", "ada", 103.0)
    assert ledger.cordoned() == ()
    assert ledger.cordon("node-a", JOB, "plan-3", 104.0)


def test_a_letter_waits_until_it_arrives_or_is_given_up(ledger: Ledger) -> None:
    first, second = ledger.enqueue("pager", "{}", 100.0), ledger.enqueue("chat", "{}", 101.0)
    assert [notification.id for notification in ledger.due_notifications(100.5)] == [first]
    ledger.failed(first, 110.0, "connection refused")
    assert [notification.name for notification in ledger.due_notifications(109.0)] == ["chat"]
    assert [(notification.name, notification.attempts) for notification in ledger.due_notifications(110.0)] == [("chat", 0), ("pager", 1)]
    ledger.delivered(first, 111.0)
    ledger.given_up(second, 111.0, "404")
    assert ledger.due_notifications(1000.0) == ()


def test_letters_to_a_receiver_come_in_order_and_older_ones_may_go_with_a_newer(ledger: Ledger) -> None:
    first, other, second = (ledger.enqueue(name, text, 100.0) for name, text in (("pager", "1"), ("chat", "x"), ("pager", "2")))
    ledger.failed(first, 500.0, "status 503")
    assert [(notification.id, notification.attempts) for notification in ledger.undelivered("pager")] == [(first, 1), (second, 0)]
    assert ledger.undelivered_by_receiver() == {"pager": (2, 100.0, "status 503"), "chat": (1, 100.0, "")}
    ledger.delivered(second, 200.0, merged=[first])
    assert ledger.undelivered("pager") == ()
    assert [notification.id for notification in ledger.undelivered("chat")] == [other]


def test_what_is_said_and_its_letters_are_kept_together(ledger: Ledger) -> None:
    ledger.set_alert_news("i1", "a plan waits")
    assert ledger.alerts() == ()  # nothing was said yet
    ledger.save_alert(AlertRecord(id="i1", number=1, opened=100.0, changed=100.0, body="{}"), [("pager", "a"), ("chat", "b")], 100.0)
    ledger.save_alert(AlertRecord(id="i2", storm="storm-1", opened=90.0, changed=90.0, body="{}"), [], 100.0)
    assert [record.id for record in ledger.alerts()] == ["i2", "i1"]
    assert [notification.body for notification in ledger.undelivered("pager")] == ["a"]
    ledger.set_alert_news("i1", "it was refused")
    kept = ledger.alert("i1")
    assert kept is not None
    assert (kept.news, kept.number, kept.body) == ("it was refused", 1, "{}")
    ledger.save_alert(AlertRecord(id="i1", number=2, opened=100.0, changed=110.0, over=110.0, body="{}"), [], 110.0)
    assert [record.id for record in ledger.alerts()] == ["i2"]
    assert ledger.alert("i1") == AlertRecord(id="i1", number=2, opened=100.0, changed=110.0, over=110.0, news="it was refused", body="{}")
    assert ledger.alert("i9") is None


# --- what changed ----------------------------------------------------------------------------------------------------


def a_change(node: str = "node-a", seen: float = 100.0, job: str = JOB) -> ObservedChange:
    return ObservedChange(entity=Entity(kind=Kind.NODE, name=node), job=job, what="kernel", before="6.1", after="6.8", known=seen - 10.0, seen=seen)


def test_a_change_is_kept_once_however_many_jobs_are_told(ledger: Ledger, reopened: Ledger) -> None:
    ledger.save_changes([a_change(), a_change(), a_change("node-b", 90.0)])
    ledger.save_changes([a_change(job="tenant/other/run9"), a_change(seen=200.0)])
    assert reopened.changes(["node-a", "node-b"], 0.0, 150.0) == (a_change(), a_change("node-b", 90.0))
    assert reopened.changes(["node-c"], 0.0, 150.0, job=JOB) == (a_change(), a_change("node-b", 90.0))
    assert reopened.changes(["node-a"], 150.0, 250.0) == (a_change(seen=200.0),)
    assert reopened.changes([], 0.0, 250.0) == ()


def test_what_changes_each_second_fills_nothing(ledger: Ledger) -> None:
    ledger.save_changes([a_change("node-b", 50.0), *(a_change(seen=float(second)) for second in range(100, 100 + KEPT_OF_ONE))])
    ledger.save_changes([a_change(seen=1000.0), a_change(seen=1001.0)])
    kept = [change.seen for change in ledger.changes(["node-a"], 0.0, 2000.0)]
    assert (len(kept), kept[0], kept[-1]) == (KEPT_OF_ONE, 1001.0, 102.0)
    assert len(ledger.changes(["node-b"], 0.0, 2000.0)) == 1


# --- what is safe --------------------------------------------------------------------------------------------------


def a_safety(node: str = "node-a", step: int = 3, job: str = JOB, time: float = 100.0) -> NodeSafety:
    return NodeSafety(job=job, node=node, time=time, tiers={"memory": SafeStep(step=step, time=time)}, kept_by="node-b")


def test_the_newest_safe_checkpoint_of_each_node_is_kept(ledger: Ledger, reopened: Ledger) -> None:
    ledger.save_safety([a_safety(), a_safety("node-b"), a_safety(job="tenant/other/run9")])
    ledger.save_safety([a_safety(step=4), a_safety(step=5)])
    assert reopened.safety(JOB) == {JOB: (a_safety(step=5), a_safety("node-b"))}
    assert reopened.safety().keys() == {JOB, "tenant/other/run9"}
    assert reopened.safety("tenant/none/run") == {}


# --- what is old ---------------------------------------------------------------------------------------------------


def test_what_ended_long_ago_goes_and_what_is_open_stays(ledger: Ledger) -> None:
    for name, time in (("old", 100.0), ("open", 100.0), ("new", 900.0)):
        ledger.save_incident(an_incident(id=name, time=time), IncidentState.OPEN)
        plan = msgspec.structs.replace(a_plan(), id=f"plan-{name}", incident=name)
        ledger.record_intent(plan, a_step("intended"))
        if name != "open":
            ledger.move_incident(name, IncidentState.CLOSED, time)
    ledger.save_findings([a_finding(id="over", time=100.0, active=False), a_finding(id="lasting", time=100.0)])
    ledger.save_notice(Notice(name="old", time=100.0, message=""))
    ledger.save_changes([a_change(), a_change(seen=600.0)])
    ledger.save_job("tenant/long/run", a_layout(), "n0:1", "none", 0)
    ledger.save_safety([a_safety(job="tenant/long/run"), a_safety(job="tenant/over/run"), a_safety(job="tenant/new/run", time=600.0)])
    sent, waiting = ledger.enqueue("webhook", "sent", 100.0), ledger.enqueue("webhook", "waits", 100.0)
    ledger.delivered(sent, 100.0)
    for name, over in (("old", 100.0), ("open", None), ("storm-1", 100.0)):
        ledger.save_alert(AlertRecord(id=name, number=1, opened=90.0, changed=100.0, over=over, body="{}"), [], 100.0)
    ledger.set_alert_news("old", "nothing is done about it")
    assert ledger.delete_ended(500.0) > 0
    assert [ledger.alert(name) is not None for name in ("old", "open", "storm-1")] == [False, True, False]
    assert {record.incident.id for record in ledger.incidents()} == {"open", "new"}
    assert {plan.id for plan in ledger.plans()} == {"plan-open", "plan-new"}
    assert ledger.progress("plan-old") == () != ledger.progress("plan-open")
    assert [finding.id for finding in ledger.findings()] == ["lasting"]
    assert ledger.notices() == ()
    assert ledger.changes(["node-a"], 0.0, 1000.0) == (a_change(seen=600.0),)
    assert ledger.safety().keys() == {"tenant/long/run", "tenant/new/run"}, "of a job that runs it stays"
    assert [notification.id for notification in ledger.due_notifications(1000.0)] == [waiting]
    assert ledger.delete_ended(500.0) == 0


# --- approval links ------------------------------------------------------------------------------------------------


def an_approval(plan: Plan, person: str, time: float) -> Approval:
    return Approval(digest=plan.digest, person=person, approved=True, time=time, expires=plan.expires)


def test_an_approval_link_is_answered_once_by_whoever_is_first(ledger: Ledger) -> None:
    plan = a_plan()
    token = ledger.create_approval_link(plan, 100.0)
    kept = ledger.approval_link(token)
    assert kept is not None
    assert (kept.plan, kept.digest, kept.job, kept.used) == (plan.id, plan.digest, plan.targets[0].job, None)
    assert ledger.approval_link("another") is None
    with ThreadPoolExecutor(8) as people:
        answers = list(people.map(lambda number: ledger.save_approval(an_approval(plan, f"p{number}", plan.expires - 1), link=token), range(8)))
    assert answers.count(True) == 1
    assert [kept.person for kept in ledger.approvals()] == [f"p{answers.index(True)}"]
    used = ledger.approval_link(token)
    assert used is not None
    assert (used.person, used.approved, used.used) == (f"p{answers.index(True)}", True, plan.expires - 1)


def test_an_approval_link_lasts_as_long_as_its_plan_and_is_swept_later(ledger: Ledger) -> None:
    plan = a_plan()
    token = ledger.create_approval_link(plan, 100.0)
    assert not ledger.save_approval(an_approval(plan, "ada", plan.expires), link=token)
    assert not ledger.save_approval(an_approval(plan, "ada", 100.0), link="another")
    assert ledger.approvals() == ()
    ledger.delete_ended(plan.expires + 1)
    assert ledger.approval_link(token) is None


def test_what_a_job_reached_is_its_newest_figure_for_each_number_of_workers(ledger: Ledger) -> None:
    ledger.save_throughputs((Throughput(job="t/gpt", workers=8, tokens_per_s=100.0, time=1.0), Throughput(job="t/gpt", workers=4, steps_per_s=2.0, time=1.0)))
    ledger.save_throughputs((Throughput(job="t/gpt", workers=8, tokens_per_s=120.0, time=2.0), Throughput(job="t/other", workers=8, tokens_per_s=1.0, time=2.0)))
    reached = ledger.throughputs(["t/gpt"])
    assert [(each.workers, each.tokens_per_s, each.steps_per_s) for each in reached] == [(4, None, 2.0), (8, 120.0, None)]
    assert len(ledger.throughputs()) == 3


# --- who owns what -------------------------------------------------------------------------------------------------


def test_leases_are_renewed_together_as_far_as_they_are_ours_and_shown_while_they_live(ledger: Ledger) -> None:
    ada, bob = (LeaseHolder(host="h", pid=1, incarnation=incarnation) for incarnation in ("ada", "bob"))
    for name, holder in (("partition/1", ada), ("partition/2", ada), ("partition/3", bob), ("detect/ada", ada)):
        assert ledger.acquire(name, holder, 3600.0, 100.0) == 1
    wanted = ["partition/1", "partition/2", "partition/3", "partition/9", "detect/ada"]
    assert ledger.renew_all(wanted, ada, 7200.0, 100.0) == {"partition/1", "partition/2", "detect/ada"}
    until = {lease.name: lease.until for lease in ledger.living("partition/", 100.0)}
    assert until["partition/1"] - until["partition/3"] == pytest.approx(3600.0, abs=60.0)
    ledger.resign("partition/1", ada, 100.0)
    assert [lease.name for lease in ledger.living("partition/", 100.0)] == ["partition/2", "partition/3"]
    assert ledger.renew_all(["partition/2"], bob, 3600.0, 100.0) == frozenset()


def test_leases_that_ran_out_long_ago_are_forgotten_with_their_terms(ledger: Ledger) -> None:
    ada = LeaseHolder(host="h", pid=1, incarnation="ada")
    for name in ("detect/ada", "detect/bob"):
        ledger.acquire(name, ada, 3600.0, 100.0)
    ledger.resign("detect/ada", ada, 100.0)
    assert ledger.forget("detect/", 60.0, 100.0) == 0, "not long enough ago"
    assert ledger.forget("detect/", -60.0, 100.0) == 1
    assert ledger.holder_of("detect/ada") is None
    assert ledger.holder_of("detect/bob") is not None
