"""What follows when an action has ended: a trial, another try, a new plan, or the next stronger repair."""

from dataclasses import dataclass

from eagle_eye.types import IncidentState, Plan

from .engine_state import EngineState
from .execution import ActionReport
from .incident_phase import IncidentPhase
from .repair_planner import SOON_S, RepairPlanner
from .self_healing import SelfHealing, answer_to
from .tracked_incident import TrackedIncident
from .verifier import Verifier


@dataclass(slots=True)
class ActionResults:
    """Takes the reports of the execution."""

    desk: EngineState
    planner: RepairPlanner
    verifier: Verifier
    self_healing: SelfHealing

    def reported(self, tracked: TrackedIncident, report: ActionReport) -> None:
        desk, plan = self.desk, report.plan
        if plan.action in tracked.escalation.evidence:
            self._evidence(tracked, report)
        elif report.ending == "done":
            tracked.plan = None
            self.verifier.begin(tracked, plan, report.progress, began=desk.clock.now())
        elif report.ending == "stale":
            self._stale(tracked, plan, report.detail)
        elif report.ending == "retry" and desk.clock.now() + report.delay < plan.expires:
            desk.move(tracked, IncidentPhase.RETRYING, due=desk.clock.now() + report.delay)
        elif report.ending != "stopped":
            desk.record_plan(plan, "failed", report.detail, report.progress)
            self._failed(tracked, plan)

    def _evidence(self, tracked: TrackedIncident, report: ActionReport) -> None:
        """Evidence is worth little: whether it could be had or not, the repair goes on."""
        if report.ending == "stopped":
            return
        done = report.ending == "done"
        plan = report.plan
        self.desk.record_plan(plan, "done" if done else "failed", report.detail, report.progress)
        tracked.plan = None
        tracked.evidence_kept.add(plan.action)
        self.desk.move(tracked, IncidentPhase.SETTLING)
        begun = answer_to(tracked, self.desk.job(tracked.job))
        if begun is not None:
            self.self_healing.contained(tracked, begun)
        else:
            self.planner.propose(tracked)

    def _stale(self, tracked: TrackedIncident, plan: Plan, why: str) -> None:
        """The epoch that the plan was made for is over: it is never carried out, but planned anew."""
        desk = self.desk
        job = desk.job(tracked.job)
        if job.layout is not None and job.layout.plan == plan.id:
            tracked.plan = None
            self.verifier.begin(tracked, plan, (), began=job.layout.time)
            return
        desk.record_plan(plan, "stale", why)
        tracked.plan = None
        tracked.epoch = plan.target_of(tracked.job).epoch
        tracked.stale_layout.again(plan.target_of(tracked.job).basis, desk.clock.now())
        begun = answer_to(tracked, job)
        if begun is not None:
            self.self_healing.contained(tracked, begun)
        elif tracked.incident.active or tracked.escalation.lasting:
            if not tracked.escalation.ended_by_epoch:
                tracked.epoch += 1  # plan anew only once the newer epoch's layout is here
            desk.move(tracked, IncidentPhase.SETTLING, due=desk.clock.now() + SOON_S)
        else:
            desk.move(tracked, IncidentPhase.ENDED, state=IncidentState.CLOSED)

    def _failed(self, tracked: TrackedIncident, plan: Plan) -> None:
        """Refused or expired: the job's own restart becomes a matter of mode and guards, else the next repair."""
        tracked.plan = None
        if plan.action == "resize":  # the job goes on as it is, and nobody has given anything
            self.planner.remember(tracked, plan, failed=True)
            self.planner.goes_on(tracked, None)
            return
        if plan.own and plan.action == "restart_worker" and tracked.alone:
            tracked.alone = False
        else:
            self.planner.remember(tracked, plan, failed=True)
        self.planner.propose(tracked)

    def retry(self, tracked: TrackedIncident, plan: Plan, now: float) -> None:
        desk = self.desk
        job = desk.job(tracked.job)
        if now >= plan.expires:
            desk.record_plan(plan, "failed", "expired before it could be carried out")
            self._failed(tracked, plan)
        elif job.current is None or any(desk.execution.busy(target.job) for target in plan.targets):
            desk.move(tracked, IncidentPhase.RETRYING, due=now + SOON_S)
        elif job.epoch > plan.target_of(tracked.job).epoch:
            self._stale(tracked, plan, f"the job is at epoch {job.epoch} already")
        else:
            desk.move(tracked, IncidentPhase.EXECUTING)
            desk.execution.begin(plan)
