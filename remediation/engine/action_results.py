"""What follows when an action has ended: its verification, another attempt, a new plan, or the next stronger repair."""

from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.types import IncidentState, Plan, Progress
from remediation.policy.affected_nodes import isolated

from .action_undo import ActionUndo, begins_to_give_back
from .decision_recorder import DecisionRecorder
from .engine_state import EngineState
from .execution import ActionReport, Execution
from .incident_phase import IncidentPhase
from .pending_verifications import PendingVerifications
from .repair_planner import SOON_S, RepairPlanner
from .self_healing import SelfHealing, answer_to
from .tracked_incident import CallOff, TrackedIncident


@dataclass(slots=True, kw_only=True)
class ActionResults:
    """Called by the incident loop with the reports of the execution."""

    state: EngineState
    recorder: DecisionRecorder
    execution: Execution
    clock: Clock
    planner: RepairPlanner
    verifications: PendingVerifications
    self_healing: SelfHealing
    action_undo: ActionUndo

    def reported(self, tracked: TrackedIncident, report: ActionReport) -> None:
        """An action of the incident has ended, well or not."""
        plan, evidence = report.plan, report.plan.action in tracked.escalation.evidence
        if report.ending == "stopped":  # this leader lost its lease on the way, and has it again
            self.recorder.move(tracked, IncidentPhase.RETRYING, due=self.clock.now())
        elif report.ending == "done" and not evidence:
            self._verify(tracked, plan, report.progress, self.clock.now())
        elif tracked.call_off is not None:
            self._ended_meanwhile(tracked, report, tracked.call_off)
        elif report.ending == "called off":
            self._called_off(tracked, report)
        elif evidence:
            self._evidence(tracked, report)
        elif report.ending == "stale":
            self._stale(tracked, plan, report.detail)
        elif report.ending == "retry" and self.clock.now() + report.delay < plan.expires:
            self.recorder.move(tracked, IncidentPhase.RETRYING, due=self.clock.now() + report.delay)
        else:
            self.recorder.record_plan(plan, "failed", report.detail, report.progress)
            self._failed(tracked, plan, unanswered=report.ending == "retry")

    def too_late(self, report: ActionReport) -> None:
        """The job ended while the action was under way."""
        if report.ending != "done":
            self.action_undo.abandon(report.plan, unanswered=report.ending == "retry")
        self.recorder.record_plan(report.plan, "done" if report.ending == "done" else "stale", report.detail or "the job ended", report.progress)

    def _verify(self, tracked: TrackedIncident, plan: Plan, progress: tuple[Progress, ...], began: float) -> None:
        tracked.plan, tracked.call_off = None, None
        self.verifications.begin(tracked, plan, progress, began=began)

    def _cordon(self, plan: Plan, job: str) -> None:
        """The nodes that it evicted are out, but whoever evicted them did not come to write it down."""
        for node in () if plan.own else isolated(plan):
            self.recorder.ledger.cordon(node, job, plan.id, self.clock.now(), plan.reason)

    def _ended_meanwhile(self, tracked: TrackedIncident, report: ActionReport, call_off: CallOff) -> None:
        """The incident ended while its action was under way. A command that was carried out before that is verified."""
        plan, job = report.plan, self.state.job(tracked.job)
        if job.layout is not None and job.layout.plan == plan.id:
            self._verify(tracked, plan, report.progress, job.layout.time)
            return
        ended = report.ending == "done"
        if not ended:
            self.action_undo.abandon(plan, unanswered=report.ending == "retry")
        self.recorder.record_plan(plan, "done" if ended else "stale", "" if ended else f"called off: {call_off.why}", report.progress)
        tracked.plan, tracked.call_off = None, None
        self.recorder.move(tracked, IncidentPhase.ENDED, state=call_off.state)

    def _called_off(self, tracked: TrackedIncident, report: ActionReport) -> None:
        """What the plan rested on is no longer so, but the incident is still open: it is planned anew."""
        job, why = self.state.job(tracked.job), f"called off: {report.detail}"
        if job.epoch > report.plan.target_of(tracked.job).epoch:
            self._stale(tracked, report.plan, why)
            return
        self.action_undo.abandon(report.plan)
        self.recorder.record_plan(report.plan, "stale", why, report.progress)
        tracked.plan = None
        self.recorder.move(tracked, IncidentPhase.SETTLING, due=self.clock.now() + SOON_S)

    def _evidence(self, tracked: TrackedIncident, report: ActionReport) -> None:
        """Evidence is worth little: whether it could be had or not, the repair goes on."""
        done = report.ending == "done"
        plan = report.plan
        self.recorder.record_plan(plan, "done" if done else "failed", report.detail, report.progress)
        tracked.plan = None
        tracked.evidence_kept.add(plan.action)
        self.recorder.move(tracked, IncidentPhase.SETTLING)
        begun = answer_to(tracked, self.state.job(tracked.job))
        if begun is not None:
            self.self_healing.contained(tracked, begun)
        else:
            self.planner.propose(tracked)

    def _stale(self, tracked: TrackedIncident, plan: Plan, why: str) -> None:
        """The epoch that the plan was made for is over: it is never carried out, but planned anew."""
        job = self.state.job(tracked.job)
        if job.layout is not None and job.layout.plan == plan.id:
            self._cordon(plan, tracked.job)
            self._verify(tracked, plan, (), job.layout.time)
            return
        self.action_undo.abandon(plan)
        self.recorder.record_plan(plan, "stale", why)
        tracked.plan = None
        tracked.epoch = plan.target_of(tracked.job).epoch
        tracked.stale_layout.again(plan.target_of(tracked.job).basis, self.clock.now())
        begun = answer_to(tracked, job)
        if begun is not None:
            self.self_healing.contained(tracked, begun)
        elif tracked.incident.active or tracked.escalation.lasting:
            if not tracked.escalation.ended_by_epoch:
                tracked.epoch += 1  # plan anew only once the newer epoch's layout is here
            self.recorder.move(tracked, IncidentPhase.SETTLING, due=self.clock.now() + SOON_S)
        else:
            self.recorder.move(tracked, IncidentPhase.ENDED, state=IncidentState.CLOSED)

    def _failed(self, tracked: TrackedIncident, plan: Plan, *, unanswered: bool = False) -> None:
        """Refused or expired: the job's own restart becomes a matter of mode and guards, else the next repair."""
        tracked.plan = None
        if plan.action == "resize":  # the job goes on as it is, and others get back what they gave
            self.action_undo.abandon(plan, unanswered=unanswered)
            self.planner.remember(tracked, plan, failed=True)
            self.planner.goes_on(tracked, None)
            return
        if plan.own and plan.action == "restart_worker" and tracked.restart_permitted:
            tracked.restart_permitted = False
        else:
            self.planner.remember(tracked, plan, failed=True)
        self.planner.propose(tracked)

    def retry(self, tracked: TrackedIncident, plan: Plan, now: float) -> None:
        job = self.state.job(tracked.job)
        if now >= plan.expires:
            self.recorder.record_plan(plan, "failed", "expired before it could be carried out")
            self._failed(tracked, plan, unanswered=True)
        elif begins_to_give_back(self.recorder.ledger.progress(plan.id)):
            self.recorder.record_plan(plan, "failed", "the leader changed while what was given was given back")
            self._failed(tracked, plan, unanswered=True)
        elif job.current is None or any(self.execution.busy(target.job) for target in plan.targets):
            self.recorder.move(tracked, IncidentPhase.RETRYING, due=now + SOON_S)
        elif job.epoch > plan.target_of(tracked.job).epoch and not job.began_by(plan.id):
            self._stale(tracked, plan, f"the job is at epoch {job.epoch} already")
        else:
            self.recorder.move(tracked, IncidentPhase.EXECUTING)
            self.execution.begin(plan)
