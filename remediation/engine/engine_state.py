"""What the engine knows: jobs, incidents, what is under verification, what was attempted. Data only; it acts on nothing."""

from dataclasses import dataclass, field

from remediation.policy.attempt_history import AttemptHistory

from .cluster_view import ClusterView
from .incident_phase import IncidentPhase
from .job_state import JobState
from .tracked_incident import TrackedIncident
from .verification import Verification

KEPT = 1000
"""Incidents, and plans whose measured values are kept."""
KEPT_JOBS = 10_000
"""Names of jobs come over a wire: beyond so many those without a layout go first, of them the one that was heard of first."""


@dataclass(slots=True, kw_only=True)
class EngineState:
    """Shared by the engine's services, which hold the engine's lock. A new leader fills it from the ledger (failover.py)."""

    jobs: dict[str, JobState] = field(default_factory=dict)
    incidents: dict[str, TrackedIncident] = field(default_factory=dict)
    verifications: dict[str, Verification] = field(default_factory=dict)
    """Incident → the action under verification."""
    history: AttemptHistory = field(default_factory=AttemptHistory)
    cluster_view: ClusterView = field(default_factory=ClusterView)
    earlier_throughputs: dict[str, dict[int, float]] = field(default_factory=dict)
    """tenant/name of elastic jobs → workers → steps per second of earlier runs."""
    earlier_costs: dict[tuple[str, str], float] = field(default_factory=dict)
    """(tenant/name, part of a transition) → seconds that it took in earlier runs."""
    measured: dict[str, dict[str, float]] = field(default_factory=dict)
    """Plan → what was measured of it beside its verification."""

    def job(self, name: str) -> JobState:
        """What is known of a job; a new one is added."""
        known = self.jobs.get(name)
        if known is None:
            if len(self.jobs) >= KEPT_JOBS:
                del self.jobs[next((old for old, job in self.jobs.items() if job.layout is None or job.over), next(iter(self.jobs)))]
            known = self.jobs[name] = JobState(name=name)
        return known

    def incidents_of(self, job: str) -> list[TrackedIncident]:
        """Incidents of a job for which something is still to be done."""
        return [tracked for tracked in self.incidents.values() if tracked.job == job and tracked.open]

    def has_open_fault(self, job: str) -> bool:
        """Whether a fault of the job is open, or lasts though Eagle Eye has given it up: the job's steps are not healthy ones."""
        mine = (tracked for tracked in self.incidents.values() if tracked.job == job and not tracked.escalation.only_informs)
        return any(tracked.open or (tracked.phase is IncidentPhase.NEEDS_OPERATOR and tracked.incident.active) for tracked in mine)

    def track(self, tracked: TrackedIncident) -> None:
        """Add an incident; of those that have ended the oldest are forgotten."""
        self.incidents[tracked.incident.id] = tracked
        ended = [name for name, other in self.incidents.items() if other.phase is IncidentPhase.ENDED and name not in self.verifications]
        for name in ended[: max(0, len(self.incidents) - KEPT)]:
            del self.incidents[name]
