"""The engine's loop over its incidents: (phase of the incident, fact) → one handler, which calls the service that acts.

HANDLERS, at the end, is the whole state machine; which phase may follow which is in incident_phase.py, a drawing in
docs/architecture.md. A pair without a handler changes nothing. The caller (Engine) holds the engine's lock.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from eagle_eye.clock import Clock
from eagle_eye.ledger import Ledger
from eagle_eye.types import Event, Incident, IncidentState, Plan
from remediation.live.live_planner import LivePlanner
from remediation.policy.affected_nodes import isolated
from remediation.policy.downtime_model import RESTARTS
from remediation.policy.engine_settings import EngineSettings

from .action_results import ActionResults
from .debounce import Debounce
from .decision_recorder import DecisionRecorder
from .engine_state import EngineState
from .guard_review import GuardReview
from .handler_failures import HandlingFailures
from .incident_phase import (
    ActionEnded,
    BudgetExhausted,
    Due,
    IncidentFact,
    IncidentPhase,
    JobEnded,
    JobEpochStarted,
    Revised,
    Verified,
    Withdrawn,
)
from .job_state import JobState
from .pending_verifications import PendingVerifications
from .repair_planner import RepairPlanner
from .self_healing import SelfHealing, answer_to, fault_epoch
from .tracked_incident import CallOff, TrackedIncident
from .verification import Verification

OVER = (IncidentState.HEALED, IncidentState.FAILED, IncidentState.CLOSED)


@dataclass(slots=True, kw_only=True)
class IncidentLoop:
    """Takes facts about incidents, one at a time, and has the services act on them."""

    state: EngineState
    recorder: DecisionRecorder
    review: GuardReview
    ledger: Ledger
    clock: Clock
    settings: EngineSettings
    planner: RepairPlanner
    verifications: PendingVerifications
    self_healing: SelfHealing
    results: ActionResults
    live: LivePlanner
    notify: Callable[[TrackedIncident, str], Plan]
    """Tells the operator, and returns the plan under which that is recorded."""
    failures: HandlingFailures

    # --- facts -----------------------------------------------------------------------------------------------------

    def handle(self, tracked: TrackedIncident, fact: IncidentFact) -> None:
        """What the incident's phase does with a fact."""
        handler = HANDLERS[tracked.phase].get(type(fact))
        if handler is not None:
            handler(self, tracked, fact)

    def contain(self, tracked: TrackedIncident, fact: IncidentFact) -> None:
        """As `handle`; what goes wrong with one incident is told, and it is looked at again later, while the others go on."""
        self._contain(tracked, lambda: self.handle(tracked, fact), once=not isinstance(fact, Due))

    def tick(self) -> None:
        """Look at every incident whose time may have come, then at every action under verification."""
        for tracked in list(self.state.incidents.values()):
            self.contain(tracked, Due())
        for verification in list(self.state.verifications.values()):
            tracked = self.state.incidents[verification.incident]
            self._contain(tracked, partial(self._judge, tracked, verification))

    def _judge(self, tracked: TrackedIncident, verification: Verification) -> None:
        verified = self.verifications.judge(tracked, verification)
        if verified is not None:
            self.handle(tracked, verified)

    def _contain(self, tracked: TrackedIncident, work: Callable[[], None], *, once: bool = False) -> None:
        wrong = self.failures.contain(f"incident {tracked.incident.id}", work, once=once)
        if wrong:
            with suppress(Exception):  # boundary: what it fails of may be what it is told of
                self.notify(tracked, f"it cannot be handled ({wrong}): look at the log of the server")

    def receive(self, incident: Incident) -> None:
        """A new incident, or a revision of a known one, from diagnosis."""
        tracked = self.state.incidents.get(incident.id)
        if tracked is None:
            self._open(incident)
        else:
            self._revise(tracked, incident)

    def receive_event(self, event: Event, job: JobState) -> None:
        """A new epoch, an exhausted budget or the end of a job: facts about each of its open incidents; the last one also about those that wait
        for an operator."""
        fact = _fact_of(event)
        told = self.state.incidents_of(job.name)
        if isinstance(fact, JobEnded):
            self.ledger.forget_job(job.name)  # the next leader need not wait for the job's launchers
            told = [tracked for tracked in self.state.incidents.values() if tracked.job == job.name]
        for tracked in told:
            self.contain(tracked, fact)

    # --- incidents -------------------------------------------------------------------------------------------------

    def _open(self, incident: Incident) -> None:
        job = self.state.job(incident.job)
        tracked = TrackedIncident(
            incident=incident,
            state=IncidentState.OPEN,
            phase=IncidentPhase.SETTLING,
            opened=incident.time,
            settling=Debounce.of(incident, self.clock.now()),
            epoch=fault_epoch(incident, job),
        )
        known = self.ledger.incident_record(incident.id)
        if known is not None and known.state in OVER:
            tracked.phase, tracked.state = IncidentPhase.ENDED, known.state  # of the leader before; diagnosis has not closed it yet
        self.ledger.save_incident(incident, tracked.state)
        self.state.track(tracked)
        if tracked.phase is IncidentPhase.ENDED:
            if not incident.active:
                self.live.incident_closed(tracked)
            return
        if incident.active or tracked.escalation.self_healed:  # over at first sight: its epoch was read together with the death
            self.verifications.came_back(tracked)
            self._begin(tracked)
        else:
            self._close(tracked)
            if incident.culprits:
                self.notify(tracked, "it was over when it was found: no action is taken")

    def _revise(self, tracked: TrackedIncident, incident: Incident) -> None:
        changed = tracked.settling.revise(incident, self.clock.now())
        absorbed = not incident.active and bool(tracked.incident.culprits) and not incident.culprits
        recurred = incident.since > self.state.history.last_on(incident.id)
        tracked.incident = incident
        self.ledger.save_incident(incident, tracked.state)
        if incident.active:
            healed = tracked.call_off is not None and tracked.call_off.state is IncidentState.HEALED
            if recurred or not healed:  # one more line of evidence does not undo that it is healed
                tracked.call_off = None
            self.handle(tracked, Revised(changed, recurred))
        else:
            self.live.incident_closed(tracked)
            self.handle(tracked, Withdrawn(absorbed))

    def _begin(self, tracked: TrackedIncident) -> None:
        """The first response to an incident: what may follow its first finding is done at once."""
        job, escalation = self.state.job(tracked.job), tracked.escalation
        tracked.doubted = None
        if not escalation.only_informs:
            job.discard_since(tracked.incident.since)
        answer = answer_to(tracked, job)
        if escalation.only_informs:
            self._inform(tracked)
        elif answer is not None:
            self.self_healing.contained(tracked, answer)
        elif escalation.self_healed and job.spent:
            self._budget_exhausted(tracked, BudgetExhausted())
        elif escalation.self_healed:
            self.recorder.move(tracked, IncidentPhase.SELF_HEALING, due=job.stream_time + self.settings.self_healing_s)
        elif escalation.stops_job:
            self.planner.propose(tracked)
        else:
            self.recorder.move(tracked, IncidentPhase.SETTLING, due=self.review.settles_at(tracked))

    def _inform(self, tracked: TrackedIncident) -> None:
        """An unknown cause, or one that no repair helps against: the operator is notified, nothing is acted on."""
        self.recorder.move(tracked, IncidentPhase.NEEDS_OPERATOR)
        plan = self.notify(tracked, f"no action is taken: {tracked.escalation.remedy or 'no repair is known for this cause'}")
        self.recorder.save_plan(plan)
        self.recorder.record_plan(plan, "done", "no action is taken")

    def _close(self, tracked: TrackedIncident) -> None:
        self.recorder.move(tracked, IncidentPhase.ENDED, state=IncidentState.CLOSED)

    # --- handlers: Due -----------------------------------------------------------------------------------------------

    def _self_healing_due(self, tracked: TrackedIncident, _fact: Due) -> None:
        job = self.state.job(tracked.job)
        if job.stream_time > tracked.due and not self.self_healing.is_delayed(tracked, job):
            self.self_healing.overdue(tracked)

    def _plan_due(self, tracked: TrackedIncident, _fact: Due) -> None:
        if self.clock.now() >= tracked.due:
            self.planner.propose(tracked)

    def _retry_due(self, tracked: TrackedIncident, _fact: Due) -> None:
        now = self.clock.now()
        if now >= tracked.due and tracked.plan is not None:
            self.results.retry(tracked, tracked.plan, now)

    # --- handlers: Revised, Withdrawn ----------------------------------------------------------------------------------

    def _reopen(self, tracked: TrackedIncident, fact: Revised) -> None:
        """The fault is reported again after it was healed, or what it really was is known only now."""
        if tracked.state is IncidentState.HEALED and fact.recurred:
            self.recorder.move(tracked, IncidentPhase.SETTLING, state=IncidentState.OPEN)
            self._look_again(tracked)
        elif tracked.state is IncidentState.HEALED and fact.changed:
            named = ", ".join(str(culprit.entity) for culprit in tracked.incident.culprits) or "nobody"
            self.notify(tracked, f"the job is healed, and the cause is known now: {tracked.incident.cause}, {named}")

    def _begin_again(self, tracked: TrackedIncident, fact: Revised) -> None:
        """Eagle Eye had given up: another cause, the same one again, or an end of the doubt for which it had, is a new reason to look."""
        if fact.recurred:
            self._look_again(tracked)
        elif fact.changed:
            self._begin(tracked)
        elif self.planner.may_resume(tracked):
            tracked.resumed += 1
            tracked.settling = Debounce.of(tracked.incident, self.clock.now())  # the evidence has to last for as long as a new one's
            self._begin(tracked)

    def _look_again(self, tracked: TrackedIncident) -> None:
        """A new fault in an incident that was answered before: what answered the earlier one has not healed this one."""
        tracked.epoch = fault_epoch(tracked.incident, self.state.job(tracked.job))
        self._begin(tracked)

    def _withdraw(self, tracked: TrackedIncident, fact: Withdrawn) -> None:
        """A broken part stays broken when all is quiet; what another incident explains is not repaired twice."""
        if fact.absorbed or not tracked.escalation.lasting:
            self._close(tracked)

    def _withdraw_plan(self, tracked: TrackedIncident, fact: Withdrawn) -> None:
        if fact.absorbed or not tracked.escalation.lasting:
            self._drop_plan(tracked, "the incident was over before the plan was carried out")
        self._withdraw(tracked, fact)

    def _withdraw_running(self, tracked: TrackedIncident, fact: Withdrawn) -> None:
        """What was sent is sent; what was not is called off."""
        if fact.absorbed or not tracked.escalation.lasting:
            why = "another incident explains it" if fact.absorbed else "no finding of its incident is active any more"
            tracked.call_off = CallOff(why, IncidentState.CLOSED)

    def _drop_plan(self, tracked: TrackedIncident, why: str) -> None:
        """The plan that is held, or that is to be tried again, is called off."""
        if tracked.plan is not None:
            if tracked.phase is IncidentPhase.RETRYING:
                self.results.action_undo.abandon(tracked.plan, unanswered=True)
            self.recorder.record_plan(tracked.plan, "stale", f"called off: {why}")
            tracked.plan = None

    def _withdraw_absorbed(self, tracked: TrackedIncident, fact: Withdrawn) -> None:
        """The job's coordinator is healing it: that is verified even when no finding is active any more."""
        if fact.absorbed:
            self._close(tracked)

    def _close_withdrawn(self, tracked: TrackedIncident, _fact: Withdrawn) -> None:
        self._close(tracked)

    # --- handlers: what the job did ------------------------------------------------------------------------------------

    def _epoch_started(self, tracked: TrackedIncident, _fact: JobEpochStarted) -> None:
        self.self_healing.epoch_started(tracked, self.state.job(tracked.job))

    def _own_epoch_started(self, tracked: TrackedIncident, _fact: JobEpochStarted) -> None:
        """The plan's own epoch, whose reply was lost, or one that made the plan needless."""
        job, plan = self.state.job(tracked.job), tracked.plan
        if plan is not None and job.began_by(plan.id) and isolated(plan):
            self.recorder.move(tracked, IncidentPhase.RETRYING, due=self.clock.now())  # its cordons are still to be written
        elif plan is not None and job.began_by(plan.id):
            tracked.plan = None
            self.verifications.begin(tracked, plan, (), began=job.started_epochs[-1].time)
        else:
            self.self_healing.epoch_started(tracked, job)

    def _budget_exhausted(self, tracked: TrackedIncident, _fact: BudgetExhausted) -> None:
        tracked.restart_permitted = False
        self.recorder.move(tracked, IncidentPhase.SETTLING, due=self.review.settles_at(tracked))

    def _job_ended(self, tracked: TrackedIncident, fact: JobEnded) -> None:
        finished = fact.event.name == "job.finished"
        verification = self.state.verifications.pop(tracked.incident.id, None)
        if verification is not None:
            why = f"{fact.event.name} came before it could be verified"
            self.recorder.record_outcome(verification.outcome(self.state.job(tracked.job), "done" if finished else "failed", self.clock.now(), why))
        if tracked.phase in (IncidentPhase.HELD, IncidentPhase.RETRYING):
            self._drop_plan(tracked, "the job ended")
        self.recorder.move(tracked, IncidentPhase.ENDED, state=IncidentState.CLOSED if finished else IncidentState.FAILED)

    def _parked_job_ended(self, tracked: TrackedIncident, fact: JobEnded) -> None:
        """Nobody needs the operator's word any more; what had failed has."""
        if tracked.state is IncidentState.FAILED:
            self.recorder.move(tracked, IncidentPhase.ENDED)
        else:
            self._job_ended(tracked, fact)

    # --- handlers: what our action did -----------------------------------------------------------------------------------

    def _action_ended(self, tracked: TrackedIncident, fact: ActionEnded) -> None:
        self.results.reported(tracked, fact.report)

    def _action_ended_too_late(self, _tracked: TrackedIncident, fact: ActionEnded) -> None:
        self.results.too_late(fact.report)

    def _healed_before_the_plan(self, tracked: TrackedIncident, fact: Verified) -> None:
        """What was done before has helped, while something stronger is planned or about to run: that is called off."""
        tracked.judged = fact.result, fact.why
        if fact.result != "healed" or self._needed_in_health(tracked):
            return
        why = f"its incident is healed by {fact.verification.plan.action}: {fact.why}"
        if tracked.phase is IncidentPhase.EXECUTING:
            tracked.call_off = CallOff(why, IncidentState.HEALED)
            return
        self._drop_plan(tracked, why)
        self._verified(tracked, fact)

    def _needed_in_health(self, tracked: TrackedIncident) -> bool:
        """A broken part is evicted though the job runs again; an elastic job that lacks a worker may still be given one."""
        if tracked.escalation.isolates:
            return True
        restarts = tracked.plan is not None and tracked.plan.action in RESTARTS
        return not restarts and self.live.applies_to(tracked, self.planner.attempts(tracked))

    def _verified(self, tracked: TrackedIncident, fact: Verified) -> None:
        """Healed, or the next stronger repair, or the operator's turn."""
        if fact.result == "healed":
            self.recorder.move(tracked, IncidentPhase.ENDED, state=IncidentState.HEALED)
            self.notify(tracked, f"healed by {fact.verification.plan.action}: {fact.why}{_remedy(fact.verification.plan)}")
        elif fact.result == "failed" and not fact.breaker_opened:
            self.planner.propose(tracked)
        else:
            self.recorder.move(tracked, IncidentPhase.NEEDS_OPERATOR, state=IncidentState.FAILED)
            if not fact.breaker_opened:
                self.notify(tracked, fact.why)


def _remedy(plan: Plan) -> str:
    """How the operator lets evicted nodes take part again."""
    nodes = isolated(plan)
    return f"; {', '.join(nodes)} evicted: release it with: eagle-eye release {nodes[0]}" if nodes else ""


def _fact_of(event: Event) -> IncidentFact:
    """`event`: one that JobState.update returns."""
    if event.name in ("job.finished", "job.failed"):
        return JobEnded(event)
    return BudgetExhausted() if event.name == "budget.exhausted" else JobEpochStarted()


FactHandler = Callable[[IncidentLoop, TrackedIncident, Any], None]

HANDLERS: Mapping[IncidentPhase, Mapping[type[IncidentFact], FactHandler]] = {
    IncidentPhase.SELF_HEALING: {
        Due: IncidentLoop._self_healing_due,
        Withdrawn: IncidentLoop._withdraw_absorbed,
        JobEpochStarted: IncidentLoop._epoch_started,
        BudgetExhausted: IncidentLoop._budget_exhausted,
        JobEnded: IncidentLoop._job_ended,
    },
    IncidentPhase.SETTLING: {
        Due: IncidentLoop._plan_due,
        Withdrawn: IncidentLoop._withdraw,
        Verified: IncidentLoop._healed_before_the_plan,
        JobEpochStarted: IncidentLoop._epoch_started,
        JobEnded: IncidentLoop._job_ended,
    },
    IncidentPhase.HELD: {
        Due: IncidentLoop._plan_due,
        Withdrawn: IncidentLoop._withdraw_plan,
        Verified: IncidentLoop._healed_before_the_plan,
        JobEpochStarted: IncidentLoop._epoch_started,
        JobEnded: IncidentLoop._job_ended,
    },
    IncidentPhase.RETRYING: {
        Due: IncidentLoop._retry_due,
        Withdrawn: IncidentLoop._withdraw_plan,
        Verified: IncidentLoop._healed_before_the_plan,
        JobEpochStarted: IncidentLoop._own_epoch_started,
        JobEnded: IncidentLoop._job_ended,
    },
    IncidentPhase.EXECUTING: {
        ActionEnded: IncidentLoop._action_ended,
        Withdrawn: IncidentLoop._withdraw_running,
        Verified: IncidentLoop._healed_before_the_plan,
        JobEnded: IncidentLoop._job_ended,
    },
    IncidentPhase.VERIFYING: {
        Verified: IncidentLoop._verified,
        JobEnded: IncidentLoop._job_ended,
    },
    IncidentPhase.NEEDS_OPERATOR: {
        Revised: IncidentLoop._begin_again,
        Withdrawn: IncidentLoop._close_withdrawn,
        JobEnded: IncidentLoop._parked_job_ended,
    },
    IncidentPhase.ENDED: {
        Revised: IncidentLoop._reopen,
        ActionEnded: IncidentLoop._action_ended_too_late,
    },
}
"""The state machine: phase → fact → handler."""
