"""What each kind of receiver wants to read: one file per kind, each with `body(alerts, address, now)`.

Alerts in, something that JSON can say out; nothing here does I/O.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from remediation.alerts.alert import Alert
from remediation.alerts.receiver import Endpoint, ReceiverKind

from . import alertmanager, heartbeat, pagerduty, plain, slack


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverTemplate:
    """How one kind is spoken to."""

    body: Callable[[Sequence[Alert], Endpoint, float], object]
    batch: bool = False
    """One message may hold several alerts."""
    repeated: Callable[[Sequence[Alert], Endpoint, float, bool], object | None] | None = None
    """(open alerts, address, now, all is well with us) → what is sent every `every_s`, None: nothing now."""


TEMPLATES: Mapping[ReceiverKind, ReceiverTemplate] = {
    "plain": ReceiverTemplate(body=plain.body),
    "pagerduty": ReceiverTemplate(body=pagerduty.body),
    "slack": ReceiverTemplate(body=slack.body),
    "alertmanager": ReceiverTemplate(body=alertmanager.body, batch=True, repeated=alertmanager.repeated),
    "heartbeat": ReceiverTemplate(body=heartbeat.body, repeated=heartbeat.repeated),
}
