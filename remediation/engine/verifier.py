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

    def begin(self, case: TrackedIncident, plan: Plan, progress: tuple[Progress, ...], *, began: float) -> None:
        """The action is done; now steps and throughput must come back. A weaker one's trial ends undecided."""
        job = self.desk.job(case.job)
        older = self.desk.trials.pop(case.incident.id, None)
        if older is not None:
            self.desk.note(older.outcome(job, "done", began, f"followed by {plan.action} before it was judged"))
        bad = job.bad_step(case.incident) if plan.action == "roll_back" else -1
        trial = Verification(
            plan=plan,
            incident=case.incident.id,
            began=began,
            since=case.incident.since,
            opened=case.opened,
            patience=job.seen,
            weighed=case.treatment.weighed,
            bad_step=bad,
            predicted=self._predicted(plan, case, bad),
            progress=progress,
        )
        self.desk.trials[case.incident.id] = trial
        self.desk.memory.attempt(attempt_of(plan, case.incident, began, rung=case.rung, step=bad))
        self.desk.move(case, IncidentPhase.TRYING, state=IncidentState.CONTAINED)

    def judge(self) -> None:
        """Look at every trial. Another fault of the same job stops the clock: its standstill is not this action's."""
        for trial in list(self.desk.trials.values()):
            case = self.desk.cases[trial.incident]
            job = self.desk.job(case.job)
            if self._disturbed(case):
                trial.patience = max(trial.patience, job.seen)
            verdict, why = trial.judge(job, self.desk.policy)
            if verdict is not None:
                self._end(case, trial, verdict, why)

    def came_back(self, case: TrackedIncident) -> None:
        """The same fault is reported anew while what was done against it is being judged: it did not help."""
        for trial in list(self.desk.trials.values()):
            other = self.desk.cases[trial.incident]
            same = same_fault(other.incident.cause, other.culprits, case.incident.cause, case.culprits)
            if other is not case and other.job == case.job and same and case.incident.since > trial.began:
                self.desk.move(other, IncidentPhase.ENDED, state=IncidentState.FAILED)
                self._end(other, trial, "failed", f"it came back as incident {case.incident.id}")

    def follow_short(self, job: JobState) -> None:
        """While a job runs on fewer workers than it had, the last outcome's bill grows; it is written when it ends."""
        short = self._short.get(job.name)
        if short is None or not (job.whole or job.over):
            return
        outcome, opened = self._short.pop(job.name)
        lost = job.lost(opened, self.desk.clock.now())
        self.desk.note(msgspec.structs.replace(outcome, sub_healthy_s=lost))

    # --- inside --------------------------------------------------------------------------------------------------

    def _disturbed(self, case: TrackedIncident) -> bool:
        later = [other for other in self.desk.cases_of(case.job) if other is not case and other.opened > case.opened]
        return any(
            other.phase in (IncidentPhase.CONTAINED_BY_JOB, IncidentPhase.RUNNING, IncidentPhase.RETRYING)
            or (other.phase is IncidentPhase.SETTLING and other.treatment.epoch_cures)
            for other in later
        )

    def _predicted(self, plan: Plan, case: TrackedIncident, bad: int) -> dict[str, float]:
        """As it was written down before the action; what a job did to itself is predicted when it is heard of."""
        before = next((outcome for outcome in self.desk.memory.outcomes() if outcome.plan == plan.id and outcome.predicted), None)
        if before is not None:
            return dict(before.predicted)
        return predict(plan, self.desk.job(case.job), self.desk.policy, since=case.incident.since, bad_step=bad)

    def _end(self, case: TrackedIncident, trial: Verification, verdict: VerificationResult, why: str) -> None:
        job, now = self.desk.job(case.job), self.desk.clock.now()
        self.desk.trials.pop(trial.incident, None)
        healed, failed = verdict == "healed", verdict == "failed"
        breaker = self.recourse.breaker(case, trial, why) if failed else None
        undone = self.recourse.undo(case, trial) if failed else ""
        words = "; ".join(word for word in (why, undone) if word)
        outcome = trial.outcome(job, "done" if healed else "failed", now, words, last=self.desk.policy.verify_steps + 1)
        self.desk.memory.judged(trial.plan.id, now, failed=failed)
        self.desk.note(outcome)
        if not healed:
            job.spoil(job.epoch, trial.began)
        restarted = trial.plan.action in RESTARTS and not regroups(trial.plan.action, trial.plan.target_of(job.name).workers, job)
        if healed and restarted and outcome.transition_s is not None:
            job.downtimes.append(outcome.transition_s)
        if healed and not job.whole:
            self._short[job.name] = (outcome, trial.opened)
        if breaker is not None:
            self.recourse.tell(case, trial, breaker, words)
        if case.phase is IncidentPhase.TRYING:
            self._go_on(case, trial, verdict, why, stopped=breaker is not None)

    def _go_on(self, case: TrackedIncident, trial: Verification, verdict: VerificationResult, why: str, *, stopped: bool) -> None:
        """`stopped`: a breaker has opened, and a person was told."""
        if verdict == "healed":
            self.desk.move(case, IncidentPhase.ENDED, state=IncidentState.HEALED)
            self.notify(case, f"healed by {trial.plan.action}: {why}")
        elif verdict == "failed" and not stopped:
            self.escalate(case)
        else:
            self.desk.move(case, IncidentPhase.PARKED, state=IncidentState.FAILED)
            if not stopped:
                self.notify(case, why)
