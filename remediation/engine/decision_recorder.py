"""What the engine decides is recorded here before and after it is done: phases and states of incidents, plans, outcomes."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.ledger import Ledger
from eagle_eye.types import IncidentState, Outcome, Plan, Progress

from .engine_state import KEPT, EngineState
from .incident_phase import EDGES, IncidentPhase
from .tracked_incident import TrackedIncident

log = logging.getLogger(__name__)

OutcomeState = Literal["intended", "done", "failed", "stale"]


@dataclass(slots=True, kw_only=True)
class DecisionRecorder:
    """Writes to the engine's state, to the ledger, and outcomes to the stream. Raises LedgerError."""

    state: EngineState
    ledger: Ledger
    clock: Clock
    publish: Callable[[str, Outcome], None] = lambda _job, _outcome: None
    """Writes an outcome to the stream: (job, outcome); returns at once."""

    def move(self, tracked: TrackedIncident, phase: IncidentPhase, *, due: float = 0.0, state: IncidentState | None = None) -> None:
        """The incident enters a phase, until `due` where the phase has a time; a new state is written to the ledger."""
        if phase not in EDGES[tracked.phase]:
            log.error("incident %s went from phase %s to %s, which is no legal edge: please report this", tracked.incident.id, tracked.phase.name, phase.name)
        tracked.phase, tracked.due = phase, due
        if state is IncidentState.CONTAINED and tracked.state is IncidentState.FAILED:
            state = IncidentState.HEALING  # something helps after all; whether it lasts is not known yet
        if state is not None and state is not tracked.state:
            tracked.state = state
            self.ledger.move_incident(tracked.incident.id, state, self.clock.now())

    def save_plan(self, plan: Plan) -> None:
        """A plan that was made."""
        self.state.history.plan(plan)
        self.ledger.save_plan(plan)

    def record_plan(
        self, plan: Plan, state: OutcomeState, detail: str = "", progress: tuple[Progress, ...] = (),
        predicted: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        """The outcome of a plan of which nothing was measured (yet), only predicted."""
        self.record_outcome(
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

    def record_outcome(self, outcome: Outcome) -> None:
        """An outcome. While it is `intended`, its plan is under way: the next leader goes on with it."""
        measured = self.state.measured
        if outcome.plan in measured and outcome.state != "intended":
            outcome = msgspec.structs.replace(outcome, actual={**outcome.actual, **measured[outcome.plan]})
        self.state.history.outcome(outcome)
        self.ledger.save_outcome(outcome)
        tracked = self.state.incidents.get(outcome.incident)
        if tracked is not None:
            self.publish(tracked.job, outcome)

    def record_measured(self, plan: str, values: Mapping[str, float]) -> None:
        """What was measured of a plan beside its verification, whether its outcome is recorded already or not."""
        measured = self.state.measured
        measured[plan] = dict(values)
        while len(measured) > KEPT:
            measured.pop(next(iter(measured)))
        known = next((outcome for outcome in self.state.history.outcomes() if outcome.plan == plan), None)
        if known is not None and known.state != "intended":
            self.record_outcome(known)
