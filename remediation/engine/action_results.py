"""What follows when an action has ended: a trial, another try, a new plan, or the next stronger repair."""

from dataclasses import dataclass

from eagle_eye.types import IncidentState, Plan

from .engine_state import EngineState
from .execution import ActionReport
from .planning_loop import SOON_S, PlanningLoop
from .self_healing import SelfHealing, answer_to
from .tracked_incident import IncidentPhase, TrackedIncident
from .verifier import Verifier


@dataclass(slots=True)
class ActionResults:
    """Takes the reports of the execution."""

    desk: EngineState
    proposals: PlanningLoop
    judging: Verifier
    containment: SelfHealing

    def reported(self, case: TrackedIncident, report: ActionReport) -> None:
        desk, plan = self.desk, report.plan
        if plan.action in case.treatment.evidence:
            self._evidence(case, report)
        elif report.ending == "done":
            case.plan = None
            self.judging.begin(case, plan, report.progress, began=desk.clock.now())
        elif report.ending == "stale":
            self._stale(case, plan, report.detail)
        elif report.ending == "retry" and desk.clock.now() + report.delay < plan.expires:
            desk.move(case, IncidentPhase.RETRYING, due=desk.clock.now() + report.delay)
        elif report.ending != "stopped":
            desk.note_plan(plan, "failed", report.detail, report.progress)
            self._failed(case, plan)

    def _evidence(self, case: TrackedIncident, report: ActionReport) -> None:
        """Evidence is worth little: whether it could be had or not, the repair goes on."""
        if report.ending == "stopped":
            return
        done = report.ending == "done"
        plan = report.plan
        self.desk.note_plan(plan, "done" if done else "failed", report.detail, report.progress)
        case.plan = None
        case.prepared.add(plan.action)
        self.desk.move(case, IncidentPhase.SETTLING)
        begun = answer_to(case, self.desk.job(case.job))
        if begun is not None:
            self.containment.contained(case, begun)
        else:
            self.proposals.propose(case)

    def _stale(self, case: TrackedIncident, plan: Plan, why: str) -> None:
        """The epoch that the plan was made for is over: it is never carried out, but planned anew."""
        desk = self.desk
        job = desk.job(case.job)
        if job.layout is not None and job.layout.plan == plan.id:
            case.plan = None
            self.judging.begin(case, plan, (), began=job.layout.time)
            return
        desk.note_plan(plan, "stale", why)
        case.plan = None
        case.epoch = plan.target_of(case.job).epoch
        case.outdated.again(plan.target_of(case.job).basis, desk.clock.now())
        begun = answer_to(case, job)
        if begun is not None:
            self.containment.contained(case, begun)
        elif case.incident.active or case.treatment.lasting:
            if not case.treatment.epoch_cures:
                case.epoch += 1  # plan anew only once the newer epoch's layout is here
            desk.move(case, IncidentPhase.SETTLING, due=desk.clock.now() + SOON_S)
        else:
            desk.move(case, IncidentPhase.ENDED, state=IncidentState.CLOSED)

    def _failed(self, case: TrackedIncident, plan: Plan) -> None:
        """Refused or expired: the job's own restart becomes a matter of mode and guards, else the next repair."""
        case.plan = None
        if plan.action == "resize":  # the job goes on as it is, and nobody has given anything
            self.proposals.remember(case, plan, failed=True)
            self.proposals.goes_on(case, None)
            return
        if plan.own and plan.action == "restart_worker" and case.alone:
            case.alone = False
        else:
            self.proposals.remember(case, plan, failed=True)
        self.proposals.propose(case)

    def retry(self, case: TrackedIncident, plan: Plan, now: float) -> None:
        desk = self.desk
        job = desk.job(case.job)
        if now >= plan.expires:
            desk.note_plan(plan, "failed", "expired before it could be carried out")
            self._failed(case, plan)
        elif job.current is None or any(desk.execution.busy(target.job) for target in plan.targets):
            desk.move(case, IncidentPhase.RETRYING, due=now + SOON_S)
        elif job.epoch > plan.target_of(case.job).epoch:
            self._stale(case, plan, f"the job is at epoch {job.epoch} already")
        else:
            desk.move(case, IncidentPhase.RUNNING)
            desk.execution.begin(plan)
