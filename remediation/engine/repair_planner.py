"""From an incident to a plan that is carried out: the next repair, its permission, the guards, the hand-over to the execution."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.types import Hold, IncidentState, Mode, Plan, Refuse
from remediation.live.live_decision import LiveDecision
from remediation.live.live_planner import LivePlanner
from remediation.policy.attempt_history import attempt_of
from remediation.policy.engine_settings import EngineSettings
from remediation.policy.escalation import REVERSIBLE, Attempt, next_level
from remediation.policy.prediction import predict
from remediation.policy.rank_swap import exchanged
from remediation.policy.slowdown_cost import NOTHING

from .decision_recorder import DecisionRecorder
from .engine_state import EngineState
from .execution import Execution
from .guard_review import GuardReview
from .incident_phase import IncidentPhase
from .plan_builder import NARROWED, NoPlan, PlanRequest, alternatives, losers, make, saved, swap_of
from .tracked_incident import TrackedIncident

log = logging.getLogger(__name__)

SWAP = "swap_ranks"
IN_PLACE = "reattempt"
"""Of no use to a job whose workers were ended."""
WEIGHED = frozenset({"restart_worker", "evict_node"})
"""What is weighed against doing nothing; a rank swap is a restart."""
RECHECK_S = 1.0
"""How often a plan that is held is made anew and asked for again."""
SOON_S = 0.1
DOUBT = "weak_evidence"
"""The guard that refuses what too little speaks for."""
RESUMED_MOST = 3
"""Evidence that rises and falls begins a repair again so often in one incident."""


@dataclass(slots=True, kw_only=True)
class RepairPlanner:
    """Decides which repair is attempted next."""

    state: EngineState
    recorder: DecisionRecorder
    review: GuardReview
    execution: Execution
    clock: Clock
    settings: EngineSettings
    live: LivePlanner
    notify: Callable[[TrackedIncident, str], object]

    def propose(self, tracked: TrackedIncident) -> None:
        """The next step of an incident: gather evidence, plan, ask the guards, begin; or wait; or give up."""
        job, now = self.state.job(tracked.job), self.clock.now()
        behind = job.current is None or job.epoch < tracked.epoch or tracked.stale_layout.holds(job.basis, now)
        if self.execution.busy(tracked.job) or behind or self._left_to_job(tracked):
            self.recorder.move(tracked, IncidentPhase.SETTLING, due=now + SOON_S)
            return
        tracked.doubted = None
        missing = [action for action in tracked.escalation.evidence if action not in tracked.evidence_kept and not job.spent]
        wanted = self._evidence(tracked, missing[0]) if missing else self._repair(tracked)
        if wanted is None:
            return
        plan = make(wanted, job, self.settings)
        if isinstance(plan, NoPlan):
            tracked.doubted = wanted if plan.unsure else None
            self.give_up(tracked, f"{wanted.action} is impossible: {plan.why}")
        elif plan.own:
            self.begin(tracked, plan)
        elif now < self.review.settles_at(tracked) and not tracked.precomputed:
            self.recorder.move(tracked, IncidentPhase.SETTLING, due=self.review.settles_at(tracked))
        else:
            self._ask(tracked, self._same(tracked, plan))
            tracked.doubted = wanted if tracked.refused_by == DOUBT else None

    def may_resume(self, tracked: TrackedIncident) -> bool:
        """What was given up for doubt alone could be done now: the doubt has lifted, or more speaks against whom it blames."""
        if tracked.doubted is None or tracked.resumed >= RESUMED_MOST:
            return False
        plan = make(replace(tracked.doubted, incident=tracked.incident, now=self.clock.now()), self.state.job(tracked.job), self.settings)
        return not isinstance(plan, NoPlan) and not self.review.refuses(DOUBT, tracked, plan)

    def _left_to_job(self, tracked: TrackedIncident) -> bool:
        """The job backs off and restarts itself: only what an operator decides, or what that cannot help against, is done meanwhile."""
        helps = tracked.escalation.ended_by_epoch and not tracked.escalation.isolates
        return helps and tracked.phase is not IncidentPhase.HELD and self.state.job(tracked.job).backs_off(self.settings.self_healing_s)

    def attempts(self, tracked: TrackedIncident) -> list[Attempt]:
        """What was tried on this fault."""
        return self.state.history.attempts_on(tracked.incident, tracked.culprits, self.settings.relapse_s)

    def level(self, tracked: TrackedIncident) -> str | None:
        """The weakest repair that is left; None: all were tried."""
        return next_level(self._levels(tracked), self.attempts(tracked), self.settings.attempts)

    def _levels(self, tracked: TrackedIncident) -> tuple[str, ...]:
        """Those that can help: another node does not help against what followed the ranks, and without the rank swap's result none is evicted."""
        levels = tracked.escalation.levels
        if self.state.job(tracked.job).spent:
            levels = tuple(level for level in levels if level != IN_PLACE)
        if SWAP not in levels:
            return levels
        if not self.settings.rank_swap:
            return tuple(level for level in levels if level != SWAP)
        if self._in_place(tracked):
            return levels[: levels.index(SWAP)]
        swapped = any(attempt.swap for attempt in self.attempts(tracked))
        possible = swapped or swap_of(tracked.incident, self.state.job(tracked.job))
        told = possible and not (self._followed(tracked) or self._not_exchanged(tracked))
        return levels if told else levels[: levels.index(SWAP)]

    def _followed(self, tracked: TrackedIncident) -> tuple[str, ...]:
        return self.state.history.followed(tracked.incident, tracked.culprits, self.settings.relapse_s)

    def _in_place(self, tracked: TrackedIncident) -> bool:
        """An elastic worker that is started again has the rank that it had: nothing shows whether a fault follows the rank or stays with the node."""
        layout = self.state.job(tracked.job).layout
        return layout is not None and layout.in_place

    def _not_exchanged(self, tracked: TrackedIncident) -> tuple[str, ...]:
        """The nodes that were asked to exchange their ranks, and have not."""
        asked = next((attempt.swap for attempt in reversed(self.attempts(tracked)) if attempt.swap), ())
        return asked if asked and not exchanged(asked, self.state.job(tracked.job).layout) else ()

    def give_up(self, tracked: TrackedIncident, why: str) -> None:
        """Nothing more is done until the operator acts."""
        log.warning("incident %s (%s): %s", tracked.incident.id, tracked.incident.cause, why)
        if tracked.incident.id in self.state.verifications:
            self.recorder.move(tracked, IncidentPhase.VERIFYING)  # the job healed itself as far as it can: judge that
        else:
            self.recorder.move(tracked, IncidentPhase.NEEDS_OPERATOR, state=IncidentState.FAILED)
        self.notify(tracked, why)

    def begin(self, tracked: TrackedIncident, plan: Plan) -> None:
        """Written down before it runs."""
        tracked.plan, tracked.call_off = plan, None
        tracked.planned_for = tracked.incident.cause, tracked.culprits
        self.recorder.save_plan(plan)
        self.recorder.record_plan(plan, "intended", predicted=self._predicted(tracked, plan))
        self.recorder.move(tracked, IncidentPhase.EXECUTING, state=IncidentState.HEALING)
        self.execution.begin(plan)

    def _predicted(self, tracked: TrackedIncident, plan: Plan) -> dict[str, float]:
        """Recorded before the action begins, and compared with what came of it."""
        if plan.action in tracked.escalation.evidence:
            return {}
        job = self.state.job(tracked.job)
        bad = job.bad_step(tracked.incident) if plan.action == "roll_back" else -1
        predicted = predict(plan, job, self.settings, since=tracked.incident.since, bad_step=bad)
        if plan.action == "rebalance" and "throughput_per_s" in predicted:
            predicted["throughput_per_s"] *= tracked.forecast.get("share", 1.0)
        return {**predicted, **{name: value for name, value in tracked.forecast.items() if name.startswith("waf")}}

    # --- what ----------------------------------------------------------------------------------------------------

    def _evidence(self, tracked: TrackedIncident, action: str) -> PlanRequest:
        now = self.clock.now()
        return PlanRequest(action=action, own=True, incident=tracked.incident, attempts=(), now=now, reason="keep what a restart destroys")

    def _repair(self, tracked: TrackedIncident) -> PlanRequest | None:
        if self.live.applies_to(tracked, self.attempts(tracked)):
            return self._live(tracked)
        if tracked.escalation.cost_weighed:
            return self._cheapest(tracked)
        level = self.level(tracked)
        if level is None:
            self.give_up(tracked, self._all_in_vain(tracked))
            return None
        tracked.level = level
        attempts = self.attempts(tracked)
        return PlanRequest(
            action=level,
            own=self._own(tracked, level),
            incident=tracked.incident,
            attempts=attempts,
            now=self.clock.now(),
            reason=_why(level, tracked, attempts),
        )

    def _all_in_vain(self, tracked: TrackedIncident) -> str:
        if asked := self._not_exchanged(tracked):
            return (
                f"{' and '.join(asked)} were to exchange their ranks and have not: without that no node is evicted; "
                "start the job's launchers with the version of the server, or look at the stacks that were kept"
            )
        followed = self._followed(tracked)
        if not followed and self._levels(tracked) != tracked.escalation.levels and self.settings.rank_swap:
            return f"a restart did not help, and whether another node would cannot be tried: {self._untried(tracked)}; no node is evicted on a guess"
        if not followed:
            return "every repair was attempted, none helped"
        return (
            f"the fault followed the ranks when {' and '.join(followed)} exchanged them: it is the program's or its data's, "
            "and no node is evicted for it; look at the stacks that were kept, mend the script or the data, and start the job again"
        )

    def _untried(self, tracked: TrackedIncident) -> str:
        if self._in_place(tracked):
            return "an elastic worker that is started again has the rank that it had; look at the stacks that were kept"
        return "none has as many workers as the accused one"

    def _own(self, tracked: TrackedIncident, level: str) -> bool:
        """The job allowed it at its start: it makes no progress, and the action is reversible and within its heal budget."""
        if level not in REVERSIBLE or not tracked.escalation.stops_job or self.state.job(tracked.job).heal == "none":
            return False
        return level != "restart_worker" or (tracked.restart_permitted and self.state.job(tracked.job).may_restart)

    def _cheapest(self, tracked: TrackedIncident) -> PlanRequest | None:
        """Of doing nothing and of the repairs that are left. A restart that did not help is not tried again."""
        job, now = self.state.job(tracked.job), self.clock.now()
        levels, allowed = self._levels(tracked), self.settings.attempts
        left = {level for level in levels if next_level((level,), self.attempts(tracked), allowed) is not None}
        if SWAP in levels and SWAP not in left:  # that was a restart as well
            left.discard("restart_worker")
        choices = alternatives(tracked.incident, job, self.settings, WEIGHED - {NARROWED.get(level, level) for level in left})
        if not choices or choices[0].action == NOTHING:
            vain = f"; attempted without success: {', '.join(sorted(set(levels) - left))}" if left < set(levels) else ""
            self._leave(tracked, (choices[0].why if choices else "its throughput is not known yet") + vain)
            return None
        if SWAP in left:  # the restart shows as well whether an eviction would help
            choices.sort(key=lambda choice: choice.action != "restart_worker")
        tracked.level = SWAP if SWAP in left else choices[0].action
        return PlanRequest(
            action=tracked.level,
            own=False,
            incident=tracked.incident,
            attempts=self.attempts(tracked),
            now=now,
            cost=choices[0].cost,
            benefit=saved(choices),
            alternatives=losers(choices),
            reason="; ".join(filter(None, (f"{tracked.incident.cause}: {choices[0].why}", _why(tracked.level, tracked, self.attempts(tracked))))),
        )

    def _live(self, tracked: TrackedIncident) -> PlanRequest | None:
        """An elastic job: the planner weighs what the job did by itself against what goes beyond it."""
        choice = self.live.decide(tracked)
        if choice is None and self.clock.now() < self.review.settles_at(tracked):
            self.recorder.move(tracked, IncidentPhase.SETTLING, due=self.review.settles_at(tracked))
            return None
        if choice is None or choice.action == "nothing":
            self.goes_on(tracked, choice)
            return None
        tracked.level = choice.action
        return self.live.request(tracked, choice, self.attempts(tracked))

    def goes_on(self, tracked: TrackedIncident, choice: LiveDecision | None) -> None:
        """Nothing is done beyond what the job did: written down with all that could have been."""
        verification = self.state.verifications.get(tracked.incident.id)
        plan = verification.plan if verification is not None else None
        if choice is not None and plan is not None and not plan.alternatives:
            reason = f"{plan.reason}; {choice.how}"
            self.recorder.save_plan(msgspec.structs.replace(plan, alternatives=choice.alternatives, cost=choice.cost, benefit=choice.benefit, reason=reason))
        if verification is not None:
            self.recorder.move(tracked, IncidentPhase.VERIFYING)
        elif tracked.escalation.cost_weighed:
            self._leave(tracked, choice.how if choice is not None else "its throughput is not known yet")
        elif tracked.state is IncidentState.CONTAINED and tracked.judged[0] in ("", "healed"):
            self.recorder.move(tracked, IncidentPhase.ENDED, state=IncidentState.HEALED)  # judged while it was being weighed
        elif tracked.state is IncidentState.CONTAINED:
            self.give_up(tracked, f"the job's own repair is not known to have helped ({tracked.judged[1]}), and nothing beyond it is worth its cost")
        else:
            self.recorder.move(tracked, IncidentPhase.SETTLING, due=self.clock.now() + self.settings.replan_s)

    def _leave(self, tracked: TrackedIncident, why: str) -> None:
        """Doing nothing is cheapest at present; weighed again as long as the fault lasts."""
        log.info("incident %s: doing nothing is cheapest: %s", tracked.incident.id, why)
        self.recorder.move(tracked, IncidentPhase.SETTLING, due=self.clock.now() + self.settings.replan_s)

    # --- whether -------------------------------------------------------------------------------------------------

    def _same(self, tracked: TrackedIncident, plan: Plan) -> Plan:
        """The plan that is held, if it is still the right one and has not expired."""
        held = tracked.plan
        if tracked.phase is IncidentPhase.HELD and held is not None:
            if held.digest == plan.digest and held.expires > self.clock.now():
                return held
            why = f"planned anew as {plan.id}: " + ("expired" if held.digest == plan.digest else "action or targets differ")
            self.recorder.record_plan(held, "stale", why)
        return plan

    def _ask(self, tracked: TrackedIncident, plan: Plan) -> None:
        """All guards are asked; the strictest verdict counts."""
        situation = self.review.situation(tracked, plan)
        fresh = tracked.plan is not plan
        tracked.plan, tracked.refused_by = plan, ""
        if fresh:
            self.recorder.save_plan(plan)
        verdicts = self.review.review(plan, situation)
        refusals = [verdict for verdict in verdicts if isinstance(verdict, Refuse)]
        holds = [verdict for verdict in verdicts if isinstance(verdict, Hold)]
        if self.settings.mode is Mode.OBSERVE:
            self._park(tracked, plan, "recommended")
        elif refusals:
            tracked.refused_by = refusals[0].guard
            self._park(tracked, plan, "refused", f"{refusals[0].guard}: {refusals[0].reason}")
        elif holds:
            seconds = min((hold.seconds for hold in holds if hold.seconds > 0), default=RECHECK_S)
            self.recorder.move(tracked, IncidentPhase.HELD, due=self.clock.now() + min(seconds, RECHECK_S))
            if all(hold.seconds == 0 for hold in holds) and tracked.asked != plan.id:
                tracked.asked = plan.id
                self.notify(tracked, f"plan {plan.id} ({plan.action}) waits for approval: eagle-eye approve {plan.id}")
        else:
            self.begin(tracked, plan)

    def _park(self, tracked: TrackedIncident, plan: Plan, state: str, reason: str = "") -> None:
        self.notify(tracked, f"plan {plan.id} ({plan.action}) is {state}{': ' + reason if reason else ''}")
        if tracked.escalation.isolates:  # that a restart has helped does not mend a broken part
            self.recorder.move(tracked, IncidentPhase.NEEDS_OPERATOR)
        elif tracked.incident.id in self.state.verifications:
            self.recorder.move(tracked, IncidentPhase.VERIFYING)
        elif tracked.incident.active:
            self.recorder.move(tracked, IncidentPhase.NEEDS_OPERATOR)
        else:  # it is over, and nobody will tell that again
            state = IncidentState.HEALED if tracked.judged[0] == "healed" else IncidentState.CLOSED
            self.recorder.move(tracked, IncidentPhase.ENDED, state=state)

    def remember(self, tracked: TrackedIncident, plan: Plan, *, failed: bool) -> None:
        """The attempt counts from now on."""
        bad = self.state.job(tracked.job).bad_step(tracked.incident) if plan.action == "roll_back" else -1
        now = self.clock.now()
        self.state.history.attempt(attempt_of(plan, tracked.incident, now, level=tracked.level, failed=failed, step=bad))


def _why(level: str, tracked: TrackedIncident, attempts: list[Attempt]) -> str:
    """What speaks for a rank swap, and what its result says; '' where the cause says enough."""
    cause = tracked.incident.cause
    if level == SWAP:
        return f"{cause}: exchanged ranks show whether it follows the rank (the program or its data) or stays with the node"
    swapped = next((attempt.swap for attempt in reversed(attempts) if attempt.swap and attempt.incident != tracked.incident.id), ())
    if level == "evict_node" and swapped:
        return f"{cause} stayed on its node when {' and '.join(swapped)} exchanged their ranks: it is the node's"
    return ""
