"""A worker a few percent slower than its peers or than it was; told from noise, from more work, from what slows all, and from who waits for it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detectors.diagnosis.confidence import calibrated
from detectors.diagnosis.finding_relations import cause_of
from detectors.fail_slow import FROM_THE_START, SURE, UNSURE, FailSlow
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Doubles, Finding, Kind, Layout, Step
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import BEGAN, layout_of

STEP_S = 1.0
WINDOW = 20
"""Observations that make a past: fewer than by default, for quick tests."""
ONSET = 25
Shape = Callable[[int, Doubles], None]


def frames(steps: int, *shapes: Shape, layout: Layout | None = None, tokens: float | None = 4096.0, noise: float = 0.02, seed: int = 0, first: int = 0) -> Iterator[Frame]:
    """One step a tick: each worker computes for `STEP_S`, more or less; all wait for the slowest."""
    rng, layout = np.random.default_rng(seed), layout or layout_of(4, 2)
    for number in range(first, first + steps):
        row = STEP_S * np.exp(rng.normal(0.0, noise, len(layout.placements)) + rng.normal(0.0, 0.03))
        for shape in shapes:
            shape(number, row)
        longest = float(row.max()) + 0.1
        values = {"step_s": np.full(len(row), longest), "forward_s": row / 3, "backward_s": row / 1.5, "communication_s": longest - row}
        if tokens is not None:
            values["tokens"] = np.full(len(row), tokens)
        end = BEGAN + 1.5 * (number + 1)
        step = Step(number=number, epoch=layout.epoch, workers=layout.workers, end=end, values={name: np.asarray(each, np.float32) for name, each in values.items()})
        yield Frame(job=layout.job, number=number + 1, generation=1, time=end, tick=True, steps=(step,), layout=layout)


def slower(workers: int | tuple[int, ...], times: float, begin: int, end: int = 1 << 30) -> Shape:
    def shape(number: int, row: Doubles) -> None:
        if begin <= number < end:
            row[np.array(workers)] *= times

    return shape


def staged(stages: int, replicas: int, tensor: int = 1) -> Layout:
    """One worker a node: replica by replica, stage by stage, tensor rank by tensor rank."""
    layout = layout_of(stages * replicas * tensor, 1)
    places = tuple(
        msgspec.structs.replace(place, dp=rank // (stages * tensor), pp=rank // tensor % stages, tp=rank % tensor) for rank, place in enumerate(layout.placements)
    )
    return msgspec.structs.replace(layout, placements=places)


def first(found: Iterable[tuple[int, Claim]]) -> tuple[int, Claim]:
    return next((step, claim) for step, claim in found if claim.active)


def told(seen: Iterable[Frame], detector: FailSlow | None = None) -> list[tuple[int, Claim]]:
    detector = detector or FailSlow(window=WINDOW)
    return [(frame.steps[0].number, claim) for frame in seen for claim in detector.update(frame)]


def kinds(found: list[tuple[int, Claim]]) -> list[tuple[str, str, bool]]:
    return [(claim.kind, claim.entity.name, claim.active) for _, claim in found]


@pytest.mark.parametrize(("times", "steps", "begin"), [(1.25, 10, 1), (1.25, 10, ONSET), (1.10, 30, 1), (1.10, 30, ONSET), (1.05, 150, 1)])
def test_fault_the_less_slow_a_worker_is_the_more_steps_it_takes_and_it_is_named_alone(times: float, steps: int, begin: int) -> None:
    found = told(frames(begin + steps, slower(3, times, begin)))
    assert kinds(found) == [("worker.slower", "run/node-1/1", True)]
    evidence = found[0][1].evidence
    assert evidence[0].metric == "compute_ratio"
    assert evidence[0].value == pytest.approx(times, abs=0.03)
    assert "a healthy worker" in evidence[0].text


def test_since_is_when_it_began() -> None:
    _, claim = first(told(frames(40, slower(3, 1.25, 28))))
    assert claim.since == pytest.approx(BEGAN + 1.5 * 29, abs=3.0)


def test_twin_noise_alone_makes_nobody_slow_however_heavy_its_tails() -> None:
    rng = np.random.default_rng(1)

    def heavy(_: int, row: Doubles) -> None:
        row *= np.exp(0.03 * rng.standard_t(2.0, len(row)))

    assert told(frames(100, heavy)) == []


def test_twin_noise_that_lasts_is_worth_less() -> None:
    rng, noise = np.random.default_rng(3), np.zeros(8)

    def lasting(_: int, row: Doubles) -> None:
        noise[:] = 0.95 * noise + rng.normal(0.0, 0.02, 8)
        row *= np.exp(noise)

    assert told(frames(200, lasting, noise=0.001)) == []


def test_twin_one_fast_worker_makes_the_others_no_slow_ones() -> None:
    for nodes in (3, 4):
        for begin in (0, ONSET):
            assert told(frames(40, slower(1, 0.6, begin), layout=layout_of(nodes, 1))) == []


def test_twin_what_slows_all_alike_accuses_nobody() -> None:
    assert told(frames(90, slower(tuple(range(8)), 1.4, ONSET))) == []


def test_twin_workers_that_have_always_differed_by_as_much_are_not_slow() -> None:
    levels = np.array([1.0, 0.96, 1.04, 0.98, 1.02, 0.95, 1.05, 1.07])

    def unlike(_: int, row: Doubles) -> None:
        row *= levels

    assert told(frames(60, unlike)) == []


def test_twin_stages_with_the_embedding_and_the_head_are_no_peers_of_the_others() -> None:
    layout = staged(stages=4, replicas=4)

    def unequal(_: int, row: Doubles) -> None:
        row[[0, 4, 8, 12]] *= 1.15
        row[[3, 7, 11, 15]] *= 1.45

    assert told(frames(50, unequal, layout=layout)) == []
    assert kinds(told(frames(50, unequal, slower(7, 1.15, ONSET), layout=layout))) == [("worker.slower", "run/node-7/0", True)]


@pytest.mark.parametrize("tokens", [None, 4096.0])
def test_fault_a_worker_without_peers_of_its_role_is_found_by_its_own_past(tokens: float | None) -> None:
    """Two replicas of two stages: the other stages show that its batches are not longer."""
    found = told(frames(50, slower(2, 1.15, ONSET), layout=staged(stages=2, replicas=2), tokens=tokens))
    assert kinds(found) == [("worker.slower", "run/node-2/0", True)]
    assert "its own best time" in found[0][1].evidence[0].text


def test_fault_creeping_slowness_does_not_drag_its_measure_along() -> None:
    """1.5 times over 500 steps: 0.1 % a step."""

    def creeping(number: int, row: Doubles) -> None:
        row[2] *= 1.0 + 0.5 * max(0, number - ONSET) / 500.0

    found = told(frames(150, creeping, layout=staged(stages=2, replicas=2)))
    assert kinds(found) == [("worker.slower", "run/node-2/0", True)]


def test_the_past_of_a_worker_holds_over_epochs_and_is_forgotten_where_the_model_is_split_anew() -> None:
    layout = staged(stages=2, replicas=2)
    later = msgspec.structs.replace(layout, epoch=2)
    begun = cut_frame(BEGAN + 151.0, event("epoch.started", job(), BEGAN + 151.0, epoch=2))
    for after, expected in ((later, ["worker.slower"]), (msgspec.structs.replace(staged(stages=4, replicas=1), epoch=2), [])):
        detector = FailSlow(window=WINDOW)
        assert claims_of(detector, frames(ONSET, layout=layout)) == []
        claims_of(detector, [begun])
        found = told(frames(20, slower(2, 1.2, 0), layout=after, first=101), detector)
        assert [claim.kind for _, claim in found] == expected


def test_what_a_slower_worker_costs_is_told_where_the_others_wait_for_it() -> None:
    text = "had worker run/node-1/1 computed as its peers, a step had taken"
    found = told(frames(50, slower(3, 1.25, ONSET)))
    line = next(line for line in found[0][1].evidence if text in line.text)
    assert line.value == pytest.approx(0.22 / 1.35, abs=0.05)
    found = told(frames(50, slower(3, 1.25, ONSET), slower(6, 1.4, 0)))
    assert not any(text in line.text for _, claim in found for line in claim.evidence), "another one is slower still"


def test_a_worker_that_keeps_up_again_is_withdrawn_and_so_it_is_with_a_new_epoch() -> None:
    assert kinds(told(frames(85, slower(3, 1.25, 20, 60)))) == [("worker.slower", "run/node-1/1", True), ("worker.slower", "run/node-1/1", False)]
    detector = FailSlow()
    told(frames(35, slower(3, 1.25, 20)), detector)
    over = claims_of(detector, [cut_frame(1.0, event("epoch.started", job(), 1.0, epoch=2))])
    assert [claim.active for claim in over] == [False]


def test_twin_without_tokens_it_may_have_more_work_which_is_told_only_of_one_that_changed() -> None:
    assert told(frames(40, slower(3, 1.25, 0), tokens=None)) == []
    found = told(frames(40, slower(3, 1.25, ONSET), tokens=None))
    assert kinds(found) == [("worker.unequal_compute", "run/node-1/1", True)]
    assert "logs no tokens" in found[0][1].evidence[-1].text


def with_values(seen: Iterable[Frame], **values: Callable[[int], Doubles]) -> Iterator[Frame]:
    """Further values of each step, by its number."""
    for frame in seen:
        step = frame.steps[0]
        more = {name: np.asarray(make(step.number), np.float32) for name, make in values.items()}
        yield replace(frame, steps=(msgspec.structs.replace(step, values={**step.values, **more}),))


def of_one(worker: int, value: float, usual: float) -> Callable[[int], Doubles]:
    def make(number: int) -> Doubles:
        values = np.full(8, usual)
        values[worker] = value if number >= ONSET else usual
        return values

    return make


@pytest.mark.parametrize(
    "values",
    [
        {"tokens": of_one(3, 1.3 * 4096, 4096)},
        {"sequence_length": of_one(3, 2600, 2048)},
        {"garbage_collection_s": of_one(3, 0.3, 0.0)},
        {"compiled_graphs": of_one(3, 1.0, 0.0)},
        {"gpu_lag_s": of_one(3, 0.9, 0.0), "gpu_forward_s": of_one(3, 0.3, 0.3), "gpu_backward_s": of_one(3, 0.6, 0.6), "gpu_optimizer_s": of_one(3, 0.05, 0.05)},
    ],
    ids=["more tokens", "longer sequences", "garbage collection", "recompilation", "a host ahead of its GPU"],
)
def test_twin_more_work_and_what_the_script_does_itself_is_no_slow_machine(values: dict[str, Callable[[int], Doubles]]) -> None:
    assert told(with_values(frames(40, slower(3, 1.3, ONSET)), **values)) == []


def test_fault_a_slow_gpu_whose_host_is_ahead_of_it_is_named() -> None:
    gpus = {"gpu_lag_s": of_one(3, 0.9, 0.0), "gpu_forward_s": of_one(3, 0.4, 0.3), "gpu_backward_s": of_one(3, 0.8, 0.6), "gpu_optimizer_s": of_one(3, 0.05, 0.05)}
    assert kinds(told(with_values(frames(40, slower(3, 1.3, ONSET)), **gpus))) == [("worker.slower", "run/node-1/1", True)]


@pytest.mark.parametrize(("queued", "named"), [(1.0, True), (12.0, False), (40.0, False), (np.nan, False)])
def test_twin_a_worker_that_waits_for_a_processor_is_not_sick(queued: float, named: bool) -> None:
    def waiting(frame: Frame) -> Frame:
        percent = np.zeros(8, np.float32)
        percent[3] = queued
        return replace(frame, entities={Kind.WORKER: frame.layout.workers if frame.layout else ()}, metrics={Kind.WORKER: {"runqueue_percent": percent}})

    found = told(waiting(frame) for frame in frames(45, slower(3, 1.2, ONSET)))
    assert kinds(found) == ([("worker.slower", "run/node-1/1", True)] if named else [])


@pytest.mark.parametrize(("others", "queued", "named"), [(11.0, 11.0, True), (11.0, 9.0, True), (3.0, 11.0, False), (np.nan, 11.0, False)])
def test_fault_where_all_wait_alike_for_a_processor_who_is_slow_is_named(others: float, queued: float, named: bool) -> None:
    """As the workers of a node with few processors do: the run queue excuses who stands in it longer than its peers."""

    def waiting(frame: Frame) -> Frame:
        percent = np.full(8, others, np.float32)
        percent[3] = queued
        return replace(frame, entities={Kind.WORKER: frame.layout.workers if frame.layout else ()}, metrics={Kind.WORKER: {"runqueue_percent": percent}})

    found = told(map(waiting, frames(ONSET + 60, slower(3, 1.10, ONSET))))
    assert kinds(found) == ([("worker.slower", "run/node-1/1", True)] if named else [])


@pytest.mark.parametrize(("used", "of_workers", "named"), [(97.0, 100.0, False), (80.0, 100.0, True), (97.0, 800.0, True), (np.nan, np.nan, True)])
def test_twin_a_worker_of_a_node_that_is_full_of_other_processes_is_not_sick(used: float, of_workers: float, named: bool) -> None:
    """Caches and the two threads of a core are shared, and no run queue shows it. `of_workers`: percent of a processor that each of two workers of the node uses, of 16."""
    def full(frame: Frame) -> Frame:
        workers = frame.layout.workers if frame.layout else ()
        nodes = tuple(dict.fromkeys(worker.rpartition("/")[0].rpartition("/")[2] for worker in workers))
        host = {"cpu_percent": np.array([used if node == "node-1" else 30.0 for node in nodes], np.float32), "processors": np.full(len(nodes), 16.0, np.float32)}
        own = {"cpu_percent": np.full(len(workers), of_workers, np.float32), "runqueue_percent": np.zeros(len(workers), np.float32)}
        return replace(frame, entities={Kind.WORKER: workers, Kind.NODE: nodes}, metrics={Kind.WORKER: own, Kind.NODE: host})

    found = told(full(frame) for frame in frames(45, slower(3, 1.2, ONSET)))
    assert kinds(found) == ([("worker.slower", "run/node-1/1", True)] if named else [])


def test_twin_those_that_wait_within_a_layer_for_a_slow_one_are_not_accused() -> None:
    """Four replicas of two tensor ranks, which wait for one another inside the forward pass."""
    found = told(frames(40, slower((2, 3), 1.25, ONSET), layout=staged(stages=1, replicas=4, tensor=2)))
    assert {claim.kind for _, claim in found} == {"worker.unequal_compute"}
    assert all("which of them is slow is not seen" in claim.evidence[-1].text for _, claim in found)


def test_twin_longer_batches_slow_all_stages_of_a_replica() -> None:
    for tokens in (None, 4096.0):
        found = told(frames(40, slower((2, 3), 1.25, ONSET), layout=staged(stages=2, replicas=4), tokens=tokens))
        assert {claim.kind for _, claim in found} == {"worker.unequal_compute"}
        assert all("the batches may be longer" in claim.evidence[-1].text for _, claim in found)


def test_twin_a_little_more_of_a_step_that_hardly_computes_slows_nobody() -> None:
    def hardly(_: int, row: Doubles) -> None:
        row *= 0.003

    assert told(frames(60, slower(3, 1.25, ONSET), hardly)) == []


def hurried(seen: Iterable[Frame]) -> Iterator[Frame]:
    """Steps of 55 ms."""
    for frame in seen:
        step = frame.steps[0]
        values = {name: each / np.float32(20.0) if name.endswith("_s") else each for name, each in step.values.items()}
        yield replace(frame, steps=(msgspec.structs.replace(step, end=BEGAN + 0.055 * step.number, values=values),))


@pytest.mark.parametrize(("detector", "steps"), [(FailSlow(window=WINDOW, seconds=0.5), 20), (FailSlow(window=WINDOW, steps=3), 44)])
def test_short_steps_are_one_observation_together_and_two_seconds_say_little(detector: FailSlow, steps: int) -> None:
    """Four of 55 ms are one."""
    assert told(hurried(frames(90 + steps, slower(3, 1.4, 90))), detector) == []
    assert [claim.kind for _, claim in told(hurried(frames(60, slower(3, 1.4, 0), first=90 + steps)), detector)] == ["worker.slower"]


def test_a_script_without_marks_accuses_nobody() -> None:
    def unmarked(frame: Frame) -> Frame:
        step = frame.steps[0]
        return replace(frame, steps=(msgspec.structs.replace(step, values={"step_s": step.values["step_s"]}),))

    assert told(unmarked(frame) for frame in frames(40, slower(3, 1.5, ONSET))) == []


def test_twin_late_steps_of_an_epoch_that_is_over_name_nobody() -> None:
    detector = FailSlow()
    claims_of(detector, [cut_frame(1.0, event("epoch.started", job(), 1.0, epoch=2))])
    assert told(frames(40, slower(3, 1.5, ONSET)), detector) == []


# --- work of its own


def test_a_worker_that_was_never_as_fast_as_its_peers_is_told_as_half_as_likely() -> None:
    """Rank 0 logs and gathers: nothing tells that from a machine that was slow when the job began."""
    (told_at, claim), *others = told(frames(60, slower(0, 1.12, 0)))
    assert (claim.kind, claim.entity.name, others) == ("worker.slower", "run/node-0/0", [])
    assert (claim.score, claim.evidence[-1].status) == (UNSURE, FROM_THE_START)
    assert told_at < 40
    assert cause_of(Finding(id="f", revision=1, detector="fail_slow", digest="d", job=claim.entity.name, time=1.0, **msgspec.structs.asdict(claim)))[1].word == "slower from the start"
    assert calibrated("slower from the start", claim.score) == UNSURE


@pytest.mark.parametrize("times", [1.06, 1.12, 1.25])
def test_fault_a_worker_that_became_slower_is_told_as_sure(times: float) -> None:
    _, claim = first(told(frames(ONSET + 200, slower(3, times, ONSET))))
    assert (claim.kind, claim.score) == ("worker.slower", SURE)
    assert not any(line.status for line in claim.evidence)


def test_fault_a_worker_that_is_slow_since_the_restart_and_was_fast_before_it_is_told_as_sure() -> None:
    layout = layout_of(4, 2)
    detector = FailSlow(window=WINDOW)
    assert told(frames(50, layout=layout), detector) == []
    claims_of(detector, [cut_frame(BEGAN + 80.0, event("epoch.started", job(), BEGAN + 80.0, epoch=2))])
    _, claim = first(told(frames(40, slower(3, 1.15, 0), layout=msgspec.structs.replace(layout, epoch=2), first=60), detector))
    assert (claim.kind, claim.score) == ("worker.slower", SURE)


def test_a_worker_that_was_slower_before_the_restart_too_is_still_told_as_half_as_likely() -> None:
    layout = layout_of(4, 2)
    detector = FailSlow(window=WINDOW)
    told(frames(50, slower(0, 1.12, 0), layout=layout), detector)
    claims_of(detector, [cut_frame(BEGAN + 80.0, event("epoch.started", job(), BEGAN + 80.0, epoch=2))])
    _, claim = first(told(frames(40, slower(0, 1.12, 0), layout=msgspec.structs.replace(layout, epoch=2), first=60), detector))
    assert (claim.kind, claim.score) == ("worker.slower", UNSURE)


def wandering(each: int, last: int = 1 << 30) -> Shape:
    def shape(number: int, row: Doubles) -> None:
        if number < last:
            row[number // each % 8] *= 1.25

    return shape


@pytest.mark.parametrize("each", [20, 40])
def test_twin_work_that_wanders_from_one_worker_to_the_next_soon_accuses_nobody(each: int) -> None:
    found = [claim for _, claim in told(frames(800, wandering(each))) if claim.active]
    accused = [claim for claim in found if claim.kind == "worker.slower"]
    assert len(accused) <= 4
    assert len(found) > 8
    assert "work that wanders" in found[-1].evidence[-1].text


def test_fault_a_worker_is_named_after_those_of_one_node_were_slower_together() -> None:
    """Eight that a hot rack slowed for a while are one passing fault, not eight."""
    layout = layout_of(8, 4)
    found = told(frames(300, slower(tuple(range(8)), 1.25, 60, 100), slower(20, 1.2, 200), layout=layout))
    assert ("worker.slower", "run/node-5/0", True) in kinds(found)


def test_fault_a_worker_is_named_long_after_work_has_wandered() -> None:
    found = told(frames(760, wandering(40, 200), slower(6, 1.2, 640)))
    assert kinds(found)[-1] == ("worker.slower", "run/node-3/0", True)
