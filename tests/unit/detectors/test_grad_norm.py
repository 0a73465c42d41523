"""The norm of the gradient leaves its level by far."""

from collections.abc import Iterator

import numpy as np

from detectors.grad_norm import KIND, GradientNorm
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Doubles, Step
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import JOB, layout_of

WORKERS = layout_of(1, 2).workers


def usual(count: int = 120) -> Doubles:
    return np.exp(np.random.default_rng(1).normal(0.0, 0.4, count))


def frames(norms: Doubles, epoch: int = 1) -> Iterator[Frame]:
    """A step a tick; the second worker logs the larger norm."""
    for number, norm in enumerate(norms.tolist()):
        step = Step(number=number, epoch=epoch, workers=WORKERS, end=float(number), values={"grad_norm": np.array([norm / 2.0, norm], np.float32)})
        yield Frame(job=JOB, number=number + 1, generation=1, time=float(number), tick=True, steps=(step,))


def claims(norms: Doubles) -> list[Claim]:
    return claims_of(GradientNorm(), frames(norms))


def test_fault_a_norm_of_fifty_times_its_level_is_told_in_its_step_and_is_over_with_it() -> None:
    norms = usual()
    norms[60] = 50.0
    first, last = claims(norms)
    assert (first.kind, first.entity, first.since, first.active) == (KIND, job(), 60.0, True)
    assert WORKERS[1] in first.evidence[0].text
    assert (last.active, last.evidence[-1].value) == (False, 61.0)


def test_fault_a_norm_that_stays_large_is_told_after_five_steps_and_is_its_level_after_fifty() -> None:
    norms = usual()
    norms[60:] *= 15.0
    first, last = claims(norms)
    assert (first.active, last.active) == (True, False)
    assert 64.0 <= first.since <= 70.0
    assert "for 50 steps" in last.evidence[-1].text


def test_twin_a_few_large_norms_of_odd_batches_and_the_first_steps_are_none() -> None:
    norms = usual()
    norms[[50, 60, 61, 62, 80]] = 8.0
    norms[:5] = 200.0
    assert claims(norms) == []


def test_twin_a_norm_that_is_no_number_or_that_nobody_logs_is_none() -> None:
    norms = usual()
    norms[60:] = np.inf
    assert claims(norms) == []
    unlogged = [Frame(job=JOB, number=1, generation=1, time=1.0, tick=True, steps=(Step(number=1, epoch=1, workers=WORKERS, end=1.0, values={}),))]
    assert claims_of(GradientNorm(), unlogged) == []


def test_another_epoch_has_a_level_of_its_own() -> None:
    detector = GradientNorm()
    claims_of(detector, frames(usual()))
    begun = cut_frame(200.0, event("epoch.started", job(), 200.0, epoch=2))
    assert claims_of(detector, [begun, *frames(50.0 * usual(), epoch=2)]) == []
    assert claims_of(detector, frames(5000.0 * usual(), epoch=1)) == []


def test_twin_steps_that_only_gather_gradients_and_log_a_norm_of_zero_are_no_level() -> None:
    norms = usual(400)
    assert claims(np.where(np.arange(400) % 8 == 7, norms, 0.0)) == []


def test_fault_a_norm_that_jumps_is_told_beside_norms_of_zero() -> None:
    norms = np.where(np.arange(400) % 8 == 7, usual(400), 0.0)
    norms[327] = 60.0
    assert [claim.active for claim in claims(norms)] == [True, False]
