"""What is said about an incident, whatever the receiver. This is the body of a `plain` notification: docs/alerts.md."""

from typing import Literal

import msgspec

from eagle_eye.types import Severity

EventAction = Literal["trigger", "update", "resolve", "test"]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A plain frozen value."""


class AlertCulprit(Value, frozen=True, kw_only=True):
    """Who did it, as far as we know."""

    name: str
    confidence: float


class PendingPlan(Value, frozen=True, kw_only=True):
    """What a person has to decide."""

    plan: str
    action: str
    digest: str
    """What the approval is given for."""
    expires: float
    reason: str = ""


class Alert(Value, frozen=True, kw_only=True):
    """Times are seconds since 1970. Never logs, stacks or arguments: who wants them follows the link."""

    version: int = 1
    notification: str = ""
    """`id/number`: the same at every try, so that a receiver drops what it has seen."""
    event_action: EventAction = "trigger"
    id: str
    """Of the incident, or of the storm: the key under which a receiver keeps one alert."""
    job: str
    """tenant/name/run."""
    cause: str
    severity: Severity
    state: str
    """open, contained, healing, healed, failed or closed."""
    summary: str
    """One line."""
    culprits: tuple[AlertCulprit, ...] = ()
    news: str = ""
    """What was decided or done last."""
    pending_plan: PendingPlan | None = None
    approval_link: str = ""
    """Where the plan that waits is approved or refused."""
    link: str = ""
    """The incident's page."""
    opened: float
    time: float
    """When this was written."""
    causes: dict[str, int] = {}
    """Of a storm: cause → incidents so far."""
    former_severities: tuple[Severity, ...] = ()
    """Severities under which this alert was known before."""
    more_pending: int = 0
    """So many other alerts wait for this receiver: its pace is bounded."""


class SentAlert(Value, frozen=True, kw_only=True):
    """The last words, and who has heard of the alert. The body of a row of the ledger's `alerts`."""

    alert: Alert
    receivers: tuple[str, ...]


def encode(value: Value) -> str:
    """As JSON."""
    return msgspec.json.encode(value).decode()


def alert_of(body: str) -> Alert:
    """A notification's body. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(body, type=Alert)


def sent_alert_of(body: str) -> SentAlert:
    """A row's body. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(body, type=SentAlert)
