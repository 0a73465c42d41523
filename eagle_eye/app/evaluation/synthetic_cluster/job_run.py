"""The frames of one planned job, step by step: nothing is kept but the step that is made."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.types import Doubles, Event, Floats, Step

from .cluster_jobs import BEGAN
from .scenarios import JobStep, PlannedJob, healthy_loss

NOISE, COMMON_NOISE = 0.02, 0.01
"""Of a worker's compute time, and of all in a step."""
TOKENS = 4096.0
QUIET_TICKS = 8
"""Ticks of a second after the end of a job that has failed."""


class RunFrame(NamedTuple):
    """One tick, as it is judged and as it is written."""

    frame: Frame
    values: dict[str, Floats]
    """Name → one number for each worker; empty for a tick without a step."""
    events: tuple[Event, ...]
    begins: bool = False
    """What happens to the job begins in it."""


def run_frames(job: PlannedJob, noise: Doubles | None = None) -> Iterator[RunFrame]:
    """`noise`: logarithms of compute times beside their median, measured on a real job; None: 2 %, normal."""
    rng = np.random.default_rng(job.seed)
    workers, end = len(job.layout.placements), BEGAN
    for number in range(job.steps):
        own = rng.normal(0.0, NOISE, workers) if noise is None else rng.choice(noise, workers)
        step = JobStep(number, np.exp(own + rng.normal(0.0, COMMON_NOISE)), np.full(workers, TOKENS), healthy_loss(number) + rng.normal(0.0, 0.01, workers))
        events: tuple[Event, ...] = ()
        if number == job.onset:
            events = tuple(job.scenario.told(job, end))
        if number >= job.onset:
            job.scenario.change(job, step)
            if job.scenario.ends:
                yield from _after_the_end(job, end, events)
                return
        end += float(step.compute_s.max()) + step.wait_s
        yield _of_step(job, step, end, events)._replace(begins=number == job.onset)


def _of_step(job: PlannedJob, step: JobStep, end: float, events: tuple[Event, ...]) -> RunFrame:
    longest = float(step.compute_s.max()) + step.wait_s
    values = {
        "step_s": np.full(len(step.compute_s), longest), "forward_s": step.compute_s / 3.0, "backward_s": step.compute_s / 3.0 * 2.0,
        "communication_s": longest - step.compute_s, "tokens": step.tokens, "loss": step.loss,
    }  # fmt: skip
    with np.errstate(over="ignore"):
        told = {name: np.asarray(each, np.float32) for name, each in values.items()}
    made = Step(number=step.number, epoch=1, workers=job.layout.workers, end=end, values=told)
    return RunFrame(Frame(job=job.name, number=step.number + 1, generation=1, time=end, tick=True, steps=(made,), events=events, layout=job.layout), told, events)


def _after_the_end(job: PlannedJob, end: float, events: tuple[Event, ...]) -> Iterator[RunFrame]:
    for tick in range(1, QUIET_TICKS + 1):
        told = events if tick == 1 else ()
        yield RunFrame(Frame(job=job.name, number=job.onset + tick, generation=1, time=end + tick, tick=True, events=told, layout=job.layout), {}, told, begins=tick == 1)
