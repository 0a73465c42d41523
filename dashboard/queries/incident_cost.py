"""What became of incidents beyond their own record: what they cost in the end, and as which other one they came back."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.types import Incident, IncidentState, Outcome

TOKENS = "tokens/s"
BILL = "bill_gpu_hours"
MOST_OUTCOMES = 5000
CAME_BACK = re.compile(r"it came back as incident ([^\s;]+)")
"""How the engine writes it (remediation/engine/verification.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentCosts:
    """Of several incidents. bills: incident → GPU-hours that were measured after its actions. successors: incident → the one that it came back as."""

    bills: Mapping[str, float] = field(default_factory=dict)
    successors: Mapping[str, str] = field(default_factory=dict)

    def bill(self, incident: Incident) -> float:
        """GPU-hours: the higher of two values, as what diagnosis has counted ends where an action begins, and what is measured after one does not."""
        return max(incident.bill_gpu_hours, self.bills.get(incident.id, 0.0))

    def superseded_by(self, record: IncidentRecord) -> str:
        """The last of those that it came back as, if nobody healed it under its own name; '' if there is none."""
        if record.state is not IncidentState.FAILED:
            return ""
        name, seen = record.incident.id, {record.incident.id}
        while (after := self.successors.get(name, "")) and after not in seen:
            name = after
            seen.add(name)
        return name if name != record.incident.id else ""


def costs_of(ledger: Ledger, records: Iterable[IncidentRecord]) -> IncidentCosts:
    """One question for all of them."""
    since = min((record.opened for record in records), default=None)
    return IncidentCosts() if since is None else of_outcomes(ledger.outcomes(since=since, limit=MOST_OUTCOMES))


def cost_of_one(ledger: Ledger, incident: str) -> IncidentCosts:
    """Of one, however long ago it was."""
    found: list[Outcome] = []
    seen: set[str] = set()
    while incident and incident not in seen:
        seen.add(incident)
        own = ledger.outcomes(incident=incident, limit=MOST_OUTCOMES)
        found += own
        incident = of_outcomes(own).successors.get(incident, "")
    return of_outcomes(found)


def work(ledger: Ledger) -> dict[str, str]:
    """tenant/name of a job → the unit of its throughput: steps, where it reports no tokens or its size changes (remediation/engine/job_state.py). Others count tokens."""
    return {each.job: "steps/s" for each in ledger.throughputs() if each.tokens_per_s is None and each.steps_per_s is not None}


def work_of(units: Mapping[str, str], job: str) -> str:
    """Unit of the throughput of a run."""
    return units.get("/".join(job.split("/")[:2]), TOKENS)


def of_outcomes(outcomes: Iterable[Outcome]) -> IncidentCosts:
    """The costs and successors that these outcomes record."""
    bills: dict[str, float] = {}
    successors: dict[str, str] = {}
    for outcome in outcomes:
        bills[outcome.incident] = max(bills.get(outcome.incident, 0.0), outcome.actual.get(BILL, 0.0))
        if outcome.state == "failed" and (said := CAME_BACK.search(outcome.detail)):
            successors.setdefault(outcome.incident, said[1])
    return IncidentCosts(bills=bills, successors=successors)
