"""A dead-man's signal: as long as it comes, a leader leads and its runners tick."""

from collections.abc import Sequence

from remediation.alerts.alert import Alert
from remediation.alerts.receiver import Endpoint


def body(_alerts: Sequence[Alert], address: Endpoint, now: float) -> object:
    """The signal."""
    return {"version": 1, "what": "heartbeat", "time": now, "every_s": address.receiver.every_s}


def repeated(alerts: Sequence[Alert], address: Endpoint, now: float, well: bool) -> object | None:
    """Only while all is well: who waits for it in vain raises the alarm."""
    return body(alerts, address, now) if well else None
