"""PagerDuty's Events API v2: trigger and resolve under one dedup_key.

Limits after PagerDuty's description: summary 1024 characters, dedup_key 255, an event 512 KB; a repeated trigger with
the key of an open alert is added to it and pages nobody anew. Answers: 202 taken, 400 malformed, 429 too many.
https://developer.pagerduty.com/docs/events-api-v2/trigger-events
"""

from collections.abc import Sequence

from remediation.alerts.alert import Alert
from remediation.alerts.alert_formatting import PAGER, cut, rfc3339
from remediation.alerts.receiver import Endpoint

SUMMARY = 1024
KEY = 255
NAMES = 50
"""Culprits that are listed."""


def body(alerts: Sequence[Alert], endpoint: Endpoint, _now: float) -> object:
    """One event."""
    [alert] = alerts
    event: dict[str, object] = {
        "routing_key": endpoint.key,
        "event_action": "resolve" if alert.event_action == "resolve" else "trigger",
        "dedup_key": alert.id[:KEY],
    }
    if alert.event_action == "resolve":
        return event
    links = [(alert.link, "Incident"), (alert.approval_link, "Approve or refuse the plan that waits")]
    event |= {
        "client": "Eagle Eye",
        "payload": _payload(alert),
        "links": [{"href": href, "text": text} for href, text in links if href],
    }
    return event | ({"client_url": alert.link} if alert.link else {})


def _payload(alert: Alert) -> dict[str, object]:
    names = [culprit.name for culprit in alert.culprits]
    return {
        "summary": cut(alert.summary, SUMMARY),
        "source": names[0] if names else alert.job,
        "severity": PAGER[alert.severity],
        "timestamp": rfc3339(alert.opened),
        "group": alert.job,
        "class": alert.cause,
        "custom_details": _details(alert, names),
    }


def _details(alert: Alert, names: list[str]) -> dict[str, object]:
    details: dict[str, object] = {"state": alert.state, "job": alert.job, "culprits": names[:NAMES], "notification": alert.notification}
    if alert.news:
        details["news"] = alert.news
    if alert.pending_plan is not None:
        details["plan"] = f"{alert.pending_plan.action} ({alert.pending_plan.plan}, {alert.pending_plan.digest}): {alert.pending_plan.reason}"
    if alert.causes:
        details["causes"] = alert.causes
    if alert.more_pending:
        details["more"] = f"{alert.more_pending} other alerts wait to be sent"
    return details
