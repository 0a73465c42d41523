"""What each kind of receiver wants to read: one file per kind, each with `body(alerts, address, now)`.

Alerts in, something that JSON can say out; nothing here does I/O.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from remediation.alerts.alert import Alert
from remediation.alerts.receiver import Address, Kind

from . import alertmanager, heartbeat, pagerduty, plain, slack


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """How one kind is spoken to."""

    body: Callable[[Sequence[Alert], Address, float], object]
    batch: bool = False
    """One message may hold several alerts."""
    repeated: Callable[[Sequence[Alert], Address, float, bool], object | None] | None = None
    """(open alerts, address, now, all is well with us) → what is sent every `every_s`, None: nothing now."""


TEMPLATES: Mapping[Kind, Template] = {
    "plain": Template(body=plain.body),
    "pagerduty": Template(body=pagerduty.body),
    "slack": Template(body=slack.body),
    "alertmanager": Template(body=alertmanager.body, batch=True, repeated=alertmanager.repeated),
    "heartbeat": Template(body=heartbeat.body, repeated=heartbeat.repeated),
}
