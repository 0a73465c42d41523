"""Alertmanager's API v2: POST /api/v2/alerts takes a list of alerts, known by their labels.

An alert is over at its `endsAt`; an active one is sent again before that, with a later one. Labels never change while an
alert is open: a new severity ends the alert under the old one. https://prometheus.io/docs/alerting/latest/alerts_api
"""

from collections.abc import Iterator, Sequence

from eagle_eye.types import Severity
from remediation.alerts.alert import Alert
from remediation.alerts.alert_formatting import PAGER, rfc3339
from remediation.alerts.receiver import Endpoint

BATCH = True
"""One message may hold several alerts."""
ALERTNAME = "EagleEyeIncident"
WATCHDOG = "EagleEyeWatchdog"
MISSED = 4
"""An alert that was not sent again so many times is over (as Prometheus does)."""
NAMES = 20
TEST_S = 60.0


def body(alerts: Sequence[Alert], endpoint: Endpoint, now: float) -> object:
    """Several alerts."""
    return [entry for alert in alerts for entry in _entries(alert, endpoint, now)]


def repeated(alerts: Sequence[Alert], endpoint: Endpoint, now: float, well: bool) -> object | None:
    """Every open alert, and while all is well the one that always fires: when it stops, we have."""
    ends = now + MISSED * endpoint.receiver.every_s
    entries = [_entry(alert, endpoint, alert.severity, ends) for alert in alerts]
    if well:
        entries.append(_watchdog(endpoint, now))
    return entries or None


def _entries(alert: Alert, endpoint: Endpoint, now: float) -> Iterator[dict[str, object]]:
    ends = now if alert.event_action == "resolve" else now + (TEST_S if alert.event_action == "test" else MISSED * endpoint.receiver.every_s)
    for former_severities in set(alert.former_severities) - {alert.severity}:
        yield _entry(alert, endpoint, former_severities, now)
    yield _entry(alert, endpoint, alert.severity, ends)


def _entry(alert: Alert, endpoint: Endpoint, severity: Severity, ends: float) -> dict[str, object]:
    labels = {
        "alertname": ALERTNAME,
        "eagle_eye_incident": alert.id,
        "job": alert.job,
        "tenant": alert.job.partition("/")[0],
        "severity": PAGER[severity],
        **endpoint.receiver.labels,
    }
    entry: dict[str, object] = {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": _annotations(alert),
        "startsAt": rfc3339(min(alert.opened, ends)),
        "endsAt": rfc3339(ends),
    }
    return entry | ({"generatorURL": alert.link} if alert.link else {})


def _annotations(alert: Alert) -> dict[str, str]:
    culprits = [culprit.name for culprit in alert.culprits]
    more = [f"and {len(culprits) - NAMES} more"] if len(culprits) > NAMES else []
    annotations = {
        "summary": alert.summary,
        "cause": alert.cause,
        "state": alert.state,
        "culprits": ", ".join(culprits[:NAMES] + more),
        "news": alert.news,
        "approval_link": alert.approval_link,
    }
    if alert.pending_plan is not None:
        annotations["plan"] = f"{alert.pending_plan.action} ({alert.pending_plan.plan})"
    return {name: text for name, text in annotations.items() if text}


def _watchdog(endpoint: Endpoint, now: float) -> dict[str, object]:
    return {
        "labels": {"alertname": WATCHDOG, "severity": "none", **endpoint.receiver.labels},
        "annotations": {"summary": "Eagle Eye leads and its runners tick. This alert fires for ever; when it stops, Eagle Eye has."},
        "endsAt": rfc3339(now + MISSED * endpoint.receiver.every_s),
    }
