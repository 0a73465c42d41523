"""What a new leader takes over from the ledger: open incidents, plans under way, and what was attempted lately."""

from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.ledger import Ledger
from eagle_eye.types import Plan
from remediation.policy.engine_settings import EngineSettings

from .background_actions import ACTIONS, BackgroundActions
from .debounce import Debounce
from .decision_recorder import DecisionRecorder
from .engine_state import EngineState
from .incident_phase import IncidentPhase
from .tracked_incident import TrackedIncident

RECENT_S = 3600.0
"""Outcomes of so long ago are read."""
LIMIT = 1000


@dataclass(slots=True, kw_only=True)
class Failover:
    """Fills the state of an engine that has just been elected. A plan under way is finished: its commands are idempotent by (plan, step)."""

    state: EngineState
    recorder: DecisionRecorder
    background: BackgroundActions
    ledger: Ledger
    clock: Clock
    settings: EngineSettings

    def run(self) -> None:
        """Call once, before anything else happens to the engine. Raises LedgerError."""
        now = self.clock.now()
        outcomes = self.ledger.outcomes(since=now - RECENT_S, limit=LIMIT)
        plans = {plan.id: plan for plan in self.ledger.plans(limit=LIMIT)}
        incidents = {record.incident.id: record.incident for record in self.ledger.incidents(limit=LIMIT)}
        self.state.history.recall(plans.values(), outcomes, incidents)
        for breaker in self.ledger.breakers():
            if breaker.until is not None:
                self.state.history.forgive(breaker.job, breaker.action, breaker.until)
        self.background.resume(outcomes, plans)
        self._recall_measurements()
        self._recall_jobs()
        under_way = {outcome.incident: outcome.plan for outcome in outcomes if outcome.state == "intended" and outcome.action not in ACTIONS}
        for record in self.ledger.incidents(open_only=True, limit=LIMIT):
            tracked = TrackedIncident(
                incident=record.incident,
                state=record.state,
                phase=IncidentPhase.NEEDS_OPERATOR,
                opened=record.opened,
                settling=Debounce.of(record.incident, now),
                epoch=-1,
            )
            self.state.incidents[record.incident.id] = tracked
            self._go_on(tracked, plans.get(under_way.get(record.incident.id, "")), now)

    def _recall_measurements(self) -> None:
        """Throughput of elastic jobs in earlier runs, and the seconds that their transitions took."""
        for each in self.ledger.throughputs():
            if each.steps_per_s:
                self.state.earlier_throughputs.setdefault(each.job, {})[each.workers] = each.steps_per_s
        self.state.earlier_costs.update({(cost.job, cost.name): cost.seconds for cost in self.ledger.transition_costs()})

    def _recall_jobs(self) -> None:
        for name, facts in self.ledger.jobs().items():
            job = self.state.job(name)
            job.layout, job.epoch = facts.layout, facts.layout.epoch
            job.heal, job.budget_left, job.nodes_min, job.demand = facts.heal, facts.budget_left, facts.nodes_min, facts.demand
            job.sizes.append((facts.layout.time, len(facts.layout.placements)))

    def _go_on(self, tracked: TrackedIncident, plan: Plan | None, now: float) -> None:
        """With the plan that was under way, else with planning."""
        if tracked.escalation.only_informs:
            return
        if plan is None:
            self.recorder.move(tracked, IncidentPhase.SETTLING, due=now + self.settings.debounce_s)
            return
        tracked.planned_for = tracked.incident.cause, tracked.culprits
        tracked.plan, tracked.epoch = plan, plan.target_of(tracked.job).epoch
        tracked.evidence_kept.update(action for action in tracked.escalation.evidence if action != plan.action)
        self.recorder.move(tracked, IncidentPhase.RETRYING, due=now)
