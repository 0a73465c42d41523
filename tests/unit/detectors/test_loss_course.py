"""The loss has risen and stays there, or a restart has ended its fall."""

from collections.abc import Iterator

import numpy as np
import pytest

from detectors.loss_course import PLATEAU, RISEN, LossCourse
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Doubles, Event, Floats, Kind, Step
from fakes.synthetic_events import claims_of, event, job
from fakes.synthetic_frames import JOB, layout_of

WORKERS = layout_of(1, 2).workers
NOISE = 0.05
RESTART = event("epoch.started", job(), 0.0, epoch=2)


def noise(count: int, seed: int = 1) -> Doubles:
    return np.random.default_rng(seed).normal(0.0, NOISE, count)


def falling(count: int, seed: int = 1) -> Doubles:
    return 2.0 + 4.0 / np.sqrt(1.0 + np.arange(count) / 50.0) + noise(count, seed)


def frames(losses: Doubles, *, first: int = 0, epoch: int = 1, begun: Event | None = None) -> Iterator[Frame]:
    """A step a tick; `begun` comes with the first."""
    for number, loss in enumerate(losses.tolist(), first):
        values: dict[str, Floats] = {"loss": np.array([loss - 0.1, loss + 0.1], np.float32)}
        step = Step(number=number, epoch=epoch, workers=WORKERS, end=float(number), values=values)
        yield Frame(job=JOB, number=number + 1, generation=1, time=float(number), tick=True, steps=(step,), events=(begun,) if begun and number == first else ())


def told(detector: LossCourse, *parts: Iterator[Frame]) -> list[tuple[str, bool]]:
    return [(claim.kind, claim.active) for claim in claims(detector, *parts)]


def claims(detector: LossCourse, *parts: Iterator[Frame]) -> list[Claim]:
    return [claim for part in parts for claim in claims_of(detector, part)]


def test_fault_a_loss_that_creeps_up_by_ten_deviations_is_told_of_the_job() -> None:
    losses = falling(800)
    losses[500:] += 10.0 * NOISE * np.minimum(np.arange(300) / 200.0, 1.0)
    (claim,) = claims(LossCourse(), frames(losses))
    assert (claim.kind, claim.entity, claim.active) == (RISEN, job(), True)
    assert 500.0 < claim.since < 700.0
    assert "standard deviations above" in claim.evidence[0].text


def test_fault_a_loss_that_jumps_is_told_once_it_stays_and_is_over_when_it_is_back() -> None:
    losses = falling(500)
    losses[300:360] *= 1.5
    first, last = claims(LossCourse(), frames(losses))
    assert (first.kind, first.active, last.active) == (RISEN, True, False)
    assert 280.0 <= first.since <= 311.0


def test_twin_a_spike_of_some_steps_noise_and_a_fall_that_slows_down_are_no_rise() -> None:
    losses = falling(1500)
    losses[[300, 301, 302, 303, 304, 700, 900, *range(1200, 1214)]] *= 3.0
    assert told(LossCourse(), frames(losses)) == []
    assert told(LossCourse(), frames(2.0 + noise(1500))) == []


def test_twin_a_loss_that_wanders_between_batches_is_no_rise() -> None:
    """Data in another order: neighbours are alike, so that steps differ less than levels."""
    wander = np.repeat(np.random.default_rng(2).normal(0.0, 3.0 * NOISE, 60), 20)
    assert told(LossCourse(), frames(3.0 + wander + noise(1200))) == []


def test_fault_a_restarted_job_whose_loss_is_higher_than_before_is_told() -> None:
    assert told(LossCourse(), frames(falling(300)), frames(falling(400)[300:] + 1.0, first=300, epoch=2, begun=RESTART)) == [(RISEN, True)]


def test_twin_a_job_that_begins_at_an_earlier_checkpoint_is_compared_with_what_was_before_it() -> None:
    losses = falling(400)
    assert told(LossCourse(), frames(losses[:300]), frames(losses[120:], first=120, epoch=2, begun=RESTART)) == []
    assert told(LossCourse(), frames(losses[:300]), frames(losses, first=0, epoch=2, begun=RESTART)) == []


def test_fault_a_loss_that_stops_falling_with_a_restart_is_a_plateau_until_it_falls_again() -> None:
    losses = 6.0 - 0.002 * np.arange(1400) + noise(1400)
    losses[600:1000] = losses[600] + noise(400, 3)
    losses[1000:] += 0.8
    found = told(LossCourse(), frames(losses[:600]), frames(losses[600:], first=600, epoch=2, begun=RESTART))
    assert found == [(PLATEAU, True), (PLATEAU, False)]


def test_twin_a_restart_after_which_the_loss_falls_on_and_a_plateau_without_one_are_not_told() -> None:
    losses = 6.0 - 0.002 * np.arange(1200) + noise(1200)
    assert told(LossCourse(), frames(losses[:600]), frames(losses[600:], first=600, epoch=2, begun=RESTART)) == []
    losses[600:] = losses[600] + noise(600, 3)
    assert told(LossCourse(), frames(losses)) == []


def test_twin_a_loss_that_had_ended_its_fall_before_the_restart_is_no_plateau() -> None:
    losses = np.maximum(6.0 - 0.005 * np.arange(1200), 3.5) + noise(1200)
    assert told(LossCourse(), frames(losses[:600]), frames(losses[600:], first=600, epoch=2, begun=RESTART)) == []
    creeping = 3.5 + noise(1200) + 0.001 * np.maximum(np.arange(1200) - 600, 0)
    assert (PLATEAU, True) not in told(LossCourse(), frames(creeping[:600]), frames(creeping[600:], first=600, epoch=2, begun=RESTART))


def test_the_last_steps_of_an_epoch_that_is_over_say_nothing() -> None:
    detector = LossCourse()
    assert told(detector, frames(falling(300)), frames(falling(10)[:1], first=300, epoch=2, begun=RESTART)) == []
    assert told(detector, frames(np.full(60, 50.0), first=301, epoch=1)) == []


@pytest.mark.parametrize("logs", [False, True])
def test_fault_a_printed_loss_that_has_risen_is_told_where_none_is_logged(logs: bool) -> None:
    losses = falling(300)
    losses[200:] += 2.0
    detector = LossCourse()
    if logs:
        claims(detector, frames(falling(1)))
    found = [claim for frame in printed(losses) for claim in detector.update(frame)]
    assert [claim.kind for claim in found] == ([] if logs else [RISEN])


def printed(losses: Doubles) -> Iterator[Frame]:
    """By one of two workers."""
    for number, loss in enumerate(losses.tolist(), 1):
        values = {"loss": loss, "step": 10.0 * number, "bad_losses": 0.0, "bad_grad_norms": 0.0}
        metrics = {f"printed_{name}": np.array([value, np.nan], np.float32) for name, value in values.items()}
        yield Frame(job=JOB, number=number, generation=1, time=100.0 + number, tick=True, entities={Kind.WORKER: WORKERS}, metrics={Kind.WORKER: metrics})


def test_twin_a_loss_that_is_mostly_zero_has_not_risen_where_it_is_not() -> None:
    """A hinge: the medians of its levels and of their deviations are zero."""
    rng = np.random.default_rng(4)
    losses = np.where(rng.random(1500) < 0.45, rng.uniform(0.05, 0.15, 1500), 0.0)
    assert told(LossCourse(), frames(losses + 0.1)) == told(LossCourse(), exact(losses)) == []


def test_twin_a_loss_that_was_exactly_zero_has_no_measure() -> None:
    assert told(LossCourse(), exact(np.where(np.arange(400) < 300, 0.0, 1e-9))) == []


def test_fault_a_loss_below_zero_that_rises_is_told() -> None:
    losses = -3.0 + noise(600)
    losses[400:] += 1.0
    assert told(LossCourse(), frames(losses)) == [(RISEN, True)]


def exact(losses: Doubles) -> Iterator[Frame]:
    """Both workers have the same."""
    for frame, loss in zip(frames(losses), losses.tolist(), strict=True):
        frame.steps[0].values["loss"][:] = loss
        yield frame
