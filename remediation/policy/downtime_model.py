"""Downtime of a repair: a restart stops all workers of a job, an elastic job only regroups.

Measured on the job itself where it was, else the policy's constants. A restart of all workers also does the steps since the
newest checkpoint again. Unicron's D_transition (section 5): recomputation is no part of it where the state lives on in other
workers and finished micro-batches are kept (section 6).
"""

import math
from collections.abc import Collection
from statistics import median

from remediation.engine.job_state import JobState

from .engine_settings import EngineSettings

RESTARTS = frozenset({"restart_worker", "evict_node", "roll_back"})


def restart_downtime(job: JobState, policy: EngineSettings) -> float:
    """Seconds from a fault to the first step after a restart of this job: what it took so far."""
    return sorted(job.downtimes)[len(job.downtimes) // 2] if job.downtimes else policy.downtime_s


def regroups(action: str, named: Collection[str], job: JobState) -> bool:
    """Whether the job's other workers live through the repair; `named`: the workers that it is about.

    The coordinator does so for an elastic job that may heal in place, unless the repair is about all of them.
    """
    if job.demand is None or not job.heal.startswith("in-place"):
        return False
    others = job.layout is not None and any(worker not in named for worker in job.layout.workers)
    return action == "evict_node" or (action == "restart_worker" and bool(named) and others)


def repair_downtime(action: str, named: Collection[str], job: JobState, policy: EngineSettings) -> float:
    """Seconds in which no worker of the job trains because of the repair; NaN for one that stops none."""
    if action not in RESTARTS:
        return math.nan
    if not regroups(action, named, job):
        return restart_downtime(job, policy)
    once = median(job.regroup_times) if job.regroup_times else policy.regroup_s
    return 2 * once if action == "restart_worker" else once  # without them, and with those that take their place


def redone_seconds(action: str, named: Collection[str], job: JobState, *, resume_step: int = -1) -> float:
    """Seconds of work that a repair throws away: the steps since the checkpoint from which all workers begin again."""
    if action not in RESTARTS or regroups(action, named, job):
        return 0.0
    return job.seconds_since_checkpoint(resume_step)


def gpu_seconds_starting(action: str, named: Collection[str], job: JobState, policy: EngineSettings) -> float:
    """GPU-seconds in which the places of restarted workers are empty while the others work."""
    if action != "restart_worker" or not regroups(action, named, job):
        return 0.0
    return len(named) * (median(job.join_times) if job.join_times else policy.start_s)


def gpu_seconds_unworked(action: str, named: Collection[str], job: JobState, policy: EngineSettings, *, resume_step: int = -1) -> float:
    """GPU-seconds that a repair costs at once, with the work that is done again; 0 for one that stops no worker."""
    seconds = repair_downtime(action, named, job, policy)
    if math.isnan(seconds) or job.layout is None:
        return 0.0
    seconds += redone_seconds(action, named, job, resume_step=resume_step)
    return seconds * len(job.layout.placements) + gpu_seconds_starting(action, named, job, policy)
