"""From a case to a plan that runs: the next repair, its permission, the guards, the hand-over to the execution."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from eagle_eye.types import Hold, IncidentState, Mode, Plan, Refuse, Verdict
from remediation.live.live_decision import LiveDecision
from remediation.live.live_planner import LivePlanner
from remediation.policy.attempt_history import attempt_of
from remediation.policy.escalation import REVERSIBLE, Attempt, next_level
from remediation.policy.prediction import predict
from remediation.policy.slowdown_cost import NOTHING

from .engine_state import EngineState
from .plan_builder import NoPlan, PlanRequest, alternatives, losers, make, saved
from .tracked_incident import IncidentPhase, TrackedIncident

log = logging.getLogger(__name__)

RECHECK_S = 1.0
"""How often a plan that is held is made anew and asked for again."""
SOON_S = 0.1
VERDICTS_KEPT = 1000


@dataclass(slots=True)
class PlanningLoop:
    """Decides what is tried next."""

    desk: EngineState
    live: LivePlanner
    notify: Callable[[TrackedIncident, str], object]
    _verdicts: dict[tuple[str, str], tuple[str, str, str]] = field(default_factory=dict)
    """(incident, guard) → what was written down last: (plan, allow, hold or refuse, reason)."""

    def propose(self, case: TrackedIncident) -> None:
        """Take the next step of a case: gather evidence, plan, ask, begin; or wait; or give up."""
        desk = self.desk
        job, now = desk.job(case.job), desk.clock.now()
        behind = job.current is None or job.epoch < case.epoch or case.outdated.holds(job.basis, now)
        if desk.execution.busy(case.job) or behind:
            desk.move(case, IncidentPhase.SETTLING, due=now + SOON_S)
            return
        missing = [action for action in case.treatment.evidence if action not in case.prepared]
        wanted = self._evidence(case, missing[0]) if missing else self._repair(case)
        if wanted is None:
            return
        plan = make(wanted, job, desk.policy)
        if isinstance(plan, NoPlan):
            self.give_up(case, f"{wanted.action} is impossible: {plan.why}")
        elif plan.own:
            self.begin(case, plan)
        elif now < desk.settled(case) and not case.foreseen:
            desk.move(case, IncidentPhase.SETTLING, due=desk.settled(case))
        else:
            self._ask(case, self._same(case, plan))

    def attempts(self, case: TrackedIncident) -> list[Attempt]:
        """What was tried on this fault."""
        return self.desk.memory.attempts_on(case.incident, case.culprits, self.desk.policy.relapse_s)

    def rung(self, case: TrackedIncident) -> str | None:
        """The weakest repair that is left; None: all were tried."""
        return next_level(case.treatment.rungs, self.attempts(case), self.desk.policy.attempts)

    def give_up(self, case: TrackedIncident, why: str) -> None:
        """Nothing more is done without a person."""
        log.warning("incident %s (%s): %s", case.incident.id, case.incident.cause, why)
        if case.incident.id in self.desk.trials:
            self.desk.move(case, IncidentPhase.TRYING)  # the job healed itself as far as it can: judge that
        else:
            self.desk.move(case, IncidentPhase.PARKED, state=IncidentState.FAILED)
        self.notify(case, why)

    def begin(self, case: TrackedIncident, plan: Plan) -> None:
        """Written down before it runs."""
        desk = self.desk
        case.plan = plan
        desk.keep(plan)
        desk.note_plan(plan, "intended", predicted=self._predicted(case, plan))
        desk.move(case, IncidentPhase.RUNNING, state=IncidentState.HEALING)
        desk.execution.begin(plan)

    def _predicted(self, case: TrackedIncident, plan: Plan) -> dict[str, float]:
        """Told before it runs, so that nobody can bend it afterwards."""
        if plan.action in case.treatment.evidence:
            return {}
        job = self.desk.job(case.job)
        bad = job.bad_step(case.incident) if plan.action == "roll_back" else -1
        predicted = predict(plan, job, self.desk.policy, since=case.incident.since, bad_step=bad)
        if plan.action == "rebalance" and "throughput_per_s" in predicted:
            predicted["throughput_per_s"] *= case.foretold.get("share", 1.0)
        return {**predicted, **{name: value for name, value in case.foretold.items() if name.startswith("waf")}}

    # --- what ----------------------------------------------------------------------------------------------------

    def _evidence(self, case: TrackedIncident, action: str) -> PlanRequest:
        now = self.desk.clock.now()
        return PlanRequest(action=action, own=True, incident=case.incident, attempts=(), now=now, reason="keep what a restart destroys")

    def _repair(self, case: TrackedIncident) -> PlanRequest | None:
        if self.live.applies_to(case, self.attempts(case)):
            return self._live(case)
        if case.treatment.weighed:
            return self._cheapest(case)
        rung = self.rung(case)
        if rung is None:
            self.give_up(case, "every repair was tried, none helped")
            return None
        case.rung = rung
        return PlanRequest(
            action=rung,
            own=self._own(case, rung),
            incident=case.incident,
            attempts=self.attempts(case),
            now=self.desk.clock.now(),
        )

    def _own(self, case: TrackedIncident, rung: str) -> bool:
        """The job allowed it itself: it stands still, and what is done is reversible and within its budget."""
        if rung not in REVERSIBLE or not case.treatment.standstill or self.desk.job(case.job).heal == "none":
            return False
        return rung != "restart_worker" or (case.alone and self.desk.job(case.job).may_restart)

    def _cheapest(self, case: TrackedIncident) -> PlanRequest | None:
        """Of doing nothing and of the repairs that are left. A restart that did not help is not tried again."""
        desk = self.desk
        job, now = desk.job(case.job), desk.clock.now()
        rungs, allowed = case.treatment.rungs, desk.policy.attempts
        left = {rung for rung in rungs if next_level((rung,), self.attempts(case), allowed) is not None}
        choices = alternatives(case.incident, job, desk.policy, frozenset(rungs) - left)
        if not choices or choices[0].action == NOTHING:
            vain = f"; tried in vain: {', '.join(sorted(set(rungs) - left))}" if left < set(rungs) else ""
            self._leave(case, (choices[0].why if choices else "its throughput is not known yet") + vain)
            return None
        case.rung = choices[0].action
        return PlanRequest(
            action=case.rung,
            own=False,
            incident=case.incident,
            attempts=self.attempts(case),
            now=now,
            cost=choices[0].cost,
            benefit=saved(choices),
            alternatives=losers(choices),
            reason=f"{case.incident.cause}: {choices[0].why}",
        )

    def _live(self, case: TrackedIncident) -> PlanRequest | None:
        """An elastic job: the planner weighs what the job did by itself against what goes beyond it."""
        desk, choice = self.desk, self.live.decide(case)
        if choice is None and desk.clock.now() < desk.settled(case):
            desk.move(case, IncidentPhase.SETTLING, due=desk.settled(case))
            return None
        if choice is None or choice.action == "nothing":
            self.goes_on(case, choice)
            return None
        case.rung = choice.action
        return self.live.request(case, choice, self.attempts(case))

    def goes_on(self, case: TrackedIncident, choice: LiveDecision | None) -> None:
        """Nothing is done beyond what the job did: written down with all that could have been."""
        desk = self.desk
        trial = desk.trials.get(case.incident.id)
        plan = trial.plan if trial is not None else None
        if choice is not None and plan is not None and not plan.alternatives:
            reason = f"{plan.reason}; {choice.how}"
            desk.keep(msgspec.structs.replace(plan, alternatives=choice.alternatives, cost=choice.cost, benefit=choice.benefit, reason=reason))
        if trial is not None:
            desk.move(case, IncidentPhase.TRYING)
        elif case.treatment.weighed:
            self._leave(case, choice.how if choice is not None else "its throughput is not known yet")
        elif case.state is IncidentState.CONTAINED:
            desk.move(case, IncidentPhase.ENDED, state=IncidentState.HEALED)  # judged while it was being weighed
        else:
            desk.move(case, IncidentPhase.SETTLING, due=desk.clock.now() + desk.policy.weigh_again_s)

    def _leave(self, case: TrackedIncident, why: str) -> None:
        """Doing nothing is cheapest at present; weighed again as long as the fault lasts."""
        log.info("incident %s: doing nothing is cheapest: %s", case.incident.id, why)
        self.desk.move(case, IncidentPhase.SETTLING, due=self.desk.clock.now() + self.desk.policy.weigh_again_s)

    # --- whether -------------------------------------------------------------------------------------------------

    def _same(self, case: TrackedIncident, plan: Plan) -> Plan:
        """The plan that is held, if it is still the right one and has not expired."""
        held = case.plan
        if case.phase is IncidentPhase.HELD and held is not None:
            if held.digest == plan.digest and held.expires > self.desk.clock.now():
                return held
            why = f"planned anew as {plan.id}: " + ("expired" if held.digest == plan.digest else "action or targets differ")
            self.desk.note_plan(held, "stale", why)
        return plan

    def _ask(self, case: TrackedIncident, plan: Plan) -> None:
        """All guards are asked; the strictest word counts."""
        desk = self.desk
        situation = desk.situation(case, plan)
        fresh = case.plan is not plan
        case.plan, case.refused_by = plan, ""
        if fresh:
            desk.keep(plan)
        verdicts = [guard(plan, situation) for guard in desk.guards]
        for verdict in verdicts:
            self._write(plan, verdict)
        refusals = [verdict for verdict in verdicts if isinstance(verdict, Refuse)]
        holds = [verdict for verdict in verdicts if isinstance(verdict, Hold)]
        if desk.policy.mode is Mode.OBSERVE:
            self._park(case, plan, "recommended")
        elif refusals:
            case.refused_by = refusals[0].guard
            self._park(case, plan, "refused", f"{refusals[0].guard}: {refusals[0].reason}")
        elif holds:
            seconds = min((hold.seconds for hold in holds if hold.seconds > 0), default=RECHECK_S)
            desk.move(case, IncidentPhase.HELD, due=desk.clock.now() + min(seconds, RECHECK_S))
            if all(hold.seconds == 0 for hold in holds) and case.asked != plan.id:
                case.asked = plan.id
                self.notify(case, f"plan {plan.id} ({plan.action}) waits for a person's word on {plan.digest}")
        else:
            self.begin(case, plan)

    def _park(self, case: TrackedIncident, plan: Plan, state: str, reason: str = "") -> None:
        self.notify(case, f"plan {plan.id} ({plan.action}) is {state}{': ' + reason if reason else ''}")
        judged = case.incident.id in self.desk.trials
        self.desk.move(case, IncidentPhase.TRYING if judged else IncidentPhase.PARKED)

    def _write(self, plan: Plan, verdict: Verdict) -> None:
        """Each verdict once, however often it is asked for; time that runs out is no news."""
        key, said = (plan.incident, verdict.guard), type(verdict).__name__.lower()
        if self._verdicts.get(key) != (plan.id, said, verdict.reason):
            self._verdicts[key] = (plan.id, said, verdict.reason)
            self.desk.counts[verdict.guard, said] += 1
            while len(self._verdicts) > VERDICTS_KEPT:
                self._verdicts.pop(next(iter(self._verdicts)))
            self.desk.ledger.save_verdict(plan, verdict, self.desk.clock.now())

    def remember(self, case: TrackedIncident, plan: Plan, *, failed: bool) -> None:
        """The attempt counts from now on."""
        bad = self.desk.job(case.job).bad_step(case.incident) if plan.action == "roll_back" else -1
        now = self.desk.clock.now()
        self.desk.memory.attempt(attempt_of(plan, case.incident, now, rung=case.rung, failed=failed, step=bad))
