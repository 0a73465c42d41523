"""Stages and batches of unequal work are told with what they cost; told from slow workers, from noise, and from what costs too little."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detectors.unequal_work import UnequalWork
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Doubles, Layout, Step
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import BEGAN, layout_of

Shape = Callable[[int, Doubles, dict[str, Doubles]], None]
STEPS = 80


def staged(stages: int, replicas: int) -> Layout:
    """One worker a node, replica by replica."""
    layout = layout_of(stages * replicas, 1)
    places = tuple(msgspec.structs.replace(place, dp=rank // stages, pp=rank % stages) for rank, place in enumerate(layout.placements))
    return msgspec.structs.replace(layout, placements=places)


def frames(layout: Layout, *shapes: Shape, steps: int = STEPS, noise: float = 0.02, seed: int = 0, split: bool = False, waits: bool = True) -> Iterator[Frame]:
    """One step a second and a half: each worker computes for about a second, forward a third of it. `split`: forward and backward vary by themselves."""
    rng, count = np.random.default_rng(seed), len(layout.placements)
    for number in range(steps):
        row = np.exp(rng.normal(0.0, noise, count))
        logged: dict[str, Doubles] = {}
        for shape in shapes:
            shape(number, row, logged)
        forward = row / 3.0 * np.exp(rng.normal(0.0, noise if split else 0.0, count))
        backward = row / 1.5 * np.exp(rng.normal(0.0, noise if split else 0.0, count))
        longest = float((forward + backward).max()) + 0.1 if waits else forward + backward + 0.1
        values = {"step_s": np.full(count, longest) if waits else longest, "forward_s": forward, "backward_s": backward, "communication_s": longest - forward - backward, **logged}
        end = BEGAN + 1.5 * (number + 1)
        step = Step(number=number, epoch=layout.epoch, workers=layout.workers, end=end, values={name: np.asarray(each, np.float32) for name, each in values.items()})
        yield Frame(job=layout.job, number=number + 1, generation=1, time=end, tick=True, steps=(step,), layout=layout)


def longer(workers: slice | int, times: float, begin: int = 0, end: int = 1 << 30) -> Shape:
    def shape(number: int, row: Doubles, logged: dict[str, Doubles]) -> None:
        if begin <= number < end:
            row[workers] *= times

    return shape


def batches(spread: float, *, tokens: bool = False, lengths: bool = False, seed: int = 1) -> Shape:
    """Sequences of another length in each step and worker; what computing costs grows with them."""
    rng = np.random.default_rng(seed)

    def shape(number: int, row: Doubles, logged: dict[str, Doubles]) -> None:
        work = np.exp(rng.normal(0.0, spread, len(row)))
        row *= work
        if tokens:
            logged["tokens"] = 4096.0 * work
        if lengths:
            logged["tokens"], logged["sequence_length"] = np.full(len(row), 4096.0), 4096.0 * work

    return shape


def told(found: list[Claim]) -> list[tuple[str, bool]]:
    return [(claim.kind, claim.active) for claim in found]


LAST = slice(3, None, 4)


def test_fault_a_long_last_stage_is_told_with_what_it_costs_and_accuses_nobody() -> None:
    found = claims_of(UnequalWork(), frames(staged(4, 4), longer(LAST, 1.6)))
    assert told(found) == [("stage.unequal", True)]
    claim = found[0]
    assert claim.entity == job()
    assert claim.evidence[0].value == pytest.approx((1.6 - 1.15) / 1.7, abs=0.03)
    assert "stage 3 has more" in claim.evidence[0].text
    assert "no machine" in claim.evidence[-1].text


def test_micro_batches_that_are_logged_make_it_cheaper_since_all_stages_are_passed_once() -> None:
    def few(number: int, row: Doubles, logged: dict[str, Doubles]) -> None:
        logged["micro_batches"] = np.full(len(row), 8.0)
        logged["step_s"] = np.full(len(row), 2.2)

    found = claims_of(UnequalWork(), frames(staged(4, 4), longer(LAST, 1.6), few))
    assert found[0].evidence[0].value == pytest.approx((1.6 - 1.15) * (7 / 8) / 2.2, abs=0.03)


def test_it_is_over_when_the_stages_are_alike_and_with_a_new_epoch() -> None:
    assert told(claims_of(UnequalWork(), frames(staged(4, 4), longer(LAST, 1.6, end=70), steps=150))) == [("stage.unequal", True), ("stage.unequal", False)]
    detector = UnequalWork()
    claims_of(detector, frames(staged(4, 4), longer(LAST, 1.6)))
    assert [claim.active for claim in claims_of(detector, [cut_frame(1.0, event("epoch.started", job(), 1.0, epoch=2))])] == [False]


def test_a_single_replica_is_told_from_the_start_alone_and_doubted() -> None:
    found = claims_of(UnequalWork(), frames(staged(4, 1), longer(3, 1.6)))
    assert told(found) == [("stage.unequal", True)]
    assert "looks the same" in found[0].evidence[-1].text


def test_twin_a_machine_of_a_single_replica_that_becomes_slow_is_no_long_stage() -> None:
    assert claims_of(UnequalWork(), frames(staged(4, 1), longer(3, 1.6, begin=25), steps=160)) == []


@pytest.mark.parametrize("replicas", [2, 4])
def test_twin_one_slow_worker_makes_no_long_stage(replicas: int) -> None:
    assert claims_of(UnequalWork(), frames(staged(4, replicas), longer(3, 1.8), split=True)) == []


def test_twin_a_slow_replica_makes_no_long_stage() -> None:
    assert claims_of(UnequalWork(), frames(staged(4, 4), longer(slice(0, 4), 1.8), split=True)) == []


def test_twin_a_stage_that_costs_little_is_not_told() -> None:
    assert claims_of(UnequalWork(), frames(staged(4, 4), longer(LAST, 1.08))) == []


def test_twin_workers_that_do_not_wait_for_one_another_lose_nothing() -> None:
    assert claims_of(UnequalWork(), frames(staged(4, 4), longer(LAST, 1.6), waits=False)) == []


@pytest.mark.parametrize("logged", [{"tokens": True}, {"lengths": True}])
def test_fault_unequal_batches_are_told_with_what_explains_them(logged: dict[str, bool]) -> None:
    found = claims_of(UnequalWork(), frames(layout_of(8, 1), batches(0.2, **logged)))
    assert told(found) == [("work.unequal", True)]
    assert found[0].evidence[0].value is not None
    assert found[0].evidence[0].value > 0.15
    assert "tokens and the length of their sequences explain" in found[0].evidence[1].text


def test_how_much_tokens_explain_is_told_where_those_of_one_worker_miss_now_and_then() -> None:
    def missed(number: int, row: Doubles, logged: dict[str, Doubles]) -> None:
        if number % 12 == 0:
            logged["tokens"] = logged["tokens"].copy()
            logged["tokens"][3] = np.nan

    (claim,) = claims_of(UnequalWork(), frames(layout_of(8, 1), batches(0.2, tokens=True), missed))
    assert re.search(r"explain (9\d|100)% of that", claim.evidence[1].text)


def test_batches_whose_lengths_are_not_logged_show_in_forward_and_backward_together() -> None:
    found = claims_of(UnequalWork(), frames(layout_of(8, 1), batches(0.2)))
    assert told(found) == [("work.unequal", True)]
    assert "not logged" in found[0].evidence[1].text


def test_twin_noise_of_that_size_is_no_work() -> None:
    """Forward and backward vary each by itself."""
    assert claims_of(UnequalWork(), frames(layout_of(8, 1), noise=0.15, split=True)) == []


def test_twin_tokens_that_differ_while_times_do_not_follow_them_explain_nothing() -> None:
    def other(number: int, row: Doubles, logged: dict[str, Doubles]) -> None:
        logged["tokens"] = 4096.0 * np.exp(np.random.default_rng(number).normal(0.0, 0.2, len(row)))

    assert claims_of(UnequalWork(), frames(layout_of(8, 1), other, noise=0.15, split=True)) == []


def test_twin_one_slow_worker_after_the_other_is_no_work_of_batches() -> None:
    slow = [longer(worker, 1.5, begin=10 * worker, end=10 * worker + 10) for worker in range(8)]
    assert claims_of(UnequalWork(), frames(layout_of(8, 1), *slow)) == []


def test_steps_without_marks_say_nothing() -> None:
    def unmarked(frame: Frame) -> Frame:
        step = frame.steps[0]
        return replace(frame, steps=(msgspec.structs.replace(step, values={"step_s": step.values["step_s"]}),))

    assert claims_of(UnequalWork(), (unmarked(frame) for frame in frames(staged(4, 4), longer(LAST, 1.6)))) == []


def test_healthy_jobs_are_never_told_to_have_unequal_work() -> None:
    """Ten seeded jobs of 16 workers, 1,000 steps each, whose workers vary by 2 %, forward and backward together: no claim."""
    for seed in range(10):
        assert claims_of(UnequalWork(), frames(staged(4, 4), steps=1000, seed=seed)) == []
