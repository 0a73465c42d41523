"""Every kind of notification keeps to the rules of who reads it, whatever is said; and says what a person needs."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_eye.types import Severity
from fakes.receiver_rules import refusals
from remediation.alerts.alert import Alert, AlertCulprit, PendingPlan
from remediation.alerts.receiver import Endpoint, Receiver
from remediation.alerts.templates import template_of

NOW = 1_700_000_000.0
PAGERS = ("pagerduty", "slack", "alertmanager")
KEY = "0123456789abcdef0123456789abcdef"


def an_alert(**changes) -> Alert:
    alert = Alert(
        id="i1", notification="i1/2", job="tenant/gpt/run1", cause="slow node", severity=Severity.SEV1, state="open",
        summary="slow node: node-b (tenant/gpt/run1)", culprits=(AlertCulprit(name="node-b", confidence=0.9),),
        news="plan p1 (evict_node) waits", link="https://eye.example/incidents/i1",
        pending_plan=PendingPlan(plan="p1", action="evict_node", digest="d1", expires=NOW + 600, reason="it costs less"),
        approval_link="https://eye.example/approve/abc", opened=NOW - 30, time=NOW,
    )
    return msgspec.structs.replace(alert, **changes)


def body(kind, *alerts, now=NOW):
    receiver = Receiver(kind=kind, url="http://h/", labels={"cluster": "a"})
    endpoint = Endpoint(receiver=receiver, url="http://h/", key=KEY, secret=b"")
    return msgspec.json.decode(msgspec.json.encode(template_of(kind).body(alerts, endpoint, now)))


def accepted(kind, *alerts):
    said = body(kind, *alerts)
    assert refusals(kind, msgspec.json.encode(said)) == []
    return said


ODD = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=200) | st.sampled_from(["<&>" * 900, "x" * 9000, "a|b>c<d"])


@pytest.mark.parametrize("kind", PAGERS)
@given(
    text=ODD, event_action=st.sampled_from(["trigger", "update", "resolve", "test"]), severity=st.sampled_from(Severity), many=st.integers(0, 500),
    more_pending=st.integers(0, 9),
)
def test_whatever_is_said_is_well_formed(kind, text, event_action, severity, many, more_pending):
    culprits = tuple(AlertCulprit(name=f"{number}{text}" or "x", confidence=0.5) for number in range(many))
    alert = an_alert(event_action=event_action, severity=severity, cause=text, summary=f"{text}!", news=text, culprits=culprits, more_pending=more_pending, causes={text: 3})
    assert accepted(kind, alert)


@pytest.mark.parametrize("kind", PAGERS)
def test_the_bare_minimum_is_well_formed(kind):
    assert accepted(kind, an_alert(culprits=(), news="", pending_plan=None, approval_link="", link=""))


def test_our_rules_refuse_what_is_malformed():
    """The fake itself: it would be of no use if it took everything."""
    event = body("pagerduty", an_alert())
    broken = [{**event, "routing_key": "short"}, {**event, "event_action": "open"}, {**event, "payload": {**event["payload"], "severity": "sev1"}}]
    broken += [{**event, "payload": {**event["payload"], "summary": "x" * 1025}}, {"routing_key": KEY, "event_action": "resolve"}, []]
    assert all(refusals("pagerduty", msgspec.json.encode(each)) for each in broken)
    text = {"type": "mrkdwn", "text": "a < b"}
    for blocks in ([{"type": "section", "text": text}], [{"type": "header", "text": text}], [{"type": "table"}], [{"type": "divider"}] * 51):
        assert refusals("slack", msgspec.json.encode({"text": "x", "blocks": blocks}))
    for alert in ({"labels": {}}, {"labels": {"a-b": "x"}}, {"labels": {"a": "x"}, "startsAt": "2026-01-02T00:00:00Z", "endsAt": "2026-01-01T00:00:00Z"}):
        assert refusals("alertmanager", msgspec.json.encode([alert]))


# --- PagerDuty -----------------------------------------------------------------------------------------------------


def test_pagerduty_knows_an_incident_by_its_key_from_trigger_to_resolve():
    events = [accepted("pagerduty", an_alert(event_action=event_action)) for event_action in ("trigger", "update", "resolve")]
    assert [(event["event_action"], event["dedup_key"]) for event in events] == [("trigger", "i1"), ("trigger", "i1"), ("resolve", "i1")]
    payload = events[0]["payload"]
    assert (payload["severity"], payload["source"], payload["group"]) == ("critical", "node-b", "tenant/gpt/run1")
    assert [link["href"] for link in events[0]["links"]] == ["https://eye.example/incidents/i1", "https://eye.example/approve/abc"]


# --- Slack ---------------------------------------------------------------------------------------------------------


def test_slack_shows_where_to_look_and_where_to_decide():
    text = str(accepted("slack", an_alert()))
    assert "<https://eye.example/incidents/i1|incident>" in text
    assert "<https://eye.example/approve/abc|approve or refuse>" in text
    assert "approve" not in str(accepted("slack", an_alert(event_action="resolve")))
    assert "Resolved" in accepted("slack", an_alert(event_action="resolve"))["text"]
    assert "and 7 more alerts wait" in str(accepted("slack", an_alert(more_pending=7)))


def test_slack_gets_no_markup_from_a_name():
    said = str(accepted("slack", an_alert(culprits=(AlertCulprit(name="<!channel>", confidence=1.0),))))
    assert "<!channel>" not in said
    assert "&lt;!channel&gt;" in said


# --- Alertmanager --------------------------------------------------------------------------------------------------


def test_the_labels_of_an_alert_stay_the_same_until_it_is_over():
    opened, updated, over = (accepted("alertmanager", an_alert(event_action=event_action, news=event_action, cause=event_action))[-1] for event_action in ("trigger", "update", "resolve"))
    assert opened["labels"] == updated["labels"] == over["labels"]
    assert opened["labels"] == {
        "alertname": "EagleEyeIncident", "eagle_eye_incident": "i1", "job": "tenant/gpt/run1", "tenant": "tenant", "severity": "critical",
        "cluster": "a",
    }
    assert opened["endsAt"] > over["endsAt"] == "2023-11-14T22:13:20.000Z"
    assert opened["annotations"]["approval_link"] == "https://eye.example/approve/abc"


def test_a_new_severity_ends_the_alert_under_the_old_one():
    old, new = accepted("alertmanager", an_alert(former_severities=(Severity.SEV3,)))
    assert (old["labels"]["severity"], new["labels"]["severity"]) == ("warning", "critical")
    assert old["endsAt"] < new["endsAt"]


def test_the_watchdog_fires_only_while_all_is_well():
    endpoint = Endpoint(receiver=Receiver(kind="alertmanager", every_s=60), url="http://h/")
    repeated = template_of("alertmanager").repeated
    assert repeated is not None
    names = [each["labels"]["alertname"] for each in repeated([an_alert()], endpoint, NOW, True)]
    assert names == ["EagleEyeIncident", "EagleEyeWatchdog"]
    assert [each["labels"]["alertname"] for each in repeated([an_alert()], endpoint, NOW, False)] == ["EagleEyeIncident"]
    assert repeated([], endpoint, NOW, False) is None


# --- our own -------------------------------------------------------------------------------------------------------


def test_our_own_letter_holds_no_evidence():
    said = body("plain", an_alert())
    assert said["notification"] == "i1/2"
    assert said["approval_link"] == "https://eye.example/approve/abc"
    assert "evidence" not in said
    assert msgspec.convert(said, Alert) == an_alert()
