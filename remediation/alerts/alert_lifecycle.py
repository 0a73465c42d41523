"""When something is said: an alert is opened once, updated when something changed, and resolved in the end.

The engine shows its cases (`look`); what was said is kept in the ledger together with the notifications, so that a new leader
goes on where the last one ended.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.durations import seconds_between
from eagle_eye.ledger import AlertRecord, IncidentRecord
from eagle_eye.types import IncidentState, Plan
from remediation.engine.incident_phase import IncidentPhase
from remediation.engine.tracked_incident import TrackedIncident

from .alert import Alert, EventAction, SentAlert, encode, sent_alert_of
from .alert_content import (
    AlertSubject,
    alert_about,
    alert_subject_of,
    differs,
    member_change,
    plan_awaiting_approval,
    storm_of,
    urgent,
    with_changed_member,
    with_one_more,
)
from .alert_storm import AlertStorms
from .receiver import Receiver

log = logging.getLogger(__name__)

POLL_S = 0.2
RETRY_S = 5.0
"""What could not be said is tried again after so long."""
FORGET_S = 86_400.0
"""An alert about a failed incident of a job that is over is resolved after so long: nothing more can be known of it."""
replaced = msgspec.structs.replace


class AlertLedger(Protocol):
    """The ledger's part that alerts need."""

    def alert(self, name: str) -> AlertRecord | None: ...
    def alerts(self) -> tuple[AlertRecord, ...]: ...
    def save_alert(self, alert: AlertRecord, notifications: Iterable[tuple[str, str]], now: float) -> None: ...
    def incident_record(self, incident: str) -> IncidentRecord | None: ...


class AlertLifecycle:
    """One alert per incident. Called by the engine alone, under its lock."""

    def __init__(
        self,
        *,
        ledger: AlertLedger,
        receivers: Iterable[Receiver],
        clock: Clock,
        storms: AlertStorms,
        link: str = "",
        approval_link: Callable[[Plan], str] = lambda _plan: "",
        update_s: float = 10.0,
        delay_s: float = 0.0,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        """`link` has `{incident}` in it; `written` is called when there are new notifications. Raises LedgerError."""
        self._ledger = ledger
        self._receivers = tuple(receiver for receiver in receivers if receiver.hears)
        self._clock = clock
        self._storms = storms
        self._link = link
        self._approval_link = approval_link
        self._update_s = update_s
        self._delay_s = delay_s
        self._written = written
        self._next = 0.0
        self._seen: dict[str, tuple[object, ...]] = {}
        """Case → what it looked like when it was last turned into words."""
        self._due: dict[str, float] = {}
        """Case or storm → when (monotonic) it has to be looked at again."""
        self._open: dict[str, AlertRecord] = {}
        """Alerts that are not over, members of storms among them."""
        for record in ledger.alerts():
            self._recall(record)

    def update(self, cases: Mapping[str, TrackedIncident]) -> None:
        """Turn what has changed into notifications. Raises LedgerError."""
        moment, now = self._clock.monotonic(), self._clock.now()
        if moment < self._next:
            return
        self._next = moment + POLL_S
        for name, case in cases.items():
            looks = _looks(case)
            if self._seen.get(name) != looks or self._is_due(name, moment):
                self._seen[name] = looks
                try:
                    self._turn(alert_subject_of(case), now)
                except Exception:
                    self._again(name, RETRY_S)  # the others come first then
                    raise
        for name in [name for name in self._seen if name not in cases]:
            del self._seen[name]
            self._again(name, 0.0)  # whatever became of it without us seeing it
        for name in [name for name in self._due if name not in cases and self._is_due(name, moment)]:
            del self._due[name]
            if name in self._open:
                self._left(self._open[name], now)

    # --- one incident --------------------------------------------------------------------------------------------

    def _turn(self, subject: AlertSubject, now: float) -> None:
        self._due.pop(subject.id, None)
        record = self._open.get(subject.id)
        if record is None:
            if not subject.resolved and any(receiver.wants(subject.incident.severity) for receiver in self._receivers):
                self._begin(subject, now)
            return
        alert = self._words(subject, now)
        failed_long_ago = subject.state is IncidentState.FAILED and subject.ended and now - record.changed >= FORGET_S
        if subject.resolved or failed_long_ago:
            self._resolve(record, alert, now)
        else:
            self._revise(record, alert, now)
            if subject.ended:
                self._again(subject.id, FORGET_S)

    def _begin(self, subject: AlertSubject, now: float) -> None:
        """Nobody has heard of it yet."""
        wait = _left(self._delay_s, subject.opened, now)
        if wait > 0:
            self._again(subject.id, wait)
            return
        alert = self._words(subject, now)
        storm = self._storms.storm_for(alert.job, alert.id, now) if alert.pending_plan is None else ""
        fresh = replaced(self._fresh(alert.id, now), storm=storm)
        if storm:
            self._join(fresh, alert, now)
        else:
            self._storms.opened(alert.job, now)
            self._say(fresh, alert, now)

    def _revise(self, record: AlertRecord, alert: Alert, now: float) -> None:
        old = sent_alert_of(record.body).alert
        if record.storm:
            if alert.pending_plan is not None:  # a person has to decide: it leaves the storm
                self._say(replaced(record, storm=""), alert, now)
            elif change := member_change(alert, old):
                self._revise_storm(record, alert, change, now)
        elif differs(alert, old):
            wait = _left(self._update_s, record.changed, now)
            if urgent(alert, old) or wait <= 0:
                self._say(record, alert, now)
            else:
                self._again(alert.id, wait)

    def _resolve(self, record: AlertRecord, alert: Alert, now: float) -> None:
        over = replaced(record, over=now)
        if record.storm:
            self._ledger.save_alert(over, [], now)
            self._open.pop(record.id, None)
            self._calmed(record.storm, now)
        else:
            self._say(over, alert, now, "resolve")

    def _left(self, record: AlertRecord, now: float) -> None:
        """A storm with news; or what the engine has no case of any more, or a leader before us did not get to."""
        last = sent_alert_of(record.body).alert
        if last.causes:
            self._say(record, last, now)
            return
        kept = self._ledger.incident_record(record.id)
        if kept is None:
            self._resolve(record, replaced(last, state=IncidentState.CLOSED.value, time=now), now)
        else:
            self._turn(AlertSubject(incident=kept.incident, state=kept.state, opened=kept.opened, ended=True), now)

    # --- a storm -------------------------------------------------------------------------------------------------

    def _join(self, member: AlertRecord, alert: Alert, now: float) -> None:
        """Counted in the storm's notifications; it has none of its own."""
        member = replaced(member, body=encode(SentAlert(alert=alert, receivers=())))
        self._ledger.save_alert(member, [], now)
        self._open[member.id] = member
        self._storms.joined(alert.job, member.storm, now)
        storm = self._open.get(member.storm) or self._fresh(member.storm, now)
        told = sent_alert_of(storm.body) if storm.body else SentAlert(alert=storm_of(alert, storm.id, now), receivers=())
        self._say_storm(storm, told, with_one_more(told.alert, alert, now), now, wait_s=self._storms.within_s if storm.body else 0.0)

    def _revise_storm(self, member: AlertRecord, alert: Alert, change: str, now: float) -> None:
        """One of its incidents got worse, failed, or turned out to be something else: the storm's notification says so."""
        old = sent_alert_of(member.body).alert
        member = replaced(member, body=encode(SentAlert(alert=alert, receivers=())))
        self._ledger.save_alert(member, [], now)
        self._open[member.id] = member
        storm = self._open.get(member.storm)
        if storm is not None:
            told = sent_alert_of(storm.body)
            self._say_storm(storm, told, with_changed_member(told.alert, old, alert, change, now), now, wait_s=self._update_s)

    def _say_storm(self, storm: AlertRecord, told: SentAlert, new: Alert, now: float, *, wait_s: float) -> None:
        """At once if it is urgent or nothing was said for `wait_s`, else as soon as that is over."""
        wait = _left(wait_s, storm.changed, now)
        if urgent(new, told.alert) or wait <= 0:
            self._say(storm, new, now)
            return
        kept = replaced(storm, body=encode(replaced(told, alert=new)))
        self._ledger.save_alert(kept, [], now)
        self._open[storm.id] = kept
        self._again(storm.id, min(wait, self._due.get(storm.id, math.inf) - self._clock.monotonic()))

    def _calmed(self, name: str, now: float) -> None:
        """One of its incidents is over; with the last one the storm is."""
        storm = self._open.get(name)
        if storm is None or any(other.storm == name for other in self._open.values()):
            return
        last = sent_alert_of(storm.body).alert
        self._storms.ended(last.job)
        self._due.pop(name, None)
        self._say(
            replaced(storm, over=now), replaced(last, state=IncidentState.CLOSED.value, news="all of them are over"), now, "resolve"
        )  # fmt: skip

    # --- saying --------------------------------------------------------------------------------------------------

    def _words(self, subject: AlertSubject, now: float) -> Alert:
        kept, pending_plan = self._ledger.alert(subject.id), subject.pending_plan
        news = kept.news if kept is not None else ""
        approval_link = self._approval_link(pending_plan) if pending_plan is not None else ""
        return alert_about(subject, news=news, link=self._link, approval_link=approval_link, now=now)

    def _say(self, record: AlertRecord, alert: Alert, now: float, event_action: EventAction = "update") -> None:
        """Write a notification to everybody who has heard of it, and to those whom it concerns by now."""
        told = sent_alert_of(record.body) if record.body else SentAlert(alert=alert, receivers=())
        hears = [each for each in self._receivers if each.called in told.receivers or (event_action != "resolve" and each.wants(alert.severity))]
        number = record.number + 1
        former_severities = tuple(sorted({*told.alert.former_severities, told.alert.severity} - {alert.severity}))
        alert = replaced(alert, notification=f"{alert.id}/{number}", former_severities=former_severities, time=now)
        notifications = [(each.called, encode(replaced(alert, event_action=event_action if each.called in told.receivers else "trigger"))) for each in hears]
        names = tuple(each.called for each in hears)
        said = replaced(record, number=number, changed=now, body=encode(SentAlert(alert=alert, receivers=names)))
        self._ledger.save_alert(said, notifications, now)
        self._due.pop(said.id, None)
        if said.over is None:
            self._open[said.id] = said
        else:
            self._open.pop(said.id, None)
        self._written()

    def _fresh(self, name: str, now: float) -> AlertRecord:
        """Of an alert that is not open. Its notifications are counted on if it was open before: no number comes twice."""
        kept = self._ledger.alert(name)
        return AlertRecord(id=name, number=kept.number if kept is not None else 0, opened=now, changed=now)

    # --- time ----------------------------------------------------------------------------------------------------

    def _again(self, name: str, seconds: float) -> None:
        self._due[name] = self._clock.monotonic() + seconds

    def _is_due(self, name: str, moment: float) -> bool:
        return self._due.get(name, moment + 1) <= moment

    def _recall(self, record: AlertRecord) -> None:
        """What a leader before us has said."""
        try:
            alert = sent_alert_of(record.body).alert
        except msgspec.MsgspecError as error:
            log.warning("the last alert about %s cannot be read (%s): it is sent again", record.id, error)
            return
        self._open[record.id] = record
        if not alert.causes or alert.time > record.changed:
            self._again(record.id, 0.0)
        if record.storm:
            self._storms.joined(alert.job, record.storm, record.opened)
        elif not alert.causes:
            self._storms.opened(alert.job, record.opened)


def _left(seconds: float, since: float, now: float) -> float:
    """What is left of so many seconds; nothing where `since` is later than now: it was written by a server whose clock was ahead of ours."""
    passed = seconds_between(since, now)
    return 0.0 if passed is None else seconds - passed


def _looks(case: TrackedIncident) -> tuple[object, ...]:
    """Changes whenever an alert about it may have to."""
    pending_plan = plan_awaiting_approval(case)
    return (case.incident.revision, case.state, pending_plan.id if pending_plan is not None else "", case.notifications, case.phase is IncidentPhase.ENDED)
