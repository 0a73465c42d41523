"""Alertmanager's API v2: POST /api/v2/alerts takes a list of alerts, known by their labels.

An alert is over at its `endsAt`; an active one is sent again before that, with a later one. Labels never change while an
alert is open: a new severity ends the alert under the old one. https://prometheus.io/docs/alerting/latest/alerts_api
"""

from collections.abc import Iterator, Sequence

from eagle_eye.types import Severity
from remediation.alerts.alert import Alert
from remediation.alerts.alert_formatting import PAGER, rfc3339
from remediation.alerts.receiver import Endpoint

ALERTNAME = "EagleEyeIncident"
WATCHDOG = "EagleEyeWatchdog"
MISSED = 4
"""An alert that was not sent again so many times is over (as Prometheus does)."""
NAMES = 20
TEST_S = 60.0


def body(alerts: Sequence[Alert], address: Endpoint, now: float) -> object:
    """Several alerts."""
    return [entry for alert in alerts for entry in _entries(alert, address, now)]


def repeated(alerts: Sequence[Alert], address: Endpoint, now: float, well: bool) -> object | None:
    """Every open alert, and while all is well the one that always fires: when it stops, we have."""
    ends = now + MISSED * address.receiver.every_s
    entries = [_entry(alert, address, alert.severity, ends) for alert in alerts]
    if well:
        entries.append(_watchdog(address, now))
    return entries or None


def _entries(alert: Alert, address: Endpoint, now: float) -> Iterator[dict[str, object]]:
    ends = now if alert.what == "resolve" else now + (TEST_S if alert.what == "test" else MISSED * address.receiver.every_s)
    for former in set(alert.former) - {alert.severity}:
        yield _entry(alert, address, former, now)
    yield _entry(alert, address, alert.severity, ends)


def _entry(alert: Alert, address: Endpoint, severity: Severity, ends: float) -> dict[str, object]:
    labels = {
        "alertname": ALERTNAME,
        "eagle_eye_incident": alert.id,
        "job": alert.job,
        "tenant": alert.job.partition("/")[0],
        "severity": PAGER[severity],
        **address.receiver.labels,
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
    if alert.waits is not None:
        annotations["plan"] = f"{alert.waits.action} ({alert.waits.plan})"
    return {name: text for name, text in annotations.items() if text}


def _watchdog(address: Endpoint, now: float) -> dict[str, object]:
    return {
        "labels": {"alertname": WATCHDOG, "severity": "none", **address.receiver.labels},
        "annotations": {"summary": "Eagle Eye leads and its runners tick. This alert fires for ever; when it stops, Eagle Eye has."},
        "endsAt": rfc3339(now + MISSED * address.receiver.every_s),
    }
