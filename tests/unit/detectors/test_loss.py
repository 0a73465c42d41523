"""The loss is no number any more, or jumps."""

import numpy as np
import pytest

from detectors.loss import BAD_STEP, Loss
from eagle_eye.types import Event, Kind
from fakes.bad_losses import NAN, NUMBERS, broken, claims, everything, kinds, prints
from fakes.synthetic_events import claims_of, cut_frame, event, job, worker
from fakes.synthetic_frames import Draft, Fault, job_frames


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_fault_the_worker_whose_loss_was_first_no_number_is_named_with_the_step(value: float) -> None:
    """Its gradients reach all others in the same step, their losses in the next one."""
    found = claims(
        broken("loss", value, 41, [2]), broken("grad_norm", np.nan, 41, slice(None)), broken("loss", np.nan, 42, slice(None))
    )
    assert kinds(found) == [("loss.not_finite", "run/node-1/0", True)]
    assert (found[0].evidence[0].metric, found[0].evidence[0].value) == ("step", 41.0)


def test_fault_a_loss_of_nan_is_found_where_nothing_else_is_logged_with_it() -> None:
    def alone(draft: Draft) -> None:
        for step in draft.steps:
            del step.values["tokens"], step.values["grad_norm"]

    found = claims(broken("loss", np.nan, 41, [2]), broken("loss", np.nan, 42, slice(None)), alone)
    assert kinds(found) == [("loss.not_finite", "run/node-1/0", True)]


def test_twin_a_script_that_logs_its_loss_often_and_then_seldom_has_no_bad_loss() -> None:
    def tiring(draft: Draft) -> None:
        for step in draft.steps:
            if step.number > 10 and step.number % 10:
                step.values["loss"][:] = NAN

    assert claims(tiring) == []


def test_if_all_are_bad_in_the_same_step_nobody_is_named() -> None:
    assert kinds(claims(broken("loss", np.nan, 41, slice(None)))) == [("loss.not_finite", job().name, True)]


def test_fault_the_worker_whose_own_gradient_was_no_number_before_the_exchange_is_named() -> None:
    """The loss of that step is a number, and in the next one that of nobody."""
    own = broken("grad_norm", np.nan, 41, [2], 41)
    found = claims(own, broken("loss", np.nan, 42, slice(None)), broken("grad_norm", np.nan, 42, slice(None)))
    assert kinds(found) == [("loss.not_finite", "run/node-1/0", True)]
    assert (found[0].evidence[0].metric, found[0].evidence[0].value) == ("step", 41.0)


@pytest.mark.parametrize(
    "norms",
    [
        broken("grad_norm", np.nan, 41, slice(None)),  # logged behind the exchange
        broken("grad_norm", np.inf, 40, [2], 40),  # a step before: the scaler left that one out
        broken("grad_norm", np.nan, 41, [0, 1], 41),
    ],
)
def test_twin_norms_that_name_no_one_origin_accuse_nobody(norms: Fault) -> None:
    found = claims(norms, broken("loss", np.nan, 42, slice(None)))
    assert kinds(found) == [("loss.not_finite", job().name, True)]


def test_twin_a_norm_of_longer_ago_names_nobody_where_the_step_between_was_not_reported() -> None:
    def unreported(draft: Draft) -> None:
        draft.steps[:] = [step for step in draft.steps if step.number != 41]

    found = claims(broken("grad_norm", np.inf, 40, [2], 40), broken("loss", np.nan, 42, slice(None)), unreported)
    assert kinds(found) == [("loss.not_finite", job().name, True)]


def test_twin_an_infinite_norm_of_one_worker_whose_step_is_left_out_accuses_nobody() -> None:
    assert claims(broken("grad_norm", np.inf, 41, [2], 41)) == []


def test_twin_a_script_that_logs_its_loss_seldom_has_no_bad_loss() -> None:
    def seldom(draft: Draft) -> None:
        for step in draft.steps:
            if step.number % 10:
                step.values["loss"][:] = NAN

    assert claims(seldom) == []


def test_twin_a_worker_whose_step_was_not_reported_has_no_bad_loss() -> None:
    def unreported(draft: Draft) -> None:
        for step in draft.steps:
            if step.number == 41:
                for values in step.values.values():
                    values[1] = NAN

    assert claims(unreported) == []


def test_twin_a_loss_scaler_makes_one_infinite_norm_and_goes_on() -> None:
    assert claims(broken("grad_norm", np.inf, 41, slice(None), 42)) == []
    assert kinds(claims(broken("grad_norm", np.inf, 41, slice(None)))) == [("loss.not_finite", job().name, True)]


def test_it_is_over_when_the_loss_is_a_number_again_or_a_new_epoch_begins() -> None:
    assert [claim.active for claim in claims(broken("loss", np.inf, 41, [2], 43))] == [True, False]
    detector = Loss()
    claims(broken("loss", np.inf, 41, [2]), detector=detector)
    over = claims_of(detector, [cut_frame(99.0, event("epoch.started", job(), 99.0, epoch=2))])
    assert {(claim.kind, claim.active) for claim in over} == {("loss.not_finite", False), (BAD_STEP, False)}


# --- a bad step that may pass


@pytest.mark.parametrize("workers", [[2], [1, 2], slice(None)])
def test_twin_a_loss_that_is_a_number_again_in_the_next_step_informs_and_accuses_nobody(workers: list[int] | slice) -> None:
    """A batch that was masked as a whole; also where a scaler leaves the step out, in which no norm was a number."""
    for norms in (broken("grad_norm", np.nan, 41, slice(None), 41), broken("grad_norm", np.nan, 1, slice(None), 1)):
        found = everything(broken("loss", np.nan, 41, workers, 41), norms)
        assert kinds(found) == [(BAD_STEP, job().name, True), (BAD_STEP, job().name, False)]
        assert [line.metric for line in found[0].evidence] == ["bad_step"], "no step to roll back to"


def test_twin_masked_batches_of_one_worker_after_the_other_accuse_nobody() -> None:
    masked = [broken("loss", np.nan, 41 + place, [worker], 41 + place) for place, worker in enumerate((2, 0, 3, 0, 1))]

    def each_nan(draft: Draft) -> None:
        for step in draft.steps:
            if step.number > 40:
                step.values["loss_nan"] = np.where(np.isnan(step.values["loss"]), np.float32(1), NAN)

    assert {claim.kind for claim in everything(*masked, each_nan)} == {BAD_STEP}


@pytest.mark.parametrize(
    "next_step",
    [broken("loss", np.nan, 42, slice(None), 42), broken("loss", np.nan, 42, [0, 1, 3], 42), broken("grad_norm", np.nan, 42, [0], 42)],
    ids=["all losses", "the losses of most others", "a gradient norm"],
)
def test_fault_what_reaches_the_others_in_the_next_step_is_told_in_it_with_the_step_in_which_it_began(next_step: Fault) -> None:
    found = everything(broken("loss", np.nan, 41, [2], 41), next_step)
    told = next(claim for claim in found if claim.kind == "loss.not_finite")
    assert (told.entity.name, told.active) == ("run/node-1/0", True)
    assert [(line.metric, line.value) for line in told.evidence if line.metric] == [("step", 41.0)]
    assert "in step 42" in told.evidence[1].text
    assert told.since == found[0].since


@pytest.mark.parametrize(("last", "named"), [(42, False), (43, True)])
def test_fault_a_worker_whose_loss_alone_stays_no_number_is_named_after_three_steps(last: int, named: bool) -> None:
    found = claims(broken("loss", np.nan, 41, [2], last))
    assert [claim.entity.name for claim in found if claim.active] == ["run/node-1/0"] * named


def test_fault_where_losses_are_logged_seldom_the_next_that_is_tells() -> None:
    def seldom(draft: Draft) -> None:
        for step in draft.steps:
            if step.number % 10:
                step.values["loss"][:] = step.values["grad_norm"][:] = NAN
                step.values.pop("loss_nan", None)

    found = everything(broken("loss", np.nan, 40, [2], 40), broken("loss", np.nan, 50, slice(None)), seldom, ticks=30)
    assert kinds(found) == [(BAD_STEP, job().name, True), ("loss.not_finite", "run/node-1/0", True)]
    passing = everything(broken("loss", np.nan, 40, [2], 40), seldom, ticks=44)
    assert [(claim.kind, claim.active) for claim in passing] == [(BAD_STEP, True), (BAD_STEP, False)]


def test_twin_the_loss_of_all_that_one_worker_logs_alone_accuses_not_that_worker() -> None:
    def of_rank_0(draft: Draft) -> None:
        for step in draft.steps:
            step.values["loss"][1:] = NAN
            step.values.pop("loss_nan", None)
            if step.number >= 41:
                step.values["loss_nan"] = np.array([1.0, NAN, NAN, NAN], np.float32)

    assert kinds(claims(broken("loss", np.nan, 41, slice(None)), of_rank_0)) == [("loss.not_finite", job().name, True)]


def test_fault_a_bad_step_that_is_the_last_one_is_told() -> None:
    """The job stops or dies behind it: no step follows that would show whether it lasts."""
    def stands(draft: Draft) -> None:
        draft.steps[:] = [step for step in draft.steps if step.number <= 41]

    detector = Loss()
    assert kinds(everything(broken("loss", np.nan, 41, [2]), stands, detector=detector)) == [(BAD_STEP, job().name, True)]
    over = claims_of(detector, [cut_frame(99.0, event("epoch.started", job(), 99.0, epoch=2))])
    assert kinds(over) == [(BAD_STEP, job().name, False)]


@pytest.mark.parametrize(
    ("raised", "named"),
    [({"type": "ValueError", "message": "loss is NaN"}, True), ({"type": "FloatingPointError", "message": "non-finite loss"}, True), ({"type": "KeyError", "message": "'infiniband'"}, False)],
)
@pytest.mark.parametrize("before", [False, True])
def test_fault_a_script_that_ends_itself_because_of_it_shows_that_it_does_not_pass(raised: dict[str, str], named: bool, before: bool) -> None:
    """`before`: its exception arrives earlier than the step."""
    def stands(draft: Draft) -> None:
        draft.steps[:] = [step for step in draft.steps if step.number <= 41]

    frames = list(job_frames(2, 2, 30, np.random.default_rng(0), faults=[broken("loss", np.nan, 41, [2]), stands]))
    at = 20 if before else 25
    ended = cut_frame(frames[at].time, event("exception", worker("node-1", 0), frames[at].time, epoch=1, **raised))
    found = claims_of(Loss(), [*frames[:at], ended, *frames[at:]])
    assert [claim.entity.name for claim in found if claim.kind == "loss.not_finite"] == ["run/node-1/0"] * named


def test_twin_the_exception_of_another_worker_proves_nothing_of_a_bad_step() -> None:
    frames = list(job_frames(2, 2, 30, np.random.default_rng(0), faults=[broken("loss", np.nan, 41, [2], 41)]))
    ended = cut_frame(frames[20].time, event("exception", worker("node-0", 0), frames[20].time, epoch=1, type="ValueError", message="loss is NaN"))
    assert {claim.kind for claim in claims_of(Loss(), [*frames[:20], ended, *frames[20:]])} == {BAD_STEP}


@pytest.mark.parametrize("end", [event("epoch.started", job(), 99.0, epoch=2), event("job.finished", job(), 99.0, epoch=1)])
def test_twin_the_last_steps_of_an_epoch_that_is_over_accuse_nobody(end: Event) -> None:
    detector = Loss()
    late = list(job_frames(2, 2, 40, np.random.default_rng(0), faults=[broken("loss", np.nan, 41, [2])]))
    assert claims_of(detector, [cut_frame(99.0, end), *late]) == []


def test_fault_a_spike_of_the_loss_informs_and_passes() -> None:
    found = claims(broken("loss", 60.0, 61, slice(None), 61))
    assert kinds(found) == [("loss.spike", job().name, True), ("loss.spike", job().name, False)]
    assert found[0].evidence[0].value == 61


def levels(*losses: float) -> Fault:
    """The loss of each step, over and over."""

    def fault(draft: Draft) -> None:
        for step in draft.steps:
            step.values["loss"][:] = losses[step.number % len(losses)]

    return fault


def around(level: float, noise: float, **bumps: float) -> tuple[float, ...]:
    losses = level + np.random.default_rng(2).normal(0.0, noise, 200)
    for place, height in bumps.items():
        losses[int(place[1:])] += height
    return tuple(losses.tolist())


@pytest.mark.parametrize("level", [-5.0, 5.0])
def test_twin_a_bump_of_a_few_percent_is_no_spike_below_zero_either(level: float) -> None:
    assert claims(levels(*around(level, 0.005, _60=0.12, _120=0.12)), ticks=99) == []


@pytest.mark.parametrize("level", [-5.0, 0.0, 5.0])
def test_fault_a_spike_is_told_above_below_and_around_zero(level: float) -> None:
    found = claims(levels(*around(level, 0.005, _60=3.0)), ticks=99)
    assert kinds(found) == [("loss.spike", job().name, True), ("loss.spike", job().name, False)]


def test_twin_a_loss_around_zero_with_heavy_tails_has_no_spikes_that_are_no_higher_than_usual() -> None:
    rng = np.random.default_rng(3)
    losses = rng.normal(0.0, 0.01, 200) + np.where(np.arange(200) % 12 == 5, rng.uniform(0.2, 0.3, 200), 0.0)
    assert len([claim for claim in claims(levels(*losses.tolist()), ticks=99) if claim.active]) <= 1


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_twin_a_loss_that_is_mostly_zero_has_no_spike_where_it_is_not(share: float) -> None:
    """A hinge: its median and its median deviation are zero."""
    rng = np.random.default_rng(4)
    losses = np.where(rng.random(200) < share, rng.uniform(0.05, 0.15, 200), 0.0)
    assert claims(levels(*losses.tolist()), ticks=99) == []


def test_twin_a_falling_loss_and_a_noisy_one_are_no_spikes() -> None:
    rng = np.random.default_rng(4)

    def noisy(draft: Draft) -> None:
        for step in draft.steps:
            step.values["loss"] *= np.float32(rng.uniform(0.7, 1.4))

    assert claims(noisy, ticks=200) == []
    assert claims(ticks=200) == []


# --- what workers print

def test_fault_a_printed_loss_that_stays_nan_is_told_of_the_job_and_accuses_nobody() -> None:
    found = claims(prints((5, (100, 2.5, 0, 0)), (15, (200, np.nan, 1, 0)), (25, (300, np.nan, 2, 0)), (35, (400, np.nan, 3, 0))))
    assert kinds(found) == [("loss.not_finite", job().name, True)]
    proof = found[0].evidence[0]
    assert (proof.metric, proof.value) == ("printed_step", 400.0)  # no `step`: nobody is to roll back to a line of a log
    assert "3 lines in succession" in proof.text


def test_twin_a_nan_that_a_loss_scaler_makes_is_over_with_the_next_line() -> None:
    assert claims(prints((5, (1, np.nan, 1, 0)), (6, (2, np.nan, 2, 0)), (7, (3, 9.5, 0, 0)))) == []


def test_fault_printed_norms_that_stay_no_numbers_are_told_after_many_lines() -> None:
    found = claims(prints(*((tick, (tick, 2.5, 0, tick)) for tick in range(1, 30))))
    assert kinds(found) == [("loss.not_finite", job().name, True)]
    assert "gradient norm" in found[0].evidence[0].text


def test_twin_a_dozen_infinite_norms_at_the_beginning_of_an_fp16_run_are_none() -> None:
    assert claims(prints(*((tick, (tick, 9.5, 0, tick)) for tick in range(1, 13)), (13, (13, 9.5, 0, 0)))) == []


def test_a_printed_loss_is_over_once_everybody_prints_numbers_again() -> None:
    bad_peer = prints((6, (6, np.nan, 4, 0)), (12, (9, 2.0, 0, 0)), worker=1)
    found = claims(prints((5, (5, np.nan, 3, 0)), (8, (8, 2.5, 0, 0)), (14, (14, 2.5, 0, 0))), bad_peer)
    assert [claim.active for claim in found] == [True, False]
    assert found[1].evidence[-1].value == claims(prints((5, (5, np.nan, 3, 0))))[0].since + 7  # at tick 12, not at tick 8


def test_a_number_of_one_worker_ends_nothing_while_another_has_just_printed_none() -> None:
    peer = prints((7, (7, np.nan, 1, 0)), (20, (20, np.nan, 2, 0)), worker=1)
    assert [claim.active for claim in claims(prints((5, (5, np.nan, 3, 0)), (8, (8, 2.5, 0, 0)), (21, (21, 2.5, 0, 0))), peer)] == [True]


def test_twin_a_script_that_logs_its_loss_is_not_judged_by_what_it_prints() -> None:
    def also(draft: Draft) -> None:
        metrics = draft.metrics[Kind.WORKER]
        for name, value in zip(NUMBERS, (draft.tick, np.nan, draft.tick, 0), strict=True):
            metrics[f"printed_{name}"] = np.full(len(draft.entities[Kind.WORKER]), value, np.float32)

    def from_the_third(draft: Draft) -> None:
        if draft.tick > 2:
            also(draft)

    assert claims(from_the_third) == []


def test_twin_what_is_told_just_after_an_epoch_began_was_printed_before_it() -> None:
    detector = Loss()
    frames = list(job_frames(2, 2, 12, np.random.default_rng(0), faults=[prints((3, (3, np.nan, 9, 0)), (9, (4, 2.5, 0, 0)))]))
    begun = cut_frame(frames[1].time, event("epoch.started", job(), frames[1].time, epoch=2))
    assert claims_of(detector, [*frames[:2], begun, *frames[2:]]) == []


def test_fault_a_printed_loss_that_jumps_is_a_spike_and_passes() -> None:
    lines = [(tick, (tick * 10, 2.0 + 0.01 * (tick % 3), 0, 0)) for tick in range(1, 30)]
    found = claims(prints(*lines, (30, (300, 9.0, 0, 0)), (31, (310, 2.0, 0, 0))))
    assert kinds(found) == [("loss.spike", job().name, True), ("loss.spike", job().name, False)]
    assert (found[0].evidence[0].metric, found[0].evidence[0].value) == ("printed_step", 300)
