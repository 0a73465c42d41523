"""Losses and gradient norms that are no numbers, or jump."""

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import NOBODY, DrillJob, DrillLabel, StepSignals

from .signs import fault, twin

OVERFLOW = 2.0 * float(np.finfo(np.float32).max)
"""No float32: infinite in a frame."""


def _of_one_first(job: DrillJob) -> DrillLabel:
    """The next exchange of gradients takes it to all. Of a pipeline it is not known in which stage it began."""
    first: list[int] = []

    def change(step: StepSignals) -> None:
        first.append(step.number)
        step.loss[[job.target.rank] if step.number == first[0] else slice(None)] = OVERFLOW
        step.grad_norm[:] = OVERFLOW

    job.effect.step = change
    return DrillLabel(("loss not finite",), NOBODY if any(place.pp for place in job.layout.placements) else (job.worker,))


def _gradient_of_one(job: DrillJob) -> DrillLabel:
    """Before it is exchanged; rank 0 alone logs a loss, behind which that of all is none."""
    first: list[int] = []

    def change(step: StepSignals) -> None:
        first.append(step.number)
        step.loss[1:] = np.nan
        step.grad_norm[:] = OVERFLOW
        step.logged["bad_gradient"] = np.full(len(step.loss), float(step.number > first[0]), np.float32)
        if step.number == first[0]:
            step.logged["bad_gradient"][job.target.rank] = 3.0
        else:
            step.loss[0] = OVERFLOW

    job.effect.step = change
    return DrillLabel(("loss not finite",), (job.worker,))


def _gradient_left_out(job: DrillJob) -> DrillLabel:
    """A scaler leaves out steps in which gradients of one worker or another overflow."""
    first: list[int] = []

    def change(step: StepSignals) -> None:
        first.append(step.number)
        step.logged["bad_gradient"] = np.zeros(len(step.loss), np.float32)
        if (step.number - first[0]) % 15 == 0:
            step.logged["bad_gradient"][job.rng.integers(len(step.loss))] = 1.0
            step.grad_norm[:] = OVERFLOW

    job.effect.step = change
    return DrillLabel(("",), NOBODY)


def _of_all(job: DrillJob) -> DrillLabel:
    def change(step: StepSignals) -> None:
        step.loss[:] = step.grad_norm[:] = OVERFLOW

    job.effect.step = change
    return DrillLabel(("loss not finite",), NOBODY)


def _norms(job: DrillJob) -> DrillLabel:
    def change(step: StepSignals) -> None:
        step.grad_norm[:] = OVERFLOW

    job.effect.step = change
    return DrillLabel(("loss not finite",), NOBODY)


def _jumps(job: DrillJob) -> DrillLabel:
    times = float(job.rng.uniform(2.0, 6.0))

    def change(step: StepSignals) -> None:
        step.loss *= times

    job.effect.step = change
    return DrillLabel(("loss spike",), NOBODY)


def _scaler(job: DrillJob) -> DrillLabel:
    """One gradient norm is infinite: the step is skipped, the scale is halved."""
    first: list[int] = []

    def change(step: StepSignals) -> None:
        first.append(step.number)
        if step.number == first[0]:
            step.grad_norm[:] = OVERFLOW

    job.effect.step = change
    return DrillLabel(("",), NOBODY)


def _bumpy(job: DrillJob) -> DrillLabel:
    """Batches differ more than before."""

    def change(step: StepSignals) -> None:
        step.loss += job.rng.normal(0.0, 0.08)

    job.effect.step = change
    return DrillLabel(("",), NOBODY)


def _seldom(job: DrillJob) -> DrillLabel:
    """The loss is logged in every tenth step only."""

    def change(step: StepSignals) -> None:
        if step.number % 10:
            step.loss[:] = np.nan

    job.effect.step = change
    return DrillLabel(("",), NOBODY)


KINDS = (
    fault("loss not finite, of one worker first", "loss", _of_one_first),
    fault("gradient not finite, of one worker before the exchange", "loss", _gradient_of_one),
    fault("loss not finite, of all at once", "loss", _of_all),
    fault("gradient norms stay infinite", "loss", _norms),
    fault("loss jumps to 2 to 6 times", "loss", _jumps),
    twin("one infinite gradient norm of a loss scaler", "loss", _scaler),
    twin("gradients that overflow, in steps that a loss scaler leaves out", "loss", _gradient_left_out),
    twin("loss varies more", "loss", _bumpy),
    twin("loss is logged seldom", "loss", _seldom),
)
