"""Verification of every action that was carried out: begun when it ends, looked at in each tick, its result recorded."""

from dataclasses import dataclass, field

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.types import IncidentState, Outcome, Plan, Progress
from remediation.policy.affected_nodes import isolated
from remediation.policy.attempt_history import attempt_of
from remediation.policy.downtime_model import RESTARTS, regroups
from remediation.policy.engine_settings import EngineSettings
from remediation.policy.escalation import moved, same_fault
from remediation.policy.prediction import predict

from .action_undo import ActionUndo
from .decision_recorder import DecisionRecorder
from .engine_state import EngineState
from .incident_phase import IncidentPhase, Verified
from .job_state import JobState
from .tracked_incident import TrackedIncident
from .verification import Verification, VerificationResult


@dataclass(slots=True, kw_only=True)
class PendingVerifications:
    """The incident loop goes on with each result (`judge`)."""

    state: EngineState
    recorder: DecisionRecorder
    clock: Clock
    settings: EngineSettings
    action_undo: ActionUndo
    _short: dict[str, tuple[Outcome, float]] = field(default_factory=dict)
    """Job → the outcome (and the time of its incident) whose sub-healthy time goes on."""

    def begin(self, tracked: TrackedIncident, plan: Plan, progress: tuple[Progress, ...], *, began: float, patience: float = 0.0) -> None:
        """The action is done; now steps and throughput must come back. The verification of a weaker action ends undecided.

        `patience`: time from which it is waited for them, where that is later than what the stream has told."""
        job = self.state.job(tracked.job)
        older = self.state.verifications.pop(tracked.incident.id, None)
        if older is not None:
            self.recorder.record_outcome(older.outcome(job, "done", began, f"followed by {plan.action} before it was verified"))
        bad = job.bad_step(tracked.incident) if plan.action == "roll_back" else -1
        verification = Verification(
            plan=plan,
            incident=tracked.incident.id,
            began=began,
            since=tracked.incident.since,
            opened=tracked.opened,
            patience=max(job.stream_time, patience),
            cause=tracked.incident.cause,
            culprits=tracked.culprits,
            cost_weighed=tracked.escalation.cost_weighed,
            bad_step=bad,
            predicted=self._predicted(plan, tracked, bad),
            progress=progress,
        )
        self.state.verifications[tracked.incident.id] = verification
        tracked.judged = "", ""
        self.state.history.attempt(attempt_of(plan, tracked.incident, began, level=tracked.level, step=bad))
        self.recorder.move(tracked, IncidentPhase.VERIFYING, state=IncidentState.CONTAINED)

    def judge(self, tracked: TrackedIncident, verification: Verification) -> Verified | None:
        """The result, if it is known now. Another fault of the same job stops the clock, and so does its back-off: that downtime is not due to
        this action."""
        job = self.state.job(tracked.job)
        if self._disturbed(tracked) or job.backs_off():
            verification.patience = max(verification.patience, job.stream_time)
        result, why = verification.judge(job, self.settings)
        if result == "healed" and tracked.incident.active and self._moved(tracked, verification, tracked):
            result, why = "failed", f"the fault moved to {_named(tracked)}"
        return self._end(tracked, verification, result, why) if result is not None else None

    def came_back(self, tracked: TrackedIncident) -> None:
        """The same fault, there or elsewhere, is reported as a new incident while an action against it is under verification: it did not help."""
        for verification in list(self.state.verifications.values()):
            other = self.state.incidents[verification.incident]
            same = same_fault(other.incident.cause, other.culprits, tracked.incident.cause, tracked.culprits)
            if other is tracked or other.job != tracked.job or tracked.incident.since <= verification.began:
                continue
            if same or self._moved(other, verification, tracked):
                why = "it came back" if same else f"the fault moved to {_named(tracked)},"
                self.recorder.move(other, IncidentPhase.ENDED, state=IncidentState.FAILED)
                self._end(other, verification, "failed", f"{why} as incident {tracked.incident.id}")

    def follow_short(self, job: JobState) -> None:
        """While a job runs on fewer workers than it had, the cost of the last outcome grows; it is recorded when that is over."""
        short = self._short.get(job.name)
        if short is None or not (job.at_full_size or job.over):
            return
        outcome, opened = self._short.pop(job.name)
        lost = job.lost_gpu_seconds(opened, self.clock.now())
        self.recorder.record_outcome(msgspec.structs.replace(outcome, sub_healthy_s=lost))

    # --- inside --------------------------------------------------------------------------------------------------

    @staticmethod
    def _moved(acted_on: TrackedIncident, verification: Verification, reported: TrackedIncident) -> bool:
        """Another death, or another broken part, is one more; but not where a node was evicted for the first."""
        escalation = acted_on.escalation
        tried_elsewhere = bool(isolated(verification.plan) or verification.plan.targets[0].swap)
        comparable = escalation.inferred or (tried_elsewhere and not escalation.isolates)
        return comparable and moved(verification.cause, verification.culprits, reported.incident.cause, reported.culprits)

    def _disturbed(self, tracked: TrackedIncident) -> bool:
        later = [other for other in self.state.incidents_of(tracked.job) if other is not tracked and other.opened > tracked.opened]
        return any(
            other.phase in (IncidentPhase.SELF_HEALING, IncidentPhase.EXECUTING, IncidentPhase.RETRYING)
            or (other.phase is IncidentPhase.SETTLING and other.escalation.ended_by_epoch)
            for other in later
        )

    def _predicted(self, plan: Plan, tracked: TrackedIncident, bad: int) -> dict[str, float]:
        """As it was recorded before the action; what a job did to itself is predicted when it is reported."""
        before = next((outcome for outcome in self.state.history.outcomes() if outcome.plan == plan.id and outcome.predicted), None)
        if before is not None:
            return dict(before.predicted)
        return predict(plan, self.state.job(tracked.job), self.settings, since=tracked.incident.since, bad_step=bad)

    def _end(self, tracked: TrackedIncident, verification: Verification, result: VerificationResult, why: str) -> Verified:
        job, now = self.state.job(tracked.job), self.clock.now()
        self.state.verifications.pop(verification.incident, None)
        healed, failed = result == "healed", result == "failed"
        breaker = self.action_undo.breaker(tracked, verification, why) if failed else None
        undone = self.action_undo.undo(tracked, verification) if failed else ""
        detail = "; ".join(part for part in (why, undone) if part)
        outcome = verification.outcome(job, "done" if healed else "failed", now, detail, last=self.settings.verify_steps + 1)
        self.state.history.judged(verification.plan.id, now, failed=failed)
        self.recorder.record_outcome(outcome)
        if not healed:
            job.discard_epoch(job.epoch, verification.began)
        restarted = verification.plan.action in RESTARTS and not regroups(verification.plan.action, verification.plan.target_of(job.name).workers, job)
        if healed and restarted and "downtime_s" in outcome.actual:
            job.downtimes.append(outcome.actual["downtime_s"])
        if healed and not job.at_full_size:
            self._short[job.name] = (outcome, verification.opened)
        if breaker is not None:
            self.action_undo.notify_of_breaker(tracked, verification, breaker, detail)
        return Verified(verification, result, why, breaker_opened=breaker is not None)


def _named(tracked: TrackedIncident) -> str:
    return ", ".join(sorted(tracked.culprits))
