"""A dead-man's signal: as long as it comes, a leader leads and its runners tick."""

from collections.abc import Sequence

from remediation.alerts.alert import Alert
from remediation.alerts.receiver import Endpoint


def body(_alerts: Sequence[Alert], endpoint: Endpoint, now: float) -> object:
    """The signal."""
    return {"version": 1, "event_action": "heartbeat", "time": now, "every_s": endpoint.receiver.every_s}


def repeated(alerts: Sequence[Alert], endpoint: Endpoint, now: float, well: bool) -> object | None:
    """Only while all is well: who waits for it in vain raises the alarm."""
    return body(alerts, endpoint, now) if well else None
