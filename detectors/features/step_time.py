"""Time per phase of a step and worker, and the iteration time of a step."""

import numpy as np

from eagle_eye.types import Floats, Step

PAUSES = ("data_s", "evaluation_s", "checkpoint_s")
"""Parts of a step that say nothing about how fast the job computes."""


def phase(step: Step, name: str) -> Floats:
    """Seconds of one phase per worker; 0 where a worker that reported the step spent none in it, else NaN."""
    reported = step.values.get("step_s")
    if reported is None:
        return np.full(len(step.workers), np.nan, dtype=np.float32)
    spent = step.values.get(name)
    spent_s: Floats = np.zeros(len(reported), dtype=np.float32) if spent is None else np.where(np.isfinite(spent), spent, np.float32(0.0))
    spent_s[np.isnan(reported)] = np.nan
    return spent_s


def own_time(step: Step) -> Floats:
    """Seconds per worker without the pauses of that worker itself."""
    reported = step.values.get("step_s")
    if reported is None:
        return np.full(len(step.workers), np.nan, dtype=np.float32)
    paused = np.sum([phase(step, name) for name in PAUSES], axis=0)
    own: Floats = np.maximum(reported - paused, 0.0).astype(np.float32)
    return own


def iteration_time(step: Step) -> float:
    """Seconds that the step took the job, without pauses; NaN if no worker reported the step.

    The workers of a step wait for one another: while one evaluates, the others' steps grow by that wait. So the
    shortest of their own times is the one that holds nobody's pause.
    """
    own = own_time(step)
    return float(np.nanmin(own)) if np.isfinite(own).any() else float("nan")
