"""The job's iterations take longer than they did."""

from collections.abc import Callable

import numpy as np
import pytest

from detectors.iteration_time import IterationTime
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import Draft, StepDraft, job_frames

Change = Callable[[StepDraft], None]


def claims(change: Change, ticks: int = 60, detector: IterationTime | None = None) -> list[tuple[str, bool]]:
    def fault(draft: Draft) -> None:
        for step in draft.steps:
            change(step)

    frames = job_frames(2, 2, ticks, np.random.default_rng(0), faults=[fault])
    return [(claim.kind, claim.active) for claim in claims_of(detector or IterationTime(), frames)]


def longer(factor: float, first: int, last: int = 1 << 30) -> Change:
    def change(step: StepDraft) -> None:
        if first <= step.number <= last:
            step.values["step_s"] *= np.float32(factor)

    return change


def test_fault_a_job_at_a_fifth_longer_steps_is_slow_until_it_is_not() -> None:
    assert claims(longer(1.2, 60, 80)) == [("job.slow", True), ("job.slow", False)]


def test_fault_a_job_at_four_times_longer_steps_is_very_slow() -> None:
    assert claims(longer(4.0, 60)) == [("job.very_slow", True), ("job.slow", True)]


@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_twin_what_varies_within_a_tenth_is_not_slow(factor: float) -> None:
    assert claims(longer(factor, 60)) == []


def test_twin_one_long_step_is_not_slow() -> None:
    assert claims(longer(9.0, 60, 61)) == []


def test_twin_a_noisy_job_is_not_slow_each_minute() -> None:
    rng = np.random.default_rng(3)

    def noisy(step: StepDraft) -> None:
        step.values["step_s"] *= np.float32(rng.uniform(0.6, 1.4))

    assert claims(noisy, ticks=300) == []


@pytest.mark.parametrize("pause", ["data_s", "evaluation_s", "checkpoint_s"])
def test_twin_a_pause_of_one_worker_is_no_part_of_the_iteration(pause: str) -> None:
    def pausing(step: StepDraft) -> None:
        if 60 <= step.number < 70:
            step.values["step_s"] += np.float32(5.0)
            step.values[pause][0] += np.float32(5.0)
            step.values["communication_s"][1:] += np.float32(5.0)

    assert claims(pausing) == []


def test_twin_the_first_step_of_an_epoch_is_no_measure_and_raises_nothing() -> None:
    assert claims(longer(30.0, 0, 0)) == []


def test_a_slow_hour_does_not_become_the_normal_but_a_new_epoch_begins_anew() -> None:
    assert claims(longer(2.0, 60), ticks=400) == [("job.slow", True)]
    detector = IterationTime()
    claims(longer(2.0, 60), detector=detector)
    over = claims_of(detector, [cut_frame(1.0, event("epoch.started", job(), 1.0, epoch=2))])
    assert [claim.active for claim in over] == [False]


def test_twin_late_steps_of_an_epoch_that_is_over_are_not_judged() -> None:
    late = list(job_frames(2, 2, 60, np.random.default_rng(0), faults=[_four_times_longer_from_60]))
    begun = cut_frame(1.0, event("epoch.started", job(), 1.0, epoch=2))
    assert claims_of(IterationTime(), late)
    assert claims_of(IterationTime(), [begun, *late]) == []


def _four_times_longer_from_60(draft: Draft) -> None:
    for step in draft.steps:
        longer(4.0, 60)(step)
