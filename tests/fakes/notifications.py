"""Cases as the engine shows them, and the notifications that come of them."""

from collections.abc import Iterable
from typing import Any

import msgspec

from eagle_eye.clock import FakeClock
from eagle_eye.ledger import Ledger
from eagle_eye.types import Culprit, Entity, Incident, IncidentState, Kind, Plan, Severity
from remediation.alerts.alert import Alert, alert_of
from remediation.alerts.alert_lifecycle import AlertLifecycle
from remediation.alerts.alert_storm import AlertStorms
from remediation.alerts.receiver import Receiver
from remediation.engine.debounce import Debounce
from remediation.engine.incident_phase import IncidentPhase
from remediation.engine.tracked_incident import TrackedIncident

from .sample_values import JOB, a_plan, an_incident


class Newsroom:
    """A lifecycle over cases that a test moves by hand."""

    def __init__(self, ledger: Ledger, clock: FakeClock, receivers: Iterable[Receiver] = (), **options: Any) -> None:
        self.ledger, self.clock = ledger, clock
        self.receivers = tuple(receivers) or (Receiver(kind="plain", name="pager"),)
        self.options = options
        self.incidents: dict[str, TrackedIncident] = {}
        self.lifecycle = self.new_lifecycle()

    def new_lifecycle(self) -> AlertLifecycle:
        """As a new leader makes it."""
        options = {"storms": AlertStorms(separate=5, within_s=60.0), "link": "https://eye.example/incidents/{incident}", **self.options}
        return AlertLifecycle(ledger=self.ledger, receivers=self.receivers, clock=self.clock, **options)

    def open(self, name: str = "i1", *, cause: str = "slow node", node: str = "node-b", job: str = JOB, severity: Severity = Severity.SEV1) -> TrackedIncident:
        now = self.clock.now()
        culprit = Culprit(entity=Entity(kind=Kind.NODE, name=node), confidence=0.9)
        incident = an_incident(id=name, cause=cause, culprits=(culprit,), job=job, severity=severity, since=now, time=now)
        self.ledger.save_incident(incident, IncidentState.OPEN)
        case = self.incidents[name] = TrackedIncident(
            incident=incident, state=IncidentState.OPEN, phase=IncidentPhase.SETTLING, opened=now, settling=Debounce.of(incident, now), epoch=1
        )
        return case

    def revise(self, case: TrackedIncident, **changes: Any) -> None:
        changed: Incident = msgspec.structs.replace(case.incident, revision=case.incident.revision + 1, **changes)
        case.incident = changed
        self.ledger.save_incident(changed, case.state)

    def move(self, case: TrackedIncident, state: IncidentState, phase: IncidentPhase = IncidentPhase.VERIFYING) -> None:
        case.state, case.phase = state, phase
        self.ledger.move_incident(case.incident.id, state, self.clock.now())

    def tell(self, case: TrackedIncident, news: str) -> None:
        self.ledger.set_alert_news(case.incident.id, news)
        case.notifications += 1

    def ask(self, case: TrackedIncident, name: str = "plan-1", **changes: Any) -> Plan:
        case.plan, case.phase, case.asked = a_plan(name, incident=case.incident.id, **changes), IncidentPhase.HELD, name
        return case.plan

    def look(self, seconds: float = 0.0) -> None:
        """Let the time pass, a look each second."""
        self.lifecycle.update(self.incidents)
        for _ in range(round(seconds)):
            self.clock.advance(1.0)
            self.lifecycle.update(self.incidents)

    def notifications(self, name: str = "pager") -> list[Alert]:
        """All that were written and not sent."""
        return [alert_of(notification.body) for notification in self.ledger.undelivered(name, limit=10_000)]

    def said(self, name: str = "pager") -> list[tuple[str, str]]:
        return [(alert.event_action, alert.id) for alert in self.notifications(name)]
