"""Data that come again, and their twins that do so by right."""

from collections.abc import Iterator

import numpy as np
import pytest

from detectors.repeated_batches import CHANGED, KIND, VALUE, RepeatedBatches
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Doubles, Kind, Step
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import JOB, layout_of

WORKERS = layout_of(2, 2).workers
STEPS = 60


def drawn(steps: int = STEPS, seed: int = 1) -> Doubles:
    """Steps × workers: everybody has data of its own."""
    return np.random.default_rng(seed).integers(1, 1 << 24, (steps, len(WORKERS))).astype(np.float64)


def frames(digests: Doubles, *, first: int = 0, epoch: int = 1) -> Iterator[Frame]:
    """A step a tick."""
    for row, values in enumerate(digests):
        number = first + row
        step = Step(number=number, epoch=epoch, workers=WORKERS, end=float(number), values={VALUE: values.astype(np.float32)})
        yield Frame(job=JOB, number=number + 1, generation=1, time=float(number), tick=True, steps=(step,))


def restarted(detector: RepeatedBatches, epoch: int = 2) -> None:
    assert claims_of(detector, [cut_frame(200.0, event("epoch.started", job(), 200.0, epoch=epoch))]) == []


def claims(digests: Doubles) -> list[Claim]:
    return claims_of(RepeatedBatches(), frames(digests))


# --- a loader that stands still ------------------------------------------------------------------------------------


def test_fault_a_worker_that_is_given_one_batch_again_and_again_is_named_until_its_data_change() -> None:
    digests = drawn()
    digests[30:40, 2] = digests[30, 2]
    first, last = claims(digests)
    assert (first.kind, first.entity.kind, first.entity.name, first.since) == (KIND, Kind.WORKER, WORKERS[2], 34.0)
    assert (last.active, last.evidence[-1].value) == (False, 40.0)


@pytest.mark.parametrize("recovers", [(40, 40, 40, 40), (40, 42, 44, 46)], ids=["at once", "one after the other"])
def test_fault_where_all_are_given_the_same_it_is_the_job_until_the_data_of_all_change(recovers: tuple[int, ...]) -> None:
    digests = drawn()
    for place, end in enumerate(recovers):
        digests[30:end, place] = digests[30, place]
    first, last = claims(digests)
    assert (first.kind, first.entity, first.since) == (KIND, job(), 34.0)
    assert "4 workers" in first.evidence[0].text
    assert (last.active, last.evidence[-1].value) == (False, max(recovers))


def test_twin_made_up_data_that_never_change_or_hardly_do_are_none() -> None:
    assert claims(np.full((STEPS, len(WORKERS)), 7.0)) == []
    digests = drawn()
    digests[CHANGED:] = digests[CHANGED - 1]
    assert claims(digests) == []


def test_twin_the_same_batch_twice_and_two_that_have_one_digest_by_chance_are_none() -> None:
    digests = drawn()
    digests[31:34] = digests[30]
    digests[50] = digests[10]
    assert claims(digests) == []


def test_twin_a_script_that_trains_on_each_batch_for_several_steps_is_none_and_its_loader_may_stand_still_all_the_same() -> None:
    digests = np.repeat(drawn(40), 4, axis=0)
    digests[100:106] = digests[100]
    assert claims(digests) == []
    digests[100:] = digests[100]
    [found] = claims(digests)
    assert found.entity == job()


def test_twin_steps_that_tell_nothing_are_none() -> None:
    digests = drawn()
    digests[30:] = np.nan
    assert claims(digests) == []


# --- data that begin anew with a restart ---------------------------------------------------------------------------


def test_fault_data_that_begin_anew_with_a_restart_are_told_with_both_places() -> None:
    detector, digests = RepeatedBatches(), drawn()
    digests[30] = digests[12]  # by chance
    assert claims_of(detector, frames(digests)) == []
    restarted(detector)
    [found] = claims_of(detector, frames(digests[:20], first=50, epoch=2))
    assert (found.kind, found.entity, found.since) == (KIND, job(), 53.0)
    assert "steps 50 to 53 are given the data of steps 0 to 3" in found.evidence[0].text


def test_twin_steps_that_are_trained_again_have_the_data_that_they_had() -> None:
    detector, digests = RepeatedBatches(), drawn(100)
    assert claims_of(detector, frames(digests[:60])) == []
    restarted(detector)
    assert claims_of(detector, frames(digests[40:], first=40, epoch=2)) == []


def test_twin_steps_that_each_process_counts_from_0_are_none_however_far_it_is_rolled_back() -> None:
    detector, digests = RepeatedBatches(), drawn(100)
    for epoch, begin in enumerate((0, 50, 40, 60, 30), 1):
        assert claims_of(detector, frames(digests[begin:90], epoch=epoch)) == []
        restarted(detector, epoch + 1)


@pytest.mark.parametrize("batches", [3, 5, 30])
def test_twin_data_that_are_read_in_several_passes_are_none(batches: int) -> None:
    detector, digests = RepeatedBatches(), np.tile(drawn(batches), (120 // batches, 1))
    assert claims_of(detector, frames(digests[:70])) == []
    restarted(detector)
    assert claims_of(detector, frames(digests[60:], first=60, epoch=2)) == []


def test_twin_a_second_pass_that_begins_soon_behind_a_restart_is_none() -> None:
    detector, digests = RepeatedBatches(), drawn(80)
    assert claims_of(detector, frames(digests[:76])) == []
    restarted(detector)
    assert claims_of(detector, frames(np.concatenate([digests[70:], digests]), first=70, epoch=2)) == []


def test_twin_data_that_are_drawn_in_another_order_behind_a_restart_are_none() -> None:
    detector, digests = RepeatedBatches(), drawn()
    assert claims_of(detector, frames(digests)) == []
    restarted(detector)
    order = np.random.default_rng(2).permutation(STEPS)
    assert claims_of(detector, frames(digests[order], first=50, epoch=2)) == []
