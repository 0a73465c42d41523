"""One alert per incident: opened once, updated when something changed, resolved in the end; storms are told together."""

import pytest

from eagle_eye.types import Culprit, Entity, Evidence, IncidentState, Kind, Mode, Severity
from fakes.notifications import Newsroom
from fakes.sample_values import a_finding
from remediation.alerts.alert_lifecycle import FORGET_S
from remediation.alerts.alert_storm import AlertStorms
from remediation.alerts.receiver import Receiver
from remediation.engine.incident_phase import IncidentPhase

ENDED = {"phase": IncidentPhase.ENDED}


@pytest.fixture
def room(ledger, clock):
    return Newsroom(ledger, clock)


def test_an_incident_is_opened_once_and_resolved_once(room):
    case = room.open()
    room.look(30)
    assert room.said() == [("trigger", "i1")]
    room.move(case, IncidentState.CONTAINED)
    room.look(30)
    room.move(case, IncidentState.HEALED, **ENDED)
    room.look(30)
    assert room.said() == [("trigger", "i1"), ("update", "i1"), ("resolve", "i1")]
    opened, updated, resolved = room.notifications()
    assert (opened.cause, opened.severity, opened.link) == ("slow node", "sev1", "https://eye.example/incidents/i1")
    assert [alert.state for alert in room.notifications()] == ["open", "contained", "healed"]
    assert len({alert.notification for alert in room.notifications()}) == 3
    assert opened.opened == updated.opened == resolved.opened


def test_a_storage_error_says_what_was_seen_where_nobody_is_accused(room):
    text = "worker run1/node-b/0 could not save the checkpoint of step 40 to /ckpt: ENOSPC: No space left on device; 12 kB are free there"
    case = room.open(cause="storage error", severity=Severity.SEV3)
    part = a_finding(kind="checkpoint.failed", evidence=(Evidence(text=text, status="storage error"),))
    room.revise(case, culprits=(), parts=(part,))
    room.look(1)
    [opened] = room.notifications()
    assert opened.summary == f"storage error: {text} ({case.incident.job})"
    assert opened.culprits == ()


def test_twin_what_an_unknown_fault_looks_like_is_left_to_its_page(room):
    case = room.open(cause="job stalled", severity=Severity.SEV2)
    room.revise(case, culprits=(), parts=(a_finding(evidence=(Evidence(text="a line", status="killed"),)),))
    room.look(1)
    assert room.notifications()[0].summary.startswith("job stalled: unknown (")


def test_revisions_without_news_are_not_told(room):
    case = room.open()
    for _ in range(50):
        [culprit] = case.incident.culprits
        room.revise(case, culprits=(Culprit(entity=culprit.entity, confidence=culprit.confidence / 1.1),), bill_gpu_hours=1.0)
        room.look(1)
    assert room.said() == [("trigger", "i1")]


def test_changes_are_told_together(room):
    case = room.open()
    room.look(1)
    room.revise(case, cause="worker hang")
    room.look(2)
    room.revise(case, culprits=(Culprit(entity=Entity(kind=Kind.NODE, name="node-c"), confidence=0.9),))
    room.look(2)
    room.move(case, IncidentState.HEALING)
    room.look(20)
    [_, update] = room.notifications()
    assert (update.cause, [culprit.name for culprit in update.culprits], update.state) == ("worker hang", ["node-c"], "healing")
    assert update.time - room.notifications()[0].time >= 10.0


@pytest.mark.parametrize(
    "worse",
    [
        lambda room, case: room.revise(case, severity=Severity.SEV1),
        lambda room, case: room.move(case, IncidentState.FAILED, IncidentPhase.NEEDS_OPERATOR),
        lambda room, case: room.ask(case),
    ],
    ids=["severity", "failed", "plan"],
)
def test_what_got_worse_or_waits_for_a_person_is_told_at_once(room, worse):
    case = room.open(severity=Severity.SEV3)
    room.look(1)
    worse(room, case)
    room.look(1)
    assert room.said() == [("trigger", "i1"), ("update", "i1")]


def test_a_plan_that_waits_is_in_the_letter_with_its_link(ledger, clock):
    room = Newsroom(ledger, clock, approval_link=lambda plan: f"https://eye.example/approve/{plan.digest}")
    case = room.open()
    room.look()
    plan = room.ask(case, reason="it costs less")
    room.look(1)
    notification = room.notifications()[-1]
    assert (notification.pending_plan.plan, notification.pending_plan.digest, notification.pending_plan.reason) == ("plan-1", plan.digest, "it costs less")
    assert notification.approval_link == f"https://eye.example/approve/{plan.digest}"
    room.move(case, IncidentState.HEALING, IncidentPhase.EXECUTING)
    room.look(20)
    assert (room.notifications()[-1].pending_plan, room.notifications()[-1].approval_link) == (None, "")


def test_news_reach_the_notification(room):
    case = room.open()
    room.look()
    room.tell(case, "every repair was attempted, none helped")
    room.look(20)
    assert [notification.news for notification in room.notifications()] == ["", "every repair was attempted, none helped"]


@pytest.mark.parametrize(("severity", "told"), [(Severity.INFO, 0), (Severity.SEV3, 1)])
def test_what_only_informs_makes_no_alert(room, severity, told):
    room.open(severity=severity)
    room.look(20)
    assert len(room.said()) == told


def test_each_receiver_hears_from_its_severity_on(ledger, clock):
    room = Newsroom(ledger, clock, [Receiver(kind="slack", name="chat"), Receiver(kind="plain", name="night", min_severity="sev1")])
    case = room.open(severity=Severity.SEV3)
    room.look(1)
    room.revise(case, severity=Severity.SEV1)
    room.look(1)
    room.move(case, IncidentState.HEALED, **ENDED)
    room.look(1)
    assert [event_action for event_action, _ in room.said("chat")] == ["trigger", "update", "resolve"]
    assert [event_action for event_action, _ in room.said("night")] == ["trigger", "resolve"]
    assert room.notifications("chat")[-1].former_severities == (Severity.SEV3,)


def test_nobody_hears_for_the_first_time_that_it_is_over(ledger, clock):
    room = Newsroom(ledger, clock, [Receiver(kind="slack", name="chat"), Receiver(kind="plain", name="night", min_severity="sev1")])
    case = room.open(severity=Severity.SEV3)
    room.look(1)
    room.revise(case, severity=Severity.SEV1)
    room.move(case, IncidentState.HEALED, **ENDED)
    room.look(20)
    assert room.said("night") == []
    assert room.said("chat")[-1] == ("resolve", "i1")


def test_an_incident_that_is_over_soon_makes_no_alert_where_a_delay_is_wanted(ledger, clock):
    room = Newsroom(ledger, clock, delay_s=20.0)
    case, lasting = room.open("i1"), room.open("i2")
    room.look(10)
    room.move(case, IncidentState.HEALED, **ENDED)
    room.look(30)
    assert room.said() == [("trigger", "i2")]
    assert lasting.state is IncidentState.OPEN


def test_an_incident_that_comes_back_is_opened_again_and_no_letter_has_a_known_number(room):
    case = room.open()
    room.look()
    room.move(case, IncidentState.HEALED, **ENDED)
    room.look(1)
    room.move(case, IncidentState.OPEN, IncidentPhase.SETTLING)
    room.look(1)
    assert [event_action for event_action, _ in room.said()] == ["trigger", "resolve", "trigger"]
    assert [notification.notification for notification in room.notifications()] == ["i1/1", "i1/2", "i1/3"]


def test_a_failed_incident_stays_until_it_can_matter_to_nobody(room):
    case = room.open()
    room.look()
    room.move(case, IncidentState.FAILED, IncidentPhase.ENDED)
    room.look(60)
    assert [event_action for event_action, _ in room.said()] == ["trigger", "update"]
    room.clock.advance(FORGET_S)
    room.look(1)
    assert [event_action for event_action, _ in room.said()] == ["trigger", "update", "resolve"]


# --- a new leader --------------------------------------------------------------------------------------------------


def test_a_new_leader_does_not_say_it_again(room):
    case = room.open()
    room.look()
    room.tell(case, "a plan waits")
    room.look(20)
    before = room.said()
    room.lifecycle = room.new_lifecycle()
    room.look(30)
    assert room.said() == before
    room.move(case, IncidentState.HEALED, **ENDED)
    room.look(1)
    assert room.said()[len(before) :] == [("resolve", "i1")]


@pytest.mark.parametrize("state", [IncidentState.HEALED, IncidentState.CLOSED])
def test_what_ended_while_nobody_led_is_resolved(room, state):
    case = room.open()
    room.look()
    room.move(case, state)  # the leader died before it wrote the notification
    room.incidents.clear()
    room.lifecycle = room.new_lifecycle()
    room.look(1)
    assert room.said() == [("trigger", "i1"), ("resolve", "i1")]
    room.look(30)
    assert len(room.said()) == 2


def test_a_case_that_left_the_desk_unseen_is_resolved(room):
    case = room.open()
    room.look()
    room.move(case, IncidentState.HEALED, **ENDED)
    del room.incidents["i1"]
    room.look(1)
    assert room.said() == [("trigger", "i1"), ("resolve", "i1")]


def test_a_failed_one_is_not_resolved_because_a_new_leader_has_no_case_of_it(room):
    room.move(room.open(), IncidentState.FAILED, IncidentPhase.NEEDS_OPERATOR)
    room.look()
    room.incidents.clear()
    room.lifecycle = room.new_lifecycle()
    room.look(60)
    assert [event_action for event_action, _ in room.said()] == ["trigger"]


# --- storms --------------------------------------------------------------------------------------------------------


def storm(room, count, **more):
    for number in range(count):
        room.open(f"s{number}", node=f"node-{number}", **more)
        room.look()
        room.clock.advance(0.25)


def test_hundreds_of_incidents_of_a_job_are_a_handful_of_notifications(room):
    storm(room, 300)
    room.look(90)
    assert len(room.said()) <= 5 + 4
    assert len({name for _, name in room.said()}) == 6
    assert len(room.ledger.incidents(limit=1000)) == 300  # nothing is lost
    last = room.notifications()[-1]
    assert last.summary == "and 295 more incidents: 295× slow node (tenant/gpt/run1)"
    assert last.causes == {"slow node": 295}


def test_another_cause_in_the_storm_is_told_at_once(room):
    storm(room, 100)
    before = len(room.said())
    room.open("death", cause="worker killed", node="node-x")
    room.look(1)
    assert len(room.said()) == before + 1
    assert "1× worker killed" in room.notifications()[-1].summary
    assert "node-x" in room.notifications()[-1].news


def test_what_gets_worse_in_the_storm_is_told_at_once_to_who_hears_of_that_severity(room):
    storm(room, 40, severity=Severity.SEV3)
    before = len(room.said())
    room.revise(room.incidents["s30"], severity=Severity.SEV1)
    room.look(1)
    assert len(room.said()) == before + 1
    told = room.notifications()[-1]
    assert (told.id.startswith("storm-"), told.severity) == (True, Severity.SEV1)
    assert told.news == "slow node: node-30 (tenant/gpt/run1): now SEV1"
    assert told.causes == {"slow node": 35}


def test_what_fails_in_the_storm_is_told_within_ten_seconds(room):
    storm(room, 40)
    before = len(room.said())
    room.move(room.incidents["s30"], IncidentState.FAILED)
    room.look(11)
    assert len(room.said()) == before + 1
    assert room.notifications()[-1].news == "slow node: node-30 (tenant/gpt/run1): it could not be healed"


def test_an_incident_of_the_storm_that_is_something_else_is_counted_as_that(room):
    storm(room, 40)
    room.revise(room.incidents["s30"], cause="worker hang")
    room.look(1)
    told = room.notifications()[-1]
    assert told.causes == {"slow node": 34, "worker hang": 1}
    assert told.news == "worker hang: node-30 (tenant/gpt/run1): it was called slow node"


def test_hundreds_that_get_worse_one_after_the_other_are_a_handful_of_notifications(room):
    storm(room, 100, severity=Severity.SEV3)
    before = len(room.said())
    for number in range(10, 90):
        room.revise(room.incidents[f"s{number}"], severity=Severity.SEV2)
        room.look()
        room.clock.advance(0.25)
    room.look(15)
    assert before < len(room.said()) <= before + 4


def test_twin_what_heals_or_is_revised_without_news_in_the_storm_is_not_told_of_again(room):
    storm(room, 40)
    room.look(90)
    before = len(room.said())
    room.move(room.incidents["s30"], IncidentState.CONTAINED)
    room.revise(room.incidents["s31"], bill_gpu_hours=1.0)
    room.move(room.incidents["s32"], IncidentState.HEALED, **ENDED)
    room.look(90)
    assert len(room.said()) == before


def test_a_plan_that_waits_leaves_the_storm(room):
    storm(room, 50)
    room.ask(room.incidents["s40"])
    room.look(1)
    assert room.notifications()[-1].id == "s40"
    assert (room.notifications()[-1].event_action, room.notifications()[-1].pending_plan.plan) == ("trigger", "plan-1")
    room.move(room.incidents["s40"], IncidentState.HEALED, **ENDED)
    room.look(1)
    assert room.said()[-1] == ("resolve", "s40")


def test_a_storm_is_over_with_its_last_incident(room):
    storm(room, 20)
    room.look(15)
    for case in room.incidents.values():
        assert not any(event_action == "resolve" and name.startswith("storm") for event_action, name in room.said())
        room.move(case, IncidentState.HEALED, **ENDED)
        room.look(1)
    assert room.said()[-1][0] == "resolve"
    assert room.notifications()[-1].news == "all of them are over"
    assert room.ledger.alerts() == ()
    opened = [name for event_action, name in room.said() if event_action == "trigger"]
    assert sorted(opened) == sorted(name for event_action, name in room.said() if event_action == "resolve")


def test_jobs_do_not_share_a_storm(room):
    for number in range(10):
        room.open(f"i{number}", job=f"tenant/job{number}/run1")
    room.look(1)
    assert [event_action for event_action, _ in room.said()] == ["trigger"] * 10


def test_a_storm_survives_its_leader(room):
    storm(room, 30)
    name = room.notifications()[-1].id
    room.lifecycle = room.new_lifecycle()
    room.open("later", node="node-later")
    room.look(90)
    assert room.notifications()[-1].id == name
    assert room.notifications()[-1].causes == {"slow node": 26}


def test_storms_may_be_switched_off(ledger, clock):
    room = Newsroom(ledger, clock, storms=AlertStorms(separate=0, within_s=60.0))
    storm(room, 30)
    assert len(room.said()) == 30


# --- as the engine shows it ----------------------------------------------------------------------------------------


def test_the_engine_opens_asks_and_resolves(make_world):
    world = make_world(Mode.RECOMMEND)
    room = Newsroom(world.ledger, world.clock, approval_link=lambda plan: f"https://eye.example/approve/{plan.id}")
    world.engine.on_tick(room.lifecycle.update)
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", Entity(kind=Kind.NODE, name="node-b"), since=world.clock.now() - 6)
    world.run(10)
    assert room.said()[0] == ("trigger", "i1")
    asked = room.notifications()[-1]
    assert asked.pending_plan is not None
    assert asked.approval_link == f"https://eye.example/approve/{asked.pending_plan.plan}"
    world.job.slow = lambda nodes: 1.0
    [over] = [case.incident for case in world.engine._state.incidents.values()]
    world.find("slow node", Entity(kind=Kind.NODE, name="node-b"), revision=over.revision + 1, active=False, since=over.since)
    world.run(3)
    assert room.said()[-1] == ("resolve", "i1")


def test_a_leader_before_us_whose_clock_was_ahead_delays_no_news(room):
    case = room.open()
    room.clock.jump(3600.0)
    room.look(1)
    room.clock.jump(-3600.0)  # the next leader's machine
    room.lifecycle = room.new_lifecycle()
    room.revise(case, cause="node lost")
    room.look(30)
    assert room.said() == [("trigger", "i1"), ("update", "i1")]
