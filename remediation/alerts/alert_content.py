"""An incident, or a storm of them, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from eagle_eye.types import Incident, IncidentState, Plan, Severity
from remediation.engine.incident_phase import IncidentPhase
from remediation.engine.tracked_incident import TrackedIncident
from remediation.policy.escalation import escalation_of

from .alert import Alert, AlertCulprit, PendingPlan
from .receiver import BY_SEVERITY

RESOLVED = (IncidentState.HEALED, IncidentState.CLOSED)
NAMES = 3
"""Culprits that a summary names."""
KEPT_CULPRITS = 50
LONGEST_LINE = 500
"""Characters of a line of evidence in a summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSubject:
    """What an alert is about, as the engine sees it now."""

    incident: Incident
    state: IncidentState
    opened: float
    pending_plan: Plan | None = None
    """The plan that waits for approval."""
    ended: bool = False
    """Nothing more is done or judged."""

    @property
    def id(self) -> str:
        return self.incident.id

    @property
    def resolved(self) -> bool:
        return self.state in RESOLVED


def alert_subject_of(case: TrackedIncident) -> AlertSubject:
    """The incidents that the engine tracks."""
    return AlertSubject(incident=case.incident, state=case.state, opened=case.opened, pending_plan=plan_awaiting_approval(case), ended=case.phase is IncidentPhase.ENDED)


def plan_awaiting_approval(case: TrackedIncident) -> Plan | None:
    """The plan for which a person was asked, while it waits."""
    plan = case.plan
    return plan if case.phase is IncidentPhase.HELD and plan is not None and case.asked == plan.id else None


def alert_about(subject: AlertSubject, *, news: str, link: str, approval_link: str, now: float) -> Alert:
    """One incident in words."""
    incident, pending_plan = subject.incident, subject.pending_plan
    culprits = sorted(incident.culprits, key=lambda culprit: -culprit.confidence)[:KEPT_CULPRITS]
    blamed = tuple(AlertCulprit(name=culprit.entity.name, confidence=culprit.confidence) for culprit in culprits)
    return Alert(
        id=incident.id,
        job=incident.job,
        cause=incident.cause,
        severity=incident.severity,
        state=subject.state.value,
        summary=f"{incident.cause}: {_named(blamed) or _seen(incident) or 'unknown'} ({incident.job})",
        culprits=blamed,
        news=news,
        pending_plan=_waiting(pending_plan) if pending_plan is not None else None,
        approval_link=approval_link,
        link=link.replace("{incident}", incident.id),
        opened=subject.opened,
        time=now,
    )


def storm_of(first: Alert, storm: str, now: float) -> Alert:
    """A storm begins with its first incident, which is still to be counted."""
    return Alert(
        id=storm, job=first.job, cause=first.cause, severity=first.severity, state=IncidentState.OPEN.value, summary="", opened=now, time=now
    )  # fmt: skip


def with_one_more(storm: Alert, member: Alert, now: float) -> Alert:
    """The storm with another incident in it: counted by cause, named by the newest, as severe as the worst."""
    causes = {**storm.causes, member.cause: storm.causes.get(member.cause, 0) + 1}
    return _storm_with(storm, causes, member, f"the last one: {member.summary}", now)


def with_changed_member(storm: Alert, old: Alert, member: Alert, change: str, now: float) -> Alert:
    """The storm with an incident in it that has changed: as many as before, counted by the cause that each has now."""
    causes = {**storm.causes, old.cause: storm.causes.get(old.cause, 1) - 1}
    causes[member.cause] = causes.get(member.cause, 0) + 1
    return _storm_with(storm, {cause: count for cause, count in causes.items() if count > 0}, member, f"{member.summary}: {change}", now)


def member_change(new: Alert, old: Alert) -> str:
    """What a storm's notification has to say about an incident in it: it got worse, failed, or is something else; '' for nothing."""
    if new.state == IncidentState.FAILED.value != old.state:
        return "it could not be healed"
    if BY_SEVERITY.index(new.severity) > BY_SEVERITY.index(old.severity):
        return f"now {new.severity.value.upper()}"
    return f"it was called {old.cause}" if new.cause != old.cause else ""


def _storm_with(storm: Alert, causes: dict[str, int], member: Alert, news: str, now: float) -> Alert:
    total = sum(causes.values())
    listed = ", ".join(f"{count}× {cause}" for cause, count in sorted(causes.items(), key=lambda each: -each[1]))
    known = {culprit.name for culprit in member.culprits}
    culprits = (*member.culprits, *(culprit for culprit in storm.culprits if culprit.name not in known))[:KEPT_CULPRITS]
    return msgspec.structs.replace(
        storm,
        cause=member.cause if len(causes) == 1 else "several causes",
        severity=worse(storm.severity, member.severity),
        culprits=culprits,
        causes=causes,
        summary=f"and {total} more incident{'s' * (total > 1)}: {listed} ({storm.job})",
        news=news,
        link=member.link,
        time=now,
    )


def worse(one: Severity, other: Severity) -> Severity:
    """The graver of two."""
    return max(one, other, key=BY_SEVERITY.index)


def differs(new: Alert, old: Alert) -> bool:
    """Whether a person should hear of it: who, what, how bad, where it stands, what waits; not each revision."""
    return _heard(new) != _heard(old)


def urgent(new: Alert, old: Alert) -> bool:
    """Whether it should be heard at once: a plan waits for approval, it got worse, or nothing more is done about it."""
    pending_plan = new.pending_plan is not None and (old.pending_plan is None or old.pending_plan.digest != new.pending_plan.digest)
    graver = BY_SEVERITY.index(new.severity) > BY_SEVERITY.index(old.severity)
    failed = new.state == IncidentState.FAILED.value != old.state
    return pending_plan or graver or failed or bool(new.causes.keys() - old.causes.keys())


def _heard(alert: Alert) -> Sequence[object]:
    names = frozenset(culprit.name for culprit in alert.culprits)
    plan = alert.pending_plan.plan if alert.pending_plan is not None else ""
    return (alert.cause, names, alert.severity, alert.state, alert.news, plan, _frozen(alert.causes))


def _frozen(counts: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    return frozenset(counts.items())


def _named(culprits: Sequence[AlertCulprit]) -> str:
    names = [culprit.name for culprit in culprits[:NAMES]]
    return ", ".join(names) + (f" and {len(culprits) - NAMES} more" if len(culprits) > NAMES else "")


def _seen(incident: Incident) -> str:
    """What was seen, where the operator has to do something about it; else the incident's page shows it."""
    if not escalation_of(incident.cause, incident.severity).remedy:
        return ""
    return next((line.text[:LONGEST_LINE] for part in incident.parts for line in part.evidence if line.status), "")


def _waiting(plan: Plan) -> PendingPlan:
    return PendingPlan(plan=plan.id, action=plan.action, digest=plan.digest, expires=plan.expires, reason=plan.reason)
