"""An incident as the engine treats it: its phase, what was attempted, the plan that is held, executed or verified."""

from dataclasses import dataclass, field
from typing import NamedTuple

from eagle_eye.types import Incident, IncidentState, Plan
from remediation.policy.escalation import Escalation, escalation_of

from .debounce import Debounce
from .incident_phase import IncidentPhase
from .plan_builder import PlanRequest

STALE_S = 1.0
STALE_LONGEST_S = 30.0


@dataclass(slots=True)
class StaleLayout:
    """A layout on which a command came too late: it is planned on again only after a while that doubles each time."""

    basis: str = ""
    """Digest of the layout."""
    wait_s: float = 0.0
    until: float = 0.0

    def again(self, basis: str, now: float) -> None:
        """The job has left that layout, as it says; the next one is not known yet."""
        self.wait_s = min(STALE_LONGEST_S, 2 * self.wait_s) if basis == self.basis else STALE_S
        self.basis, self.until = basis, now + self.wait_s

    def holds(self, basis: str, now: float) -> bool:
        """Whether a plan on that layout would come too late again, as far as we know."""
        return basis == self.basis and now < self.until


class CallOff(NamedTuple):
    """The incident ended while its action was under way: what of the plan was not sent yet is not sent."""

    why: str
    state: IncidentState
    """How the incident ends."""


@dataclass(slots=True, kw_only=True)
class TrackedIncident:
    """One incident; the incident loop (incident_loop.py) moves it from phase to phase."""

    incident: Incident
    state: IncidentState
    phase: IncidentPhase
    opened: float
    """When the incident was opened, by the stream's clock (first revision)."""
    settling: Debounce
    epoch: int
    """Of the job, in which the fault happened."""
    plan: Plan | None = None
    """The plan that is held, runs or is tried."""
    planned_for: tuple[str, frozenset[str]] = ("", frozenset())
    """Cause and culprits when the plan was begun."""
    call_off: CallOff | None = None
    """Why the plan that is carried out is wanted no more; None: it is."""
    judged: tuple[str, str] = ("", "")
    """What became of the repair before, and why, if it was judged while a stronger one was being weighed."""
    level: str = ""
    """The level of escalation that the plan is."""
    evidence_kept: set[str] = field(default_factory=set)
    """Actions that kept evidence and need not run again."""
    asked: str = ""
    """The plan whose approval was asked of the operator."""
    refused_by: str = ""
    """The guard that refused the last plan; '' if none did."""
    doubted: PlanRequest | None = None
    """What was given up because too little spoke against whom it blames; None: it was given up for something else, or not at all."""
    resumed: int = 0
    """How often that was begun again because more did."""
    notifications: int = 0
    """Number of notifications about it."""
    due: float = 0.0
    """Phases that wait for a time: when to go on."""
    restart_permitted: bool = True
    """False: the job's own restart was refused, so that a repair is beyond its permission."""
    stale_layout: StaleLayout = field(default_factory=StaleLayout)
    forecast: dict[str, float] = field(default_factory=dict)
    """WAF of the layouts that were weighed: before the fault, if nothing is done, and with the choice."""
    precomputed: bool = False
    """The job's coordinator acted on a precomputed plan: what goes beyond the job follows at once."""

    @property
    def job(self) -> str:
        return self.incident.job

    @property
    def escalation(self) -> Escalation:
        return escalation_of(self.incident.cause, self.incident.severity)

    @property
    def culprits(self) -> frozenset[str]:
        return frozenset(str(culprit.entity) for culprit in self.incident.culprits)

    @property
    def open(self) -> bool:
        """Something is still to be done, or being judged."""
        return self.phase not in (IncidentPhase.NEEDS_OPERATOR, IncidentPhase.ENDED)
