"""The list of incidents: what a person should look at comes first by what they choose, not by chance."""

from collections.abc import Iterable
from dataclasses import dataclass

from dashboard.sources import Sources
from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.types import Hold, Plan, Refuse

from .cluster import NOT_OVER
from .incident_cost import IncidentCosts, costs_of

APPROVAL = "approval"
"""The guard that holds a plan until a person has decided."""
MOST_PLANS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRow:
    """One incident, as it is listed."""

    id: str
    job: str
    cause: str
    severity: str
    """sev1, sev2, sev3 or info."""
    state: str
    """open, contained, healing, healed, failed or closed."""
    culprits: tuple[str, ...]
    """`worker run/node/0`, …; empty: unknown."""
    since: float
    """When the fault began, according to the evidence."""
    opened: float
    changed: float
    bill_gpu_hours: float
    """The higher of two values: counted by diagnosis, or measured after an action."""
    waiting_plan: str
    """Id of the plan that waits for approval; '' if none does."""
    waiting_action: str = ""
    superseded_by: str = ""
    """Id of the incident as which a failed one came back: that one is looked at; '' if there is none."""

    @property
    def over(self) -> bool:
        """Nothing is to be done any more."""
        return self.state not in NOT_OVER or bool(self.superseded_by)


def listed(sources: Sources, *, open_only: bool = False, job: str = "", limit: int = 100) -> tuple[IncidentRow, ...]:
    """Newest first. `open_only`: those that are not over, failed ones among them, as somebody should look at them, unless they came back as
    another one."""
    return sources.remembered(("incidents", open_only, job, limit), lambda: _listed(sources, open_only, job, limit))


def _listed(sources: Sources, open_only: bool, job: str, limit: int) -> tuple[IncidentRow, ...]:
    ledger, now = sources.ledger, sources.clock.now()
    records = ledger.incidents(job=job, limit=limit)
    if open_only:
        present = ledger.incidents_present(limit=limit)
        found = [ledger.incident_record(each.id) for each in present]
        records = tuple(record for record in found if record is not None and job in ("", record.incident.job))
    waits, later = waiting_plans(ledger, records, now), costs_of(ledger, records)
    lines = (line_of(record, later, waits.get(record.incident.id)) for record in records)
    return tuple(line for line in lines if not (open_only and line.superseded_by))


def line_of(record: IncidentRecord, later: IncidentCosts, waits: Plan | None = None) -> IncidentRow:
    """As it is listed. waits: its plan that waits for approval."""
    incident = record.incident
    return IncidentRow(
        id=incident.id, job=incident.job, cause=incident.cause, severity=str(incident.severity), state=str(record.state),
        culprits=tuple(str(culprit.entity) for culprit in incident.culprits), since=incident.since, opened=record.opened, changed=record.changed,
        bill_gpu_hours=later.bill(incident), waiting_plan=waits.id if waits else "", waiting_action=waits.action if waits else "",
        superseded_by=later.superseded_by(record),
    )  # fmt: skip


def waiting_plans(ledger: Ledger, records: Iterable[IncidentRecord], now: float) -> dict[str, Plan]:
    """Incident → its plan that waits for an operator's approval."""
    open_ones = {record.incident.id for record in records if record.state in NOT_OVER}
    if not open_ones:
        return {}
    found: dict[str, Plan] = {}
    for plan in ledger.plans(limit=MOST_PLANS):
        if plan.incident in open_ones and plan.incident not in found and waits(ledger, plan, now):
            found[plan.incident] = plan
    return found


def waits(ledger: Ledger, plan: Plan, now: float) -> bool:
    """Whether the guards' last verdicts on a plan are that it needs a person's approval, and nobody has given or refused it."""
    if plan.own or plan.expires <= now:
        return False
    last = {each.verdict.guard: each.verdict for each in ledger.verdicts(plan=plan.id)}
    if not isinstance(last.get(APPROVAL), Hold) or any(isinstance(verdict, Refuse) for verdict in last.values()):
        return False
    return ledger.outcome(plan.id) is None and not ledger.progress(plan.id) and not ledger.approvals(digest=plan.digest, now=now)
