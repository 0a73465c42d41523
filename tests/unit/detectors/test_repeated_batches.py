"""Data that come again, and their twins that do so by right."""

from collections.abc import Iterator

import numpy as np
import pytest

from detectors.repeated_batches import PARAMETERS, REPEATED, SHARED, VALUE, RepeatedBatches
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Doubles, Kind, Layout, RankPlacement, Step
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import JOB, layout_of

WORKERS = layout_of(2, 2).workers
STEPS = 60


def drawn(steps: int = STEPS, seed: int = 1) -> Doubles:
    """Steps × workers: everybody has data of its own."""
    return np.random.default_rng(seed).integers(1, 1 << 24, (steps, len(WORKERS))).astype(np.float64)


def frames(digests: Doubles, *, first: int = 0, epoch: int = 1, parameters: Doubles | None = None, layout: Layout | None = None) -> Iterator[Frame]:
    """A step a tick; each sixteenth with a digest of the parameters."""
    for row, values in enumerate(digests):
        number = first + row
        told = {VALUE: values.astype(np.float32)}
        if parameters is not None and (number + 1) % 16 == 0:
            told[PARAMETERS] = (parameters + number).astype(np.float32)
        step = Step(number=number, epoch=epoch, workers=WORKERS, end=float(number), values=told)
        yield Frame(job=JOB, number=number + 1, generation=1, time=float(number), tick=True, steps=(step,), layout=layout)


def restarted(detector: RepeatedBatches, epoch: int = 2) -> None:
    assert claims_of(detector, [cut_frame(200.0, event("epoch.started", job(), 200.0, epoch=epoch))]) == []


def claims(digests: Doubles, parameters: Doubles | None = None, layout: Layout | None = None) -> list[Claim]:
    return claims_of(RepeatedBatches(), frames(digests, parameters=parameters, layout=layout))


# --- a loader that stands still ------------------------------------------------------------------------------------


def test_fault_a_worker_whose_loader_gives_one_batch_again_and_again_is_named_until_its_data_change() -> None:
    digests = drawn()
    digests[20:30, 2] = digests[20, 2]
    first, last = claims(digests)
    assert (first.kind, first.entity.kind, first.entity.name, first.since) == (REPEATED, Kind.WORKER, WORKERS[2], 24.0)
    assert (last.active, last.evidence[-1].value) == (False, 30.0)


def test_fault_where_all_loaders_stand_still_it_is_the_job() -> None:
    digests = drawn()
    digests[20:] = digests[20]
    digests[40:] = drawn()[40:]
    first, last = claims(digests)
    assert (first.kind, first.entity, first.since) == (REPEATED, job(), 24.0)
    assert "4 workers" in first.evidence[0].text
    assert (last.active, last.evidence[-1].value) == (False, 40.0)


def test_twin_made_up_data_that_never_change_are_none() -> None:
    assert claims(np.full((STEPS, len(WORKERS)), 7.0)) == []


def test_twin_the_same_batch_twice_and_two_that_have_one_digest_by_chance_are_none() -> None:
    digests = drawn()
    digests[21:24] = digests[20]
    digests[40] = digests[10]
    assert claims(digests) == []


def test_twin_steps_that_tell_nothing_are_none() -> None:
    digests = drawn()
    digests[20:] = np.nan
    assert claims(digests) == []


# --- data that begin anew with a restart ---------------------------------------------------------------------------


def test_fault_data_that_begin_anew_with_a_restart_are_told_with_both_places() -> None:
    detector, digests = RepeatedBatches(), drawn()
    digests[30] = digests[12]  # by chance
    assert claims_of(detector, frames(digests)) == []
    restarted(detector)
    [found] = claims_of(detector, frames(digests[:20], first=50, epoch=2))
    assert (found.kind, found.entity, found.since) == (REPEATED, job(), 53.0)
    assert "steps 50 to 53 are given the data of steps 0 to 3 again" in found.evidence[0].text


def test_twin_steps_that_are_trained_again_have_the_data_that_they_had() -> None:
    detector, digests = RepeatedBatches(), drawn(100)
    assert claims_of(detector, frames(digests[:60])) == []
    restarted(detector)
    assert claims_of(detector, frames(digests[40:], first=40, epoch=2)) == []
    restarted(detector, 3)
    assert claims_of(detector, frames(digests[90:], first=0, epoch=3)) == [], "steps that are counted from 0 again"


@pytest.mark.parametrize("batches", [3, 5, 30])
def test_twin_data_that_are_read_in_several_passes_are_none(batches: int) -> None:
    detector, digests = RepeatedBatches(), np.tile(drawn(batches), (60 // batches, 1))
    assert claims_of(detector, frames(digests)) == []
    restarted(detector)
    assert claims_of(detector, frames(digests, first=60, epoch=2)) == []


def test_twin_what_comes_again_much_later_in_an_epoch_is_a_second_pass() -> None:
    detector, digests = RepeatedBatches(), drawn(200)
    assert claims_of(detector, frames(digests[:80])) == []
    restarted(detector)
    assert claims_of(detector, frames(np.concatenate([digests[80:160], digests[:40]]), first=80, epoch=2)) == []


# --- replicas that all read the same -------------------------------------------------------------------------------


def shared() -> Doubles:
    return np.repeat(drawn()[:, :1], len(WORKERS), axis=1)


def test_fault_replicas_that_all_read_the_same_are_told_and_it_is_over_when_they_do_not() -> None:
    digests = shared()
    digests[40:] = drawn()[40:]
    first, last = claims(digests, parameters=np.zeros(4))
    assert (first.kind, first.entity, first.since, first.active) == (SHARED, job(), 19.0, True)
    assert (last.active, last.evidence[-1].value) == (False, 40.0)


def test_twin_workers_that_hold_parts_of_a_model_or_of_whom_that_is_not_known_are_none() -> None:
    assert claims(shared()) == []
    assert claims(shared(), parameters=np.arange(4.0)) == []


def test_twin_workers_that_split_sequences_are_none() -> None:
    places = tuple(RankPlacement(worker=worker, node="n", rank=rank, local_rank=rank, cp=rank) for rank, worker in enumerate(WORKERS))
    layout = Layout(job=JOB, epoch=1, time=1.0, coordinator="n", launchers={"n": "127.0.0.1:1"}, placements=places)
    assert claims(shared(), parameters=np.zeros(4), layout=layout) == []
