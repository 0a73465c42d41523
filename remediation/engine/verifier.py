"""Begins, follows and ends the trials of what was done."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from eagle_eye.types import IncidentState, Outcome, Plan, Progress
from remediation.policy.attempt_history import attempt_of
from remediation.policy.downtime_model import RESTARTS, regroups
from remediation.policy.escalation import same_fault
from remediation.policy.prediction import predict

from .engine_state import EngineState
from .job_state import JobState
from .rollback import Rollback
from .tracked_incident import IncidentPhase, TrackedIncident
from .verification import Verification, VerificationResult


@dataclass(slots=True)
class Verifier:
    """`escalate`: the next stronger repair, where an action did not help and its breaker stays closed."""

    desk: EngineState
    recourse: Rollback
    escalate: Callable[[TrackedIncident], None]
    notify: Callable[[TrackedIncident, str], object]
    _short: dict[str, tuple[Outcome, float]] = field(default_factory=dict)
    """Job → the outcome (and the time of its incident) whose sub-healthy time goes on."""

    def begin(self, tracked: TrackedIncident, plan: Plan, progress: tuple[Progress, ...], *, began: float) -> None:
        """The action is done; now steps and throughput must come back. A weaker one's trial ends undecided."""
        job = self.desk.job(tracked.job)
        older = self.desk.verifications.pop(tracked.incident.id, None)
        if older is not None:
            self.desk.note(older.outcome(job, "done", began, f"followed by {plan.action} before it was judged"))
        bad = job.bad_step(tracked.incident) if plan.action == "roll_back" else -1
        trial = Verification(
            plan=plan,
            incident=tracked.incident.id,
            began=began,
            since=tracked.incident.since,
            opened=tracked.opened,
            patience=job.stream_time,
            cost_weighed=tracked.escalation.cost_weighed,
            bad_step=bad,
            predicted=self._predicted(plan, tracked, bad),
            progress=progress,
        )
        self.desk.verifications[tracked.incident.id] = trial
        self.desk.memory.attempt(attempt_of(plan, tracked.incident, began, level=tracked.level, step=bad))
        self.desk.move(tracked, IncidentPhase.TRYING, state=IncidentState.CONTAINED)

    def judge(self) -> None:
        """Look at every trial. Another fault of the same job stops the clock: its standstill is not this action's."""
        for trial in list(self.desk.verifications.values()):
            tracked = self.desk.incidents[trial.incident]
            job = self.desk.job(tracked.job)
            if self._disturbed(tracked):
                trial.patience = max(trial.patience, job.stream_time)
            verdict, why = trial.judge(job, self.desk.policy)
            if verdict is not None:
                self._end(tracked, trial, verdict, why)

    def came_back(self, tracked: TrackedIncident) -> None:
        """The same fault is reported anew while what was done against it is being judged: it did not help."""
        for trial in list(self.desk.verifications.values()):
            other = self.desk.incidents[trial.incident]
            same = same_fault(other.incident.cause, other.culprits, tracked.incident.cause, tracked.culprits)
            if other is not tracked and other.job == tracked.job and same and tracked.incident.since > trial.began:
                self.desk.move(other, IncidentPhase.ENDED, state=IncidentState.FAILED)
                self._end(other, trial, "failed", f"it came back as incident {tracked.incident.id}")

    def follow_short(self, job: JobState) -> None:
        """While a job runs on fewer workers than it had, the last outcome's bill grows; it is written when it ends."""
        short = self._short.get(job.name)
        if short is None or not (job.at_full_size or job.over):
            return
        outcome, opened = self._short.pop(job.name)
        lost = job.lost_gpu_seconds(opened, self.desk.clock.now())
        self.desk.note(msgspec.structs.replace(outcome, sub_healthy_s=lost))

    # --- inside --------------------------------------------------------------------------------------------------

    def _disturbed(self, tracked: TrackedIncident) -> bool:
        later = [other for other in self.desk.incidents_of(tracked.job) if other is not tracked and other.opened > tracked.opened]
        return any(
            other.phase in (IncidentPhase.CONTAINED_BY_JOB, IncidentPhase.RUNNING, IncidentPhase.RETRYING)
            or (other.phase is IncidentPhase.SETTLING and other.escalation.ended_by_epoch)
            for other in later
        )

    def _predicted(self, plan: Plan, tracked: TrackedIncident, bad: int) -> dict[str, float]:
        """As it was written down before the action; what a job did to itself is predicted when it is heard of."""
        before = next((outcome for outcome in self.desk.memory.outcomes() if outcome.plan == plan.id and outcome.predicted), None)
        if before is not None:
            return dict(before.predicted)
        return predict(plan, self.desk.job(tracked.job), self.desk.policy, since=tracked.incident.since, bad_step=bad)

    def _end(self, tracked: TrackedIncident, trial: Verification, verdict: VerificationResult, why: str) -> None:
        job, now = self.desk.job(tracked.job), self.desk.clock.now()
        self.desk.verifications.pop(trial.incident, None)
        healed, failed = verdict == "healed", verdict == "failed"
        breaker = self.recourse.breaker(tracked, trial, why) if failed else None
        undone = self.recourse.undo(tracked, trial) if failed else ""
        words = "; ".join(word for word in (why, undone) if word)
        outcome = trial.outcome(job, "done" if healed else "failed", now, words, last=self.desk.policy.verify_steps + 1)
        self.desk.memory.judged(trial.plan.id, now, failed=failed)
        self.desk.note(outcome)
        if not healed:
            job.discard_epoch(job.epoch, trial.began)
        restarted = trial.plan.action in RESTARTS and not regroups(trial.plan.action, trial.plan.target_of(job.name).workers, job)
        if healed and restarted and outcome.transition_s is not None:
            job.downtimes.append(outcome.transition_s)
        if healed and not job.at_full_size:
            self._short[job.name] = (outcome, trial.opened)
        if breaker is not None:
            self.recourse.tell(tracked, trial, breaker, words)
        if tracked.phase is IncidentPhase.TRYING:
            self._go_on(tracked, trial, verdict, why, stopped=breaker is not None)

    def _go_on(self, tracked: TrackedIncident, trial: Verification, verdict: VerificationResult, why: str, *, stopped: bool) -> None:
        """`stopped`: a breaker has opened, and a person was told."""
        if verdict == "healed":
            self.desk.move(tracked, IncidentPhase.ENDED, state=IncidentState.HEALED)
            self.notify(tracked, f"healed by {trial.plan.action}: {why}")
        elif verdict == "failed" and not stopped:
            self.escalate(tracked)
        else:
            self.desk.move(tracked, IncidentPhase.PARKED, state=IncidentState.FAILED)
            if not stopped:
                self.notify(tracked, why)
