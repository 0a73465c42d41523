"""Whose gradient was no number before it was exchanged: that worker is named, and no other."""

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detectors.loss import BAD_STEP, Loss
from eagle_eye.frames import Frame
from eagle_eye.types import Layout
from fakes.bad_losses import NAN, broken, claims, kinds, prints
from fakes.synthetic_events import claims_of, cut_frame, event, job, worker
from fakes.synthetic_frames import Draft, Fault, job_frames


def gradients(*bad: tuple[int, list[int] | slice], last: int = 1 << 30) -> Fault:
    """All workers tell of their gradients; those of these workers are no numbers in that step, and all from the last of them on where its workers are all."""

    def fault(draft: Draft) -> None:
        for step in draft.steps:
            value = step.values["bad_gradient"] = np.zeros(len(step.values["tokens"]), np.float32)
            for number, workers in bad:
                if step.number == number or (workers == slice(None) and number < step.number <= last):
                    value[workers] = 3.0

    return fault


def unlogged(draft: Draft) -> None:
    for step in draft.steps:
        step.values.pop("loss", None)
        step.values.pop("grad_norm", None)


ALL = slice(None)


def placed(frames: Iterable[Frame], *roles: tuple[int, int, int]) -> list[Frame]:
    """The same, in a layout that tells each worker's dp, pp and tp."""

    def layout_of(frame: Frame) -> Layout | None:
        if frame.layout is None:
            return None
        places = tuple(msgspec.structs.replace(place, dp=dp, pp=pp, tp=tp) for place, (dp, pp, tp) in zip(frame.layout.placements, roles, strict=True))
        return msgspec.structs.replace(frame.layout, placements=places)

    return [replace(frame, layout=layout_of(frame)) for frame in frames]


@pytest.mark.parametrize(
    ("roles", "named"),
    [([(place // 4, place % 4, 0) for place in range(8)], ["run/node-0/1"]), ([(place // 4, 0, place % 4) for place in range(8)], [job().name]), ([(place, 0, 0) for place in range(8)], [job().name])],
    ids=["two stages of one replica", "two parts of a tensor group", "two replicas"],
)
def test_of_several_workers_that_have_it_at_once_only_the_last_stage_of_a_replica_is_named(roles: list[tuple[int, int, int]], named: list[str]) -> None:
    """A backward pass carries it on to the stages before, a tensor group exchanges it."""
    faults = [gradients((41, [0, 1]), (42, ALL)), broken("loss", np.nan, 42, ALL), broken("grad_norm", np.nan, 41, ALL)]
    frames = placed(job_frames(2, 4, 40, np.random.default_rng(0), faults=faults), *roles)
    found = [claim for claim in claims_of(Loss(), frames) if claim.kind != BAD_STEP]
    assert [claim.entity.name for claim in found] == named


@pytest.mark.parametrize(
    ("roles", "named"),
    [([(place // 4, place % 4, 0) for place in range(8)], job().name), ([(place // 4, 0, place % 4) for place in range(8)], job().name), ([(place, 0, 0) for place in range(8)], "run/node-0/3")],
    ids=["stages", "tensor parts", "replicas"],
)
def test_twin_the_last_stage_is_not_accused_by_its_loss_which_is_that_of_all_stages(roles: list[tuple[int, int, int]], named: str) -> None:
    frames = placed(job_frames(2, 4, 40, np.random.default_rng(0), faults=[broken("loss", np.nan, 41, [3], 41), broken("loss", np.nan, 42, ALL)]), *roles)
    (found,) = (claim for claim in claims_of(Loss(), frames) if claim.kind != BAD_STEP)
    assert found.entity.name == named
    assert "run/node-0/3" in found.evidence[0].text


@pytest.mark.parametrize("fell_in", [41, 42])
def test_twin_a_step_that_a_loss_scaler_left_out_is_the_origin_of_nothing(fell_in: int) -> None:
    def scaled(draft: Draft) -> None:
        for step in draft.steps:
            step.values["loss_scale"] = np.full(4, 512.0 if step.number >= fell_in else 1024.0, np.float32)

    found = claims(gradients((41, [2]), (42, ALL)), broken("loss", np.nan, 42, ALL), broken("grad_norm", np.nan, 41, ALL), scaled)
    assert kinds(found) == [("loss.not_finite", job().name, True)]


def printed(draft: Draft) -> None:
    """From tick 21 on each has a bad line."""
    if draft.tick > 20:
        prints((draft.tick, (draft.tick, np.nan, draft.tick - 20, 0)))(draft)


def test_fault_the_worker_whose_gradient_was_first_no_number_is_named_with_the_step_and_the_tensor() -> None:
    """Its own loss is a number, the norm that all log is that of what was exchanged."""
    told = event("gradient.not_finite", worker("node-1", 0), 20.0, step="41", tensor="blocks.3.bias", shape="64")
    faults = [gradients((41, [2]), (42, ALL)), broken("grad_norm", np.nan, 41, ALL), broken("loss", np.nan, 42, ALL)]
    frames = list(job_frames(2, 2, 40, np.random.default_rng(0), faults=faults))
    found = [claim for claim in claims_of(Loss(), [frames[0], cut_frame(frames[0].time, told), *frames[1:]]) if claim.kind != BAD_STEP]
    assert kinds(found) == [("loss.not_finite", "run/node-1/0", True)]
    assert (found[0].evidence[0].metric, found[0].evidence[0].value) == ("step", 41.0)
    assert "of tensor blocks.3.bias" in found[0].evidence[0].text


@pytest.mark.parametrize(("nodes", "named"), [(2, ["run/node-1/0"]), (1, [job().name])])
def test_fault_one_of_two_is_named_and_the_only_one_is_not(nodes: int, named: list[str]) -> None:
    frames = job_frames(nodes, 1, 40, np.random.default_rng(0), faults=[gradients((41, [nodes - 1]), (42, ALL)), unlogged, printed])
    assert [claim.entity.name for claim in claims_of(Loss(), frames) if claim.active] == named


def test_fault_it_is_named_where_the_loss_is_logged_seldom_by_one_worker() -> None:
    def seldom(draft: Draft) -> None:
        for step in draft.steps:
            step.values["loss"][1:] = NAN
            if step.number % 10:
                step.values["loss"][:] = NAN
            step.values.pop("grad_norm", None)
            step.values["loss_nan"] = np.array([1.0 if step.number >= 50 and step.number % 10 == 0 else NAN, NAN, NAN, NAN], np.float32)

    def in_part(draft: Draft) -> None:
        """Where a check costs much."""
        for step in draft.steps:
            if step.number not in (39, 41, 45, 47):
                step.values["bad_gradient"][:] = NAN

    found = claims(gradients((41, [2]), (42, ALL)), broken("loss", np.nan, 42, ALL), seldom, in_part)
    assert kinds(found) == [("loss.not_finite", "run/node-1/0", True)]


@pytest.mark.parametrize(
    "bad",
    [
        [(41, [0, 1]), (42, ALL)],  # half of them
        [(41, [2]), (42, [0]), (43, ALL)],  # one after the other
        [(30, [0]), (41, [2]), (42, ALL)],  # and numbers in between: rows of a table that no batch has read
        [(41, ALL)],
    ],
)
def test_twin_gradients_that_name_no_one_origin_accuse_nobody(bad: list[tuple[int, list[int] | slice]]) -> None:
    first = bad[-1][0]
    found = claims(gradients(*bad), broken("loss", np.nan, first, ALL), broken("grad_norm", np.nan, first, ALL))
    assert kinds(found) == [("loss.not_finite", job().name, True)]


def test_twin_a_loss_that_is_no_number_where_the_gradient_of_another_was_none_a_little_before_accuses_nobody() -> None:
    found = claims(gradients((30, [0]), (41, [2]), (42, ALL)), broken("loss", np.nan, 41, [2], 41), broken("loss", np.nan, 42, ALL))
    assert kinds(found) == [("loss.not_finite", job().name, True)]
    assert "run/node-1/0" in found[0].evidence[0].text, "whose loss it was is told"


def test_fault_where_nothing_is_logged_it_is_named_once_the_gradients_of_all_have_been_none_for_many_steps() -> None:
    found = claims(gradients((41, [2]), (42, ALL)), unlogged)
    assert kinds(found) == [("loss.not_finite", "run/node-1/0", True)]
    assert [(line.metric, line.value) for line in found[0].evidence] == [("optimizer_step", 41.0)], "no `step`: the script may count otherwise"
    assert claims(gradients((41, [2]), (42, ALL), last=60), unlogged) == [], "20 steps would be it"


def test_fault_where_the_loss_is_printed_it_is_named_with_the_third_bad_line_and_the_job_is_not() -> None:
    lines = prints((5, (10, 2.5, 0, 0)), (20, (42, np.nan, 1, 0)), (22, (46, np.nan, 2, 0)), (24, (50, np.nan, 3, 0)))
    found = claims(gradients((41, [2]), (42, ALL)), lines, ticks=26)
    assert kinds(found) == [("loss.not_finite", "run/node-1/0", True)]


def test_twin_where_the_loss_is_printed_the_gradients_of_all_at_once_accuse_nobody() -> None:
    lines = prints((5, (10, 2.5, 0, 0)), (20, (42, np.nan, 1, 0)), (22, (46, np.nan, 2, 0)), (24, (50, np.nan, 3, 0)))
    assert kinds(claims(gradients((41, ALL)), lines, ticks=60)) == [("loss.not_finite", job().name, True)]


def test_it_is_over_once_the_gradients_of_all_are_numbers_again() -> None:
    assert [claim.active for claim in claims(gradients((41, [2]), (42, ALL), last=62), unlogged)] == [True, False]


def test_twin_the_gradients_of_the_epoch_before_name_nobody_in_the_next() -> None:
    detector = Loss()
    claims(gradients((41, [2]), (42, ALL)), unlogged, ticks=24, detector=detector)
    claims_of(detector, [cut_frame(99.0, event("epoch.started", job(), 99.0, epoch=1))])
    assert kinds(claims(gradients((0, ALL)), broken("loss", np.nan, 50, ALL), detector=detector)) == [("loss.not_finite", job().name, True)]
