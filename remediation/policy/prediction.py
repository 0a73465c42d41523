"""What an action is expected to lead to: recorded before it is done, and compared with what came of it."""

import math
from statistics import median

from eagle_eye.types import Plan
from remediation.engine.job_state import JobState

from .downtime_model import RESTARTS, redone_seconds, regroups, repair_downtime
from .engine_settings import EngineSettings

PATIENCE = 2.0
"""An action is given so many times as long as it is expected to take."""
LOSSES = 64
"""Steps before the fault whose losses make the band."""
FEWEST_LOSSES = 8
BAND_DEVIATIONS = 6.0
BAND_SHARE = 0.1
"""The band is at least so much of its middle wide: a loss that hardly moves has no deviation to speak of."""
MAD_TO_DEVIATION = 1.4826
"""Median absolute deviation of a normal distribution → its standard deviation."""


def predict(plan: Plan, job: JobState, policy: EngineSettings, *, since: float, bad_step: int = -1) -> dict[str, float]:
    """Name → number, with what is not known left out.

    throughput_per_s, downtime_s (of a restart, or of a regrouping in its place), redone_s (steps since the checkpoint), verify_s (by then it must have helped), loss and loss_high (middle and
    upper border of the band before `since`, when the fault began), bad_step (first step whose loss was no number).
    """
    workers, target = _workers_left(plan, job), plan.target_of(job.name)
    predicted = {
        "throughput_per_s": job.expected(workers),
        "downtime_s": repair_downtime(plan.action, target.workers, job, policy),
        "redone_s": redone_seconds(plan.action, target.workers, job, resume_step=target.resume_step) if plan.action in RESTARTS else math.nan,
        "verify_s": _verify_s(plan, job, policy, workers),
        "bad_step": float(bad_step) if bad_step >= 0 else math.nan,
        **_loss_band(job, since),
    }
    return {name: value for name, value in predicted.items() if math.isfinite(value)}


def _workers_left(plan: Plan, job: JobState) -> int:
    target = plan.target_of(job.name)
    if target.workers_per_node and job.demand is not None:
        return sum({**job.demand.workers_per_node, **target.workers_per_node}.values())
    return sum(place.node not in target.exclude for place in job.layout.placements) if job.layout is not None else 0


def _verify_s(plan: Plan, job: JobState, policy: EngineSettings, workers: int) -> float:
    """Long enough to stand still, to do again what was lost, and to show some new steps; never below the policy's."""
    step_s = job.step_seconds(workers)
    if plan.action not in RESTARTS or not math.isfinite(step_s):
        return policy.verify_s
    named = plan.target_of(job.name).workers
    again = 0 if regroups(plan.action, named, job) else job.steps_since_checkpoint(plan.target_of(job.name).resume_step)
    steps = again + policy.verify_steps + 1
    return max(policy.verify_s, PATIENCE * (repair_downtime(plan.action, named, job, policy) + steps * step_s))


def _loss_band(job: JobState, since: float) -> dict[str, float]:
    losses = job.losses(until=since)[-LOSSES:]
    if len(losses) < FEWEST_LOSSES:
        return {}
    middle = median(losses)
    deviation = MAD_TO_DEVIATION * median(abs(loss - middle) for loss in losses)
    return {"loss": middle, "loss_high": middle + max(BAND_DEVIATIONS * deviation, BAND_SHARE * abs(middle))}
