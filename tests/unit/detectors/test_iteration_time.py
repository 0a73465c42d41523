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


# --- the work of a step


def work(tokens: float, seconds: float, first: int, length: float | None = None) -> Change:
    """From a step on each has so many times the tokens, and takes so many times as long."""

    def change(step: StepDraft) -> None:
        if length is not None:
            step.values["sequence_length"] = np.full_like(step.values["step_s"], 2048.0 * (length if step.number >= first else 1.0))
        if step.number >= first:
            step.values["tokens"] *= np.float32(tokens)
            step.values["step_s"] *= np.float32(seconds)

    return change


@pytest.mark.parametrize(("tokens", "seconds"), [(2.0, 2.0), (4.0, 4.0), (0.5, 0.55), (0.5, 0.5), (1.3, 1.35)])
def test_twin_more_tokens_in_a_step_take_longer_and_the_job_is_not_slow(tokens: float, seconds: float) -> None:
    assert claims(work(tokens, seconds, 60), ticks=200) == []


@pytest.mark.parametrize(("tokens", "seconds"), [(2.0, 2.6), (2.0, 8.0), (0.5, 1.0), (1.0, 1.3)])
def test_fault_a_job_that_takes_longer_for_a_token_is_slow_also_from_the_step_in_which_the_tokens_change(tokens: float, seconds: float) -> None:
    found = claims(work(tokens, seconds, 60), ticks=50)
    assert ("job.slow", True) in found
    assert (("job.very_slow", True) in found) == (seconds / tokens > 3.0)


def test_a_job_that_is_slow_with_other_work_is_measured_anew_after_a_while() -> None:
    assert claims(work(2.0, 2.6, 60), ticks=100) == [("job.slow", True), ("job.slow", False)]


def test_fault_it_is_measured_by_its_new_work_from_then_on() -> None:
    def later(step: StepDraft) -> None:
        work(2.0, 2.6, 60)(step)
        longer(1.3, 300)(step)

    assert claims(later, ticks=200) == [("job.slow", True), ("job.slow", False), ("job.slow", True)]


def test_fault_a_job_whose_tokens_vary_from_step_to_step_is_slow_where_all_of_them_take_longer() -> None:
    def batches(step: StepDraft) -> None:
        times = np.float32(np.exp(np.random.default_rng(step.number).normal(0.0, 0.4)))
        step.values["tokens"] *= times
        step.values["step_s"] *= times
        longer(1.4, 100)(step)

    assert claims(batches, ticks=49) == []
    assert claims(batches, ticks=90) == [("job.slow", True)]


@pytest.mark.parametrize(("length", "told"), [(2.0, []), (1.0, [("job.slow", True)])])
def test_twin_a_token_of_a_longer_sequence_costs_more(length: float, told: list[tuple[str, bool]]) -> None:
    assert claims(work(2.0, 3.0, 60, length), ticks=45) == told


def test_fault_where_tokens_are_logged_seldom_or_not_at_all_the_time_of_a_step_counts() -> None:
    def seldom(step: StepDraft) -> None:
        if step.number % 10:
            step.values["tokens"][:] = np.nan
        longer(1.3, 60)(step)

    def never(step: StepDraft) -> None:
        del step.values["tokens"]
        longer(1.3, 60)(step)

    assert claims(seldom) == claims(never) == [("job.slow", True)]
