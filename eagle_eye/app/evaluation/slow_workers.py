"""Who is told to be slow from the compute times of a job's workers: by our detectors, and by NVIDIA's rule over the same steps."""

from typing import NamedTuple

import numpy as np

from detectors.fail_slow import FailSlow
from detectors.straggler import Straggler
from eagle_eye.types import Doubles, Layout

from .figures import Figure
from .job_steps import frames_of, told

ACCUSING = frozenset({"worker.slow", "worker.slower"})
NVRX_SCORE = 0.75
"""NVIDIA's Resiliency Extension 0.7 (`reporting.py`): median of the fastest rank / median of the own one below this is a straggler."""


class WorkerTimes(NamedTuple):
    """What was read of one job."""

    compute_s: Doubles
    """Steps × workers."""
    layout: Layout
    tokens: bool
    """All batches are known to be of one size."""


def accused(job: WorkerTimes) -> dict[int, int]:
    """Worker's index → step in which it was accused first."""
    found: dict[int, int] = {}
    for detector in (FailSlow(), Straggler()):
        for name, step in told(detector, frames_of(job.compute_s, job.layout, tokens=job.tokens), ACCUSING).items():
            index = job.layout.workers.index(name)
            found[index] = min(step, found.get(index, step))
    return found


def accused_by_nvrx(compute_s: Doubles, window: int) -> set[int]:
    """Whom that rule accuses in any window of so many steps."""
    found: set[int] = set()
    for end in range(min(window, len(compute_s)), len(compute_s) + 1):
        medians = np.median(compute_s[max(0, end - window) : end], axis=0)
        found |= set(np.flatnonzero(medians.min() / medians < NVRX_SCORE).tolist())
    return found


def figure_of(words: str, job: WorkerTimes, expected: set[int] | None, onset: tuple[int, int], window: int) -> Figure:
    """One row. `onset`: between these steps it must be found; `expected` None: nobody knows the truth."""
    found, peer = accused(job), accused_by_nvrx(job.compute_s, window)
    figure = ", ".join(f"worker {index} in step {step}" for index, step in sorted(found.items())) or "nobody accused"
    others = f"NVRx's rule: {', '.join(map(str, sorted(peer))) or 'nobody'}"
    if expected is None:
        return Figure(what=words, figure=figure, others=others)
    goal = ", ".join(f"worker {index} in steps {onset[0]} to {onset[1]}" for index in sorted(expected)) or "nobody accused"
    met = found.keys() == expected and all(onset[0] <= step <= onset[1] for step in found.values())
    return Figure(what=words, figure=figure, goal=goal, met=met, others=others)
