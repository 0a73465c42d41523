"""One verification: whether an action helped, by the steps, the throughput and the loss that follow it. Run by pending_verifications.py."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from eagle_eye.types import Outcome, Plan, Progress, SnapshotStep
from remediation.policy.downtime_model import RESTARTS, regroups
from remediation.policy.engine_settings import EngineSettings
from remediation.policy.prediction import PATIENCE

from .job_state import JobState

VerificationResult = Literal["healed", "failed", "unknown"]
KEPT = 16
"""Steps after an action over which its loss is recorded."""
DRIFT = 0.05
"""By so much the throughput that an action is judged by may differ from the predicted one before both are named."""


@dataclass(slots=True, kw_only=True)
class Verification:
    """One action that was carried out and whose effect is not known yet."""

    plan: Plan
    incident: str
    began: float
    """When the action was done."""
    since: float
    """When the fault began."""
    opened: float
    """When the incident was opened."""
    patience: float
    """Time from which the job's silence counts against the action; another fault of the job moves it on."""
    cause: str = ""
    culprits: frozenset[str] = frozenset()
    """Of the incident when the action began."""
    cost_weighed: bool = False
    """The fault was a slow-down: without throughput it is not healed, and a stronger repair follows. After any other
    fault a missing throughput is another matter, for which no node is evicted."""
    bad_step: int = -1
    """First step whose loss was no number, of a roll-back."""
    predicted: Mapping[str, float]
    """As it was recorded before the action: remediation/policy/prediction.py."""
    progress: tuple[Progress, ...] = ()

    @property
    def in_place(self) -> bool:
        """The same processes go on, in the same epoch."""
        return self.plan.action == "reattempt"

    def undone(self, job: JobState) -> bool:
        """The workers that the action started, or let go on, were ended since: nothing is seen of it before the job is restarted."""
        return job.spent and (self.in_place or job.spent_epoch > self.plan.target_of(job.name).epoch)

    def counted(self, job: JobState) -> list[SnapshotStep]:
        """Steps after the action, those that are done again among them."""
        epoch = self.plan.target_of(job.name).epoch
        if self.in_place:
            return [step for step in job.steps if step.end > self.began]
        return [step for step in job.steps if step.epoch > epoch]

    def new(self, job: JobState) -> list[SnapshotStep]:
        """Steps after the action that had never been committed before."""
        counted = self.counted(job)
        if self.bad_step >= 0:
            return [step for step in counted if step.number >= self.bad_step]
        kept = set(counted)
        floor = max((step.number for step in job.steps if step not in kept), default=-1)
        return [step for step in counted if step.number > floor]

    def judge(self, job: JobState, policy: EngineSettings) -> tuple[VerificationResult | None, str]:
        """The verdict and why; None: wait. Time is the stream's, so that nothing is judged while it is away."""
        counted = self.counted(job)
        bad = next((step.number for step in counted if not step.finite), None) if self.bad_step >= 0 else None
        if bad is not None and bad < self.bad_step + policy.verify_steps:
            return "failed", f"the loss is no number again at step {bad}"
        healthy, why = self._throughput(job, counted, policy)
        enough = len(self.new(job)) >= policy.verify_steps
        astray = self._astray(job, policy) if enough else ""
        if enough and healthy and not astray:
            return "healed", why
        limit = self.predicted.get("verify_s", policy.verify_s)
        if enough and healthy:
            return self._out_of_time(job, limit, astray, "failed" if self.bad_step >= 0 else "unknown")
        if healthy:
            why = f"{len(self.new(job))} of {policy.verify_steps} new steps within {limit:g} s"
        if self._moves(job, counted):
            slow_alone = enough and not self.cost_weighed
            return self._out_of_time(job, limit, why, "unknown" if slow_alone else "failed")
        if not job.steps:  # a script that marks none: a new fault, or the same again, would have been found by now
            return self._out_of_time(job, policy.verify_s, f"the workers have run for {policy.verify_s:g} s without a fault; the script marks no steps", "healed")
        still = policy.reattempt_s if self.in_place else max(policy.verify_s, PATIENCE * self.predicted.get("downtime_s", 0.0))
        return self._out_of_time(job, still, f"no step within {still:g} s")

    def _moves(self, job: JobState, counted: list[SnapshotStep]) -> bool:
        resumed = any(job.resumed.get(worker, 0.0) > self.began for worker in self.plan.target_of(job.name).workers)
        return bool(counted) or (self.in_place and resumed)

    def _throughput(self, job: JobState, counted: list[SnapshotStep], policy: EngineSettings) -> tuple[bool, str]:
        if not counted:
            return False, "no step yet"
        workers, forecast = counted[-1].workers, self.predicted.get("throughput_per_s", math.nan)
        expected = job.expected(workers)
        if math.isnan(expected):  # a new leader has measured nothing yet
            expected = forecast
        if self.plan.action == "rebalance":  # a straggler stays slow: what even shares would bring is not to be had
            expected = min(expected, self.predicted.get("throughput_per_s", math.inf))
        throughput = job.throughput(policy.verify_steps + 1, epoch=counted[-1].epoch, after=self.began if self.in_place else 0.0)
        if not expected > 0.0:
            return True, "steps are back; no earlier throughput is known to compare with"
        if math.isnan(throughput):
            return False, "too few steps to measure the throughput"
        share = throughput / expected
        helped = share >= policy.throughput_share
        percent = round(100 * share) if helped else math.floor(100 * share)  # what is too little is never rounded up to enough
        why = f"{percent}% of " + (f"what {workers} workers did before" if job.rates.get(workers) else f"the throughput expected of {workers} workers")
        if forecast > 0.0 and abs(expected - forecast) > DRIFT * forecast:  # what the job does in health has changed since the action was planned
            why += f", {throughput / forecast:.0%} of what was predicted"
        return helped, why if helped else f"{why}: {policy.throughput_share:.0%} is needed"

    def _astray(self, job: JobState, policy: EngineSettings) -> str:
        """Why the loss is not back in the band that it had before; '' if it is, or is not reported."""
        loss, high = self._loss(job, policy.verify_steps), self.predicted.get("loss_high", math.inf)
        return f"the loss is {loss:.4g}, above the {high:.4g} that it reached before" if loss > high else ""

    def _loss(self, job: JobState, last: int) -> float:
        """Median over the last new steps; NaN if the script reports none."""
        losses = [step.loss for step in self.new(job)[-last:] if step.loss is not None]
        return median(losses) if losses else math.nan

    def _out_of_time(
        self, job: JobState, limit: float, why: str, verdict: VerificationResult = "failed"
    ) -> tuple[VerificationResult | None, str]:
        if job.stream_time - max(self.patience, self.began) <= limit:
            return None, why
        if not job.reported_since(self.began):
            late = job.stream_time > self.plan.expires
            return ("unknown" if late else None), "a node of the job sends no telemetry: the action cannot be verified"
        return verdict, why

    def outcome(self, job: JobState, state: Literal["done", "failed"], time: float, detail: str, *, last: int = KEPT) -> Outcome:
        """What became of the plan, with its costs; transition_s is None while no new step is committed. `last`: steps whose throughput is recorded."""
        first = min((step.end for step in self.new(job)), default=None)
        transition = None if first is None else max(0.0, first - self.opened)
        counted = self.counted(job)
        throughput = job.throughput(last, epoch=counted[-1].epoch, after=self.began if self.in_place else 0.0) if counted else math.nan
        detection, lost = max(0.0, self.opened - self.since), job.lost_gpu_seconds(self.opened, max(time, self.opened))
        full = max((count for _, count in job.sizes), default=0)
        bill = ((detection + (transition or 0.0)) * full + lost) / 3600.0
        actual = {
            "downtime_s": self._stood(job, transition),
            "redone_s": self._redone(job),
            "throughput_per_s": throughput,
            "verify_s": max(0.0, job.stream_time - self.began),
            "loss": self._loss(job, KEPT),
            "bill_gpu_hours": bill,
        }
        return Outcome(
            plan=self.plan.id,
            incident=self.incident,
            action=self.plan.action,
            state=state,
            time=time,
            progress=self.progress,
            detection_s=detection,
            transition_s=transition,
            sub_healthy_s=lost,
            predicted=dict(self.predicted),
            actual={name: value for name, value in actual.items() if value is not None and math.isfinite(value)},
            detail=detail,
        )

    def _stood(self, job: JobState, transition: float | None) -> float | None:
        """Seconds without a worker at work, as `downtime_s` was predicted. Elastic workers worked until their epoch ended; what
        others do again after a restart is work, and told apart."""
        counted = self.counted(job)
        if not counted or self.in_place:
            return transition
        earlier = [step.end for step in job.steps if step.end < counted[0].end]
        regrouped = earlier and regroups(self.plan.action, self.plan.target_of(job.name).workers, job)
        if not regrouped and self.plan.action not in RESTARTS:
            return transition
        step_s = job.step_seconds(counted[0].workers)
        stopped = max(earlier) if regrouped else self.opened
        return max(0.0, counted[0].end - stopped - (step_s if math.isfinite(step_s) else 0.0))

    def _redone(self, job: JobState) -> float | None:
        """Seconds from the first step after a restart to the first that had never been done."""
        counted, new = self.counted(job), self.new(job)
        return new[0].end - counted[0].end if new and counted and self.plan.action in RESTARTS else None
