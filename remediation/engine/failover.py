"""What a new leader takes over from the ledger: open incidents, plans under way, and what was attempted lately."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.ledger.incident_states import UNDER_WAY
from eagle_eye.types import Incident, Outcome, Plan, Progress
from remediation.live.live_planner import RETURN_WORKERS, LivePlanner
from remediation.policy.engine_settings import EngineSettings

from .action_undo import begins_to_give_back
from .background_actions import BackgroundActions, in_background
from .debounce import Debounce
from .decision_recorder import DecisionRecorder, OutcomeState
from .engine_state import EngineState
from .incident_phase import IncidentPhase
from .pending_verifications import PendingVerifications
from .tracked_incident import TrackedIncident

RECENT_S = 3600.0
"""Attempts of so long ago count."""
LIMIT = 1000
"""Of what has ended, and of open incidents in which nothing is under way; what was begun is ended however much came after it."""


@dataclass(slots=True, kw_only=True)
class Failover:
    """Fills the state of an engine that has just been elected. A plan under way is finished: its commands are idempotent by (plan, step)."""

    state: EngineState
    recorder: DecisionRecorder
    background: BackgroundActions
    live: LivePlanner
    verifications: PendingVerifications
    ledger: Ledger
    clock: Clock
    settings: EngineSettings

    def run(self) -> None:
        """Call once, before anything else happens to the engine. Raises LedgerError."""
        now = self.clock.now()
        begun = self.ledger.begun()
        plans = {plan.id: plan for plan in (*reversed(self.ledger.plans(limit=LIMIT)), *(plan for plan, _ in begun))}
        outcomes = {outcome.plan: outcome for outcome in (*self.ledger.outcomes(limit=LIMIT), *(outcome for _, outcome in begun))}
        incidents = {record.incident.id: record.incident for record in self.ledger.incidents(limit=LIMIT)}
        recent = [outcome for outcome in outcomes.values() if outcome.time >= now - RECENT_S]
        self.state.history.recall(plans.values(), recent, incidents)
        for breaker in self.ledger.breakers():
            if breaker.until is not None:
                self.state.history.forgive(breaker.job, breaker.action, breaker.until)
        self._recall_measurements()
        self._recall_jobs()
        self._resume_background([(plan, outcome) for plan, outcome in begun if in_background(plan)])
        self._recall_shares(plans.values(), outcomes, incidents)
        self._resume_incidents([plan for plan, _ in begun if not in_background(plan)], now)

    # --- beside the incidents ------------------------------------------------------------------------------------

    def _resume_background(self, begun: Sequence[tuple[Plan, Outcome]]) -> None:
        """What is recorded as done is not sent again."""
        restoring = ""
        for plan, outcome in begun:
            progress = self.ledger.progress(plan.id)
            if plan.action == RETURN_WORKERS:
                continue
            if carried_out(plan, progress):
                self.recorder.record_plan(plan, "done", "carried out before the leader changed", progress, predicted=outcome.predicted)
            elif self.clock.now() >= plan.expires:
                self._fail(plan, outcome, progress, "expired before the leader changed")
            elif begins_to_give_back(progress):
                self._fail(plan, outcome, progress, "the leader changed while what was given was given back")
            else:
                self.background.resume(plan, outcome.predicted)
                restoring = plan.id if plan.action == "resize" else restoring
        self.live.recall_returned((plan for plan, _ in begun if plan.action == RETURN_WORKERS), restoring)

    def _fail(self, plan: Plan, outcome: Outcome, progress: tuple[Progress, ...], why: str) -> None:
        self.recorder.record_plan(plan, "failed", why, progress, predicted=outcome.predicted)
        self.verifications.action_undo.abandon(plan, unanswered=True)

    def _recall_shares(self, plans: Iterable[Plan], outcomes: Mapping[str, Outcome], incidents: Mapping[str, Incident]) -> None:
        """Of each job whether its newest rebalancing took micro-batches away from a straggler. One that has recovered since gets them back."""
        newest: dict[str, Plan] = {}
        for plan in sorted(plans, key=lambda plan: plan.made):
            rebalanced = plan.action in ("rebalance", "undo") and bool(plan.targets) and not plan.targets[0].exclude
            known = outcomes.get(plan.id)
            if rebalanced and known is not None and (known.state == "done" or carried_out(plan, self.ledger.progress(plan.id))):
                newest[plan.targets[0].job] = plan
        uneven = [plan for job, plan in newest.items() if plan.targets[0].speeds and job in self.state.jobs]
        self.live.recall_uneven(uneven)
        for plan in uneven:
            incident = incidents.get(plan.incident)
            if incident is None or not incident.active:
                self.live.even_out(plan.targets[0].job, plan.incident)

    # --- incidents -----------------------------------------------------------------------------------------------

    def _resume_incidents(self, begun: Sequence[Plan], now: float) -> None:
        """With the newest plan of each; what else was begun has ended, one way or the other."""
        under_way: dict[str, Plan] = {}
        for plan in sorted(begun, key=lambda plan: plan.made):
            if plan.incident in under_way:
                self._end(under_way[plan.incident], f"followed by {plan.action}")
            under_way[plan.incident] = plan
        for record in self._open_incidents(under_way):
            tracked = TrackedIncident(
                incident=record.incident,
                state=record.state,
                phase=IncidentPhase.NEEDS_OPERATOR,
                opened=record.opened,
                settling=Debounce.of(record.incident, now),
                epoch=-1,
            )
            self.state.incidents[record.incident.id] = tracked
            self._go_on(tracked, under_way.pop(record.incident.id, None), now)
        for plan in under_way.values():
            self._end(plan, "its incident had ended before the leader changed")

    def _open_incidents(self, under_way: Iterable[str]) -> list[IncidentRecord]:
        """The newest, and of older ones those in which something is under way."""
        newest = self.ledger.incidents(open_only=True, limit=LIMIT)
        further = set(under_way) - {record.incident.id for record in newest}
        older = [record for name in sorted(further) if (record := self.ledger.incident_record(name)) is not None and record.state in UNDER_WAY]
        return [*newest, *older]

    def _end(self, plan: Plan, why: str) -> None:
        """Nobody verifies it any more."""
        progress = self.ledger.progress(plan.id)
        known = next((outcome for outcome in self.state.history.outcomes() if outcome.plan == plan.id), None)
        state: OutcomeState = "done" if carried_out(plan, progress) else "stale"
        if state == "stale":
            self.verifications.action_undo.abandon(plan, unanswered=True)
        self.recorder.record_plan(plan, state, why, progress, predicted=known.predicted if known is not None else None)

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
            job.sizes.append((min(facts.layout.time, self.clock.now()), len(facts.layout.placements)))

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
        progress = self.ledger.progress(plan.id)
        if not carried_out(plan, progress):
            self.recorder.move(tracked, IncidentPhase.RETRYING, due=now)
        elif plan.action in tracked.escalation.evidence:
            self._evidence_kept(tracked, plan, progress, now)
        else:
            tracked.plan = None
            self.verifications.begin(tracked, plan, progress, began=progress[-1].time, patience=now)

    def _evidence_kept(self, tracked: TrackedIncident, plan: Plan, progress: tuple[Progress, ...], now: float) -> None:
        self.recorder.record_plan(plan, "done", progress=progress)
        tracked.plan = None
        tracked.evidence_kept.add(plan.action)
        self.recorder.move(tracked, IncidentPhase.SETTLING, due=now + self.settings.debounce_s)


def carried_out(plan: Plan, progress: Sequence[Progress]) -> bool:
    """Whether every step of a plan is recorded as done: nothing of it is left to send."""
    newest = {step.step: step.state for step in progress}
    return bool(newest) and all(state == "done" for state in newest.values()) and len(newest) >= _steps_of(plan)


def _steps_of(plan: Plan) -> int:
    """One command to each job; evicted nodes are cordoned as well, released ones are commanded one by one."""
    nodes = sum(len(target.exclude) for target in plan.targets)
    if plan.action == "release":
        return nodes
    if plan.action == "undo":
        return sum(2 * len(target.exclude) or 1 for target in plan.targets)
    cordoned = plan.action == "evict_node" and not plan.own  # what a job does to itself cordons nobody
    return len(plan.targets) + (nodes if cordoned else 0)
