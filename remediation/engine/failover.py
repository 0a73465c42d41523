"""What a new leader takes over: open incidents, plans under way, and what was tried lately."""

from eagle_eye.types import Plan
from remediation.policy.escalation import INFORM

from .background_actions import ACTIONS, BackgroundActions
from .debounce import Debounce
from .engine_state import EngineState
from .incident_phase import IncidentPhase
from .tracked_incident import TrackedIncident

REMEMBERED_S = 3600.0
LIMIT = 1000


def take_over(desk: EngineState, errands: BackgroundActions) -> None:
    """Fill the desk from the ledger. A plan under way is finished: its commands are idempotent by (plan, step)."""
    ledger, now = desk.ledger, desk.clock.now()
    outcomes = ledger.outcomes(since=now - REMEMBERED_S, limit=LIMIT)
    plans = {plan.id: plan for plan in ledger.plans(limit=LIMIT)}
    incidents = {record.incident.id: record.incident for record in ledger.incidents(limit=LIMIT)}
    desk.memory.recall(plans.values(), outcomes, incidents)
    for breaker in ledger.breakers():
        if breaker.until is not None:
            desk.memory.forgive(breaker.job, breaker.action, breaker.until)
    errands.resume(outcomes, plans)
    _recall_figures(desk)
    for name, facts in ledger.jobs().items():
        job = desk.job(name)
        job.layout, job.epoch = facts.layout, facts.layout.epoch
        job.heal, job.budget_left, job.nodes_min, job.demand = facts.heal, facts.budget_left, facts.nodes_min, facts.demand
        job.sizes.append((facts.layout.time, len(facts.layout.placements)))
    under_way = {outcome.incident: outcome.plan for outcome in outcomes if outcome.state == "intended" and outcome.action not in ACTIONS}
    for record in ledger.incidents(open_only=True, limit=LIMIT):
        tracked = TrackedIncident(
            incident=record.incident,
            state=record.state,
            phase=IncidentPhase.NEEDS_OPERATOR,
            opened=record.opened,
            settling=Debounce.of(record.incident, now),
            epoch=-1,
        )
        desk.incidents[record.incident.id] = tracked
        _go_on(tracked, plans.get(under_way.get(record.incident.id, "")), desk)


def _recall_figures(desk: EngineState) -> None:
    """What elastic jobs reached in earlier runs, and what their transitions took."""
    for seen in desk.ledger.throughputs():
        if seen.steps_per_s:
            desk.reached.setdefault(seen.job, {})[seen.workers] = seen.steps_per_s
    desk.costs.update({(cost.job, cost.name): cost.seconds for cost in desk.ledger.transition_costs()})


def _go_on(tracked: TrackedIncident, plan: Plan | None, desk: EngineState) -> None:
    """With the plan that was under way, else with the next one."""
    now = desk.clock.now()
    if tracked.escalation is INFORM:
        return
    if plan is None:
        desk.move(tracked, IncidentPhase.SETTLING, due=now + desk.policy.settle_s)
        return
    tracked.plan, tracked.epoch = plan, plan.target_of(tracked.job).epoch
    tracked.evidence_kept.update(action for action in tracked.escalation.evidence if action != plan.action)
    desk.move(tracked, IncidentPhase.RETRYING, due=now)
