"""Our own JSON: the alert as it is. docs/alerts.md describes the fields."""

from collections.abc import Sequence

import msgspec

from remediation.alerts.alert import Alert
from remediation.alerts.receiver import Endpoint


def body(alerts: Sequence[Alert], _endpoint: Endpoint, _now: float) -> object:
    """One notification."""
    [alert] = alerts
    return msgspec.to_builtins(alert)
