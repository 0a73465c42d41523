"""Data that come again, and the scale of an fp16 loss that collapses; with what does the same by right."""

from collections.abc import Callable

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import NOBODY, DrillJob, DrillLabel, StepSignals

from .signs import fault, twin

DIGESTS = 1 << 24
PASS = 8
"""Steps of a pass over a small set of data."""


def _digests(job: DrillJob) -> Callable[[StepSignals], None]:
    """Each worker has data of its own in each step."""

    def tell(step: StepSignals) -> None:
        step.logged["batch_digest"] = job.rng.integers(1, DIGESTS, len(step.loss)).astype(np.float32)

    return tell


def _one_stands(job: DrillJob) -> DrillLabel:
    """Its loader gives one batch from then on. The finding names it; an incident that informs accuses nobody."""
    same: list[float] = []

    def change(step: StepSignals) -> None:
        same.append(float(step.logged["batch_digest"][job.target.rank]))
        step.logged["batch_digest"][job.target.rank] = same[0]

    job.effect.script, job.effect.step = _digests(job), change
    return DrillLabel(("repeated data",), NOBODY)


def _all_stand(job: DrillJob) -> DrillLabel:
    same: list[np.ndarray] = []

    def change(step: StepSignals) -> None:
        same.append(step.logged["batch_digest"])
        step.logged["batch_digest"] = same[0]

    job.effect.script, job.effect.step = _digests(job), change
    return DrillLabel(("repeated data",), NOBODY)


def _made_up(job: DrillJob) -> DrillLabel:
    """A test of speed: all are given the same from the first step on."""

    def tell(step: StepSignals) -> None:
        step.logged["batch_digest"] = np.full(len(step.loss), 7.0, np.float32)

    job.effect.script = tell
    return DrillLabel(("",), NOBODY)


def _passes(job: DrillJob) -> DrillLabel:
    """A small set of data is read again and again in the same order."""
    digests: dict[int, np.ndarray] = {}

    def tell(step: StepSignals) -> None:
        step.logged["batch_digest"] = digests.setdefault(step.number % PASS, job.rng.integers(1, DIGESTS, len(step.loss)).astype(np.float32))

    job.effect.script = tell
    return DrillLabel(("",), NOBODY)


def _halved(job: DrillJob, most: int) -> None:
    """The scale of the loss is 8,192, and halved so often behind the onset, once a step."""
    times: list[int] = []

    def tell(step: StepSignals) -> None:
        step.logged["loss_scale"] = np.full(len(step.loss), 8192.0, np.float32)

    def fall(step: StepSignals) -> None:
        times.append(step.number)
        step.logged["loss_scale"] /= np.float32(2.0 ** min(len(times), most))

    job.effect.script, job.effect.step = tell, fall


def _collapses(job: DrillJob) -> DrillLabel:
    _halved(job, 100)
    return DrillLabel(("loss scale collapsed",), NOBODY)


def _odd_batches(job: DrillJob) -> DrillLabel:
    _halved(job, 3)
    return DrillLabel(("",), NOBODY)


KINDS = (
    fault("a loader gives one worker the same batch again and again", "data", _one_stands),
    fault("all loaders give the same batch again and again", "data", _all_stand),
    fault("the scale of the loss is halved in each step", "data", _collapses),
    twin("the same made-up data in each step", "data", _made_up),
    twin("a small set of data in several passes", "data", _passes),
    twin("the scale of the loss is halved three times", "data", _odd_batches),
)
