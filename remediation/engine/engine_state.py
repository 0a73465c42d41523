"""What lies on the engine's desk: jobs, cases and trials, and the few things that all of its parts do with them."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.ledger import Ledger
from eagle_eye.protocols import Guard
from eagle_eye.types import IncidentState, Outcome, Plan, Progress, Situation, Window
from remediation.policy.attempt_history import AttemptHistory
from remediation.policy.engine_settings import EngineSettings
from remediation.policy.escalation import INFORM

from .cluster_view import ClusterView
from .execution import Execution
from .incident_phase import EDGES, IncidentPhase
from .job_state import JobState
from .tracked_incident import TrackedIncident
from .verification import Verification

log = logging.getLogger(__name__)

CASES_KEPT = 1000
OutcomeState = Literal["intended", "done", "failed", "stale"]


@dataclass(slots=True, kw_only=True)
class EngineState:
    """Shared by the engine's parts; whoever touches it holds the engine's lock."""

    ledger: Ledger
    clock: Clock
    policy: EngineSettings
    guards: Sequence[Guard]
    execution: Execution
    publish: Callable[[str, Outcome], None] = lambda _job, _outcome: None
    """Tells the stream's readers of an outcome: (job, outcome); returns at once."""
    jobs: dict[str, JobState] = field(default_factory=dict)
    incidents: dict[str, TrackedIncident] = field(default_factory=dict)
    verifications: dict[str, Verification] = field(default_factory=dict)
    """Incident → what is being judged."""
    memory: AttemptHistory = field(default_factory=AttemptHistory)
    cluster_view: ClusterView = field(init=False)
    reached: dict[str, dict[int, float]] = field(default_factory=dict)
    """tenant/name of elastic jobs → workers → steps per second of earlier runs."""
    costs: dict[tuple[str, str], float] = field(default_factory=dict)
    """(tenant/name, part of a transition) → seconds that it took in earlier runs."""
    measured: dict[str, dict[str, float]] = field(default_factory=dict)
    """Plan → what was measured of it beside its trial."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(guard, allow, hold or refuse) → how often it was said; what is said again of the same plan does not count."""

    def __post_init__(self) -> None:
        self.cluster_view = ClusterView(self.policy.switches)

    def job(self, name: str) -> JobState:
        """What is known of a job; a new one is added."""
        return self.jobs.setdefault(name, JobState(name=name))

    def incidents_of(self, job: str) -> list[TrackedIncident]:
        """Cases of a job under which something is still to be done."""
        return [tracked for tracked in self.incidents.values() if tracked.job == job and tracked.open]

    def has_open_fault(self, job: str) -> bool:
        """Whether a fault of the job is open, or lasts though nothing more is done about it: what it does now is not healthy."""
        mine = (tracked for tracked in self.incidents.values() if tracked.job == job and tracked.escalation is not INFORM)
        return any(tracked.open or (tracked.phase is IncidentPhase.NEEDS_OPERATOR and tracked.incident.active) for tracked in mine)

    def open(self, tracked: TrackedIncident) -> None:
        """A new case; of those that have ended the oldest go."""
        self.incidents[tracked.incident.id] = tracked
        ended = [name for name, other in self.incidents.items() if other.phase is IncidentPhase.ENDED and name not in self.verifications]
        for name in ended[: max(0, len(self.incidents) - CASES_KEPT)]:
            del self.incidents[name]

    def move(self, tracked: TrackedIncident, phase: IncidentPhase, *, due: float = 0.0, state: IncidentState | None = None) -> None:
        """The case waits for something else now; a new state is written down."""
        if phase not in EDGES[tracked.phase]:
            log.error("incident %s went from phase %s to %s, which is no legal edge: please report this", tracked.incident.id, tracked.phase.name, phase.name)
        tracked.phase, tracked.due = phase, due
        if state is IncidentState.CONTAINED and tracked.state is IncidentState.FAILED:
            state = IncidentState.HEALING  # something helps after all; whether it holds is not known yet
        if state is not None and state is not tracked.state:
            tracked.state = state
            self.ledger.move_incident(tracked.incident.id, state, self.clock.now())

    def settled(self, tracked: TrackedIncident) -> float:
        """When the case's incident has settled."""
        quiet_s = self.policy.settle_slow_s if tracked.escalation.cost_weighed else self.policy.settle_s
        return tracked.settling.due(quiet_s, self.policy.settle_max_s)

    def actual(self, plan: str, found: Mapping[str, float]) -> None:
        """Figures of a plan's outcome, whether it is written already or not."""
        self.measured[plan] = dict(found)
        while len(self.measured) > CASES_KEPT:
            self.measured.pop(next(iter(self.measured)))
        known = next((outcome for outcome in self.memory.outcomes() if outcome.plan == plan), None)
        if known is not None and known.state != "intended":
            self.note(known)

    def note(self, outcome: Outcome) -> None:
        """Write an outcome down. While it is `intended`, its plan is under way: the next leader goes on with it."""
        if outcome.plan in self.measured and outcome.state != "intended":
            outcome = msgspec.structs.replace(outcome, actual={**outcome.actual, **self.measured[outcome.plan]})
        self.memory.outcome(outcome)
        self.ledger.save_outcome(outcome)
        tracked = self.incidents.get(outcome.incident)
        if tracked is not None:
            self.publish(tracked.job, outcome)

    def record_plan(
        self, plan: Plan, state: OutcomeState, detail: str = "", progress: tuple[Progress, ...] = (),
        predicted: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        """The outcome of a plan that has no figures (yet) but what is predicted."""
        self.note(
            Outcome(
                plan=plan.id,
                incident=plan.incident,
                action=plan.action,
                state=state,
                time=self.clock.now(),
                detail=detail,
                progress=progress,
                predicted=dict(predicted or {}),
            )
        )

    def keep(self, plan: Plan) -> None:
        """Write a plan down."""
        self.memory.plan(plan)
        self.ledger.save_plan(plan)

    def situation(self, tracked: TrackedIncident, plan: Plan) -> Situation:
        """What a guard sees. A plan of the same incident that is only being judged does not stand in its own way."""
        now, around, jobs = self.clock.now(), self.cluster_view, self.jobs.values()
        judged = tuple(trial.plan for trial in self.verifications.values() if trial.incident != tracked.incident.id)
        nodes = {node for job in jobs if job.layout is not None for node in job.layout.launchers}
        return Situation(
            mode=self.policy.mode,
            incident=tracked.incident,
            open=tuple(other.incident for other in self.incidents.values() if other.open),
            outcomes=self.memory.outcomes(),
            running=(*self.execution.running, *judged),
            plans=self.memory.plans,
            approvals=self.ledger.approvals(digest=plan.digest, now=now),
            nodes=len(nodes),
            now=now,
            settled=self.settled(tracked),
            silences=tuple(silence for silence in self.ledger.silences(at=now) if silence.since <= now),
            windows=self.windows(),
            breakers=self.ledger.breakers(at=now),
            topology=around.topology(jobs),
            layouts=around.layouts(jobs),
            nodes_min={job.name: job.nodes_min for job in jobs},
            demands={job.name: job.demand for job in jobs if job.demand is not None},
            telemetry=around.telemetry(jobs),
        )

    def windows(self) -> tuple[Window, ...]:
        """Planned work that is under way."""
        now = self.clock.now()
        return tuple(window for window in self.ledger.windows(at=now) if window.open_at(now))
