"""Whether the others wait for a slow worker: told from waits that look like work, and what it costs by itself and with others."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detectors.features.critical_path import OFF_PATH, CriticalPath
from detectors.features.peer_roles import PeerRoles, peer_roles
from detectors.features.step_estimate import PipelineGrid, Truths, pipeline_grid
from detectors.straggler import Straggler
from eagle_eye.types import Claim, Doubles, Floats, Kind, Layout, Step
from fakes.synthetic_events import claims_of
from fakes.synthetic_frames import BEGAN, Draft, Fault, SlowWorker, job_frames, layout_of


def staged(stages: int, replicas: int, tensor: int = 1) -> Layout:
    layout = layout_of(stages * replicas, tensor)
    places = tuple(
        msgspec.structs.replace(place, dp=rank // (stages * tensor), pp=rank // tensor % stages, tp=rank % tensor) for rank, place in enumerate(layout.placements)
    )
    return msgspec.structs.replace(layout, placements=places)


def statuses(found: list[Claim]) -> list[tuple[str, str, bool]]:
    """Of each claim its worker, the status of its last line, and whether it stands."""
    return [(claim.entity.name, claim.evidence[-1].status, claim.active) for claim in found]


def one_slow(*faults: Fault) -> list[Claim]:
    return claims_of(Straggler(), job_frames(2, 2, 30, np.random.default_rng(0), faults=[SlowWorker(1, 2.0, 8), *faults], step_s=0.25))


def stages_told(shape: Callable[[Draft, dict[str, Floats]], None], *faults: Fault, ticks: int = 40, synchronous: Callable[[int], bool] = lambda _: True) -> list[Claim]:
    """What is told of twelve workers in two stages of six replicas, all of which wait at the end of each step. `shape` makes the seconds of a step."""
    layout = staged(2, 6)

    def fault(draft: Draft) -> None:
        for step in draft.steps:
            values = step.values
            shape(draft, values)
            busy = values["data_s"] + values["forward_s"] + values["backward_s"] + values["optimizer_s"]
            longest = np.full_like(busy, busy.max()) if synchronous(draft.tick) else busy
            values["communication_s"] = longest - busy + np.float32(0.02)
            values["step_s"] = longest + np.float32(0.02)

    frames = job_frames(12, 1, ticks, np.random.default_rng(0), faults=[fault, *faults], step_s=0.25, layout=layout)
    return claims_of(Straggler(), (replace(frame, layout=layout) for frame in frames))


def computes(values: dict[str, Floats], workers: slice | int, times: float) -> None:
    for name in ("forward_s", "backward_s"):
        values[name][workers] *= np.float32(times)


SECOND = slice(1, None, 2)
"""Workers of the second stage."""


# --- waits that look like work


@pytest.mark.parametrize("lag", [0.0, 0.001, 0.02])
def test_fault_a_slow_worker_is_accused_although_gpus_that_wait_in_collectives_all_look_equally_long(lag: float) -> None:
    def gpus(draft: Draft) -> None:
        for step in draft.steps:
            values, count = step.values, len(step.values["step_s"])
            longest = float((values["forward_s"] + values["backward_s"] + values["optimizer_s"]).max())
            values["gpu_lag_s"] = np.full(count, 0.05, np.float32)
            values["gpu_lag_s"][1] = lag
            values["gpu_forward_s"], values["gpu_optimizer_s"] = np.full(count, 0.08, np.float32), values["optimizer_s"].copy()
            values["gpu_backward_s"] = longest - values["gpu_forward_s"] - values["gpu_optimizer_s"]

    (claim,) = one_slow(gpus)
    assert statuses([claim]) == [("run/node-0/1", "", True)]
    assert claim.evidence[-1].value == pytest.approx(0.41, abs=0.05)


def test_fault_a_slow_worker_is_accused_although_the_others_wait_for_it_where_they_wait_for_data() -> None:
    """One rank reads the batches of all."""

    def dispatched(draft: Draft) -> None:
        for step in draft.steps:
            step.values["data_s"] += np.maximum(step.values["communication_s"] - 0.02, 0)
            step.values["communication_s"] = np.minimum(step.values["communication_s"], np.float32(0.02))

    (claim,) = one_slow(dispatched)
    assert statuses([claim]) == [("run/node-0/1", "", True)]
    assert claim.evidence[-1].value == pytest.approx(0.41, abs=0.05)


def test_fault_a_slow_worker_of_a_stage_with_long_waits_for_data_of_its_own_is_accused() -> None:
    """The other stage computes for longer than it, and yet all wait for it."""

    def shape(draft: Draft, values: dict[str, Floats]) -> None:
        computes(values, SECOND, 2.0)
        values["data_s"][0::2] += np.float32(0.2)
        if draft.tick >= 8:
            computes(values, 2, 1.7)

    assert statuses(stages_told(shape)) == [("run/node-2/0", "", True)]


@pytest.mark.parametrize("data_s", [0.0, 0.2])
@pytest.mark.parametrize("timed", [False, True])
def test_twin_a_slow_worker_of_a_short_stage_is_waited_for_by_nobody_whatever_is_timed_beside(timed: bool, data_s: float) -> None:
    def shape(draft: Draft, values: dict[str, Floats]) -> None:
        computes(values, SECOND, 2.0)
        values["data_s"] += np.float32(data_s)
        if draft.tick >= 8:
            computes(values, 2, 1.6)
        if timed:
            values |= {f"gpu_{name}": values[name].copy() for name in ("forward_s", "backward_s", "optimizer_s")}
            values["gpu_lag_s"] = np.full_like(values["step_s"], 0.01)

    assert statuses(stages_told(shape)) == [("run/node-2/0", OFF_PATH, True)]


# --- looked at again


def half_recovers(draft: Draft, values: dict[str, Floats], *, long_until: int = 40) -> None:
    """Two of the short stage are slow from tick 8 on, one of them from tick 25 on in every other step; from tick 40 on no stage is long."""
    if draft.tick < long_until:
        computes(values, SECOND, 2.0)
    if draft.tick >= 8:
        computes(values, 2, 1.6)
        if draft.tick < 25 or any(values is step.values for step in draft.steps[1::2]):
            computes(values, 4, 1.6)


def test_fault_a_worker_that_is_slow_less_often_by_now_is_looked_at_again_and_accused_when_the_others_wait() -> None:
    found = stages_told(half_recovers, ticks=80)
    assert [each for each in statuses(found) if each[1]] == [("run/node-2/0", OFF_PATH, True), ("run/node-4/0", OFF_PATH, True)]
    assert sorted(each for each in statuses(found) if not each[1]) == [("run/node-2/0", "", True), ("run/node-4/0", "", True)]


def test_twin_nobody_is_accused_while_the_other_stage_stays_long() -> None:
    found = stages_told(lambda draft, values: half_recovers(draft, values, long_until=1000), ticks=80)
    assert {each[1] for each in statuses(found) if each[2]} == {OFF_PATH}


def test_one_is_off_the_path_no_more_when_that_cannot_be_said() -> None:
    """The others do not wait for anybody any more, so that nothing follows from how long they compute."""

    def shape(draft: Draft, values: dict[str, Floats]) -> None:
        computes(values, SECOND, 3.0)
        if draft.tick >= 8:
            computes(values, 2, 1.6)

    found = stages_told(shape, ticks=60, synchronous=lambda tick: tick < 30)
    assert [each[1] for each in statuses(found)] == [OFF_PATH, ""]


def test_twin_one_off_the_path_is_not_accused_because_another_is_slow_on_it() -> None:
    def shape(draft: Draft, values: dict[str, Floats]) -> None:
        computes(values, SECOND, 2.0)
        if draft.tick >= 8:
            computes(values, 2, 1.6)
        if draft.tick >= 20:
            computes(values, 5, 1.6)

    found = stages_told(shape, ticks=60)
    assert statuses(found) == [("run/node-2/0", OFF_PATH, True), ("run/node-5/0", "", True)]
    assert "had worker run/node-5/0 computed as its peers" in found[-1].evidence[-1].text


@pytest.mark.parametrize(("quota", "kind"), [(None, "worker.slow"), (0.5, "cpu.throttled")])
def test_the_ratio_is_told_where_a_worker_missed_a_step(quota: float | None, kind: str) -> None:
    def missed(draft: Draft) -> None:
        for step in draft.steps:
            if step.number % 12 == 0:
                for name in step.values:
                    step.values[name][1] = np.nan
        if quota is not None:
            draft.metrics[Kind.WORKER]["throttled_percent"][1] = 95.0
            draft.metrics[Kind.WORKER]["cpu_quota"][1] = quota

    (claim,) = one_slow(missed)
    assert claim.kind == kind
    assert any("computes 1.9" in line.text for line in claim.evidence)
    assert not any("nan" in line.text for line in claim.evidence)


def off_path_claims(*begins: int, ticks: int = 30) -> list[Claim]:
    """Of eight workers in two stages the second is twice as long; worker 2, of the first, is slow by 1.6 from tick 8 on. `begins`: from then on it is slow by 4."""
    layout = staged(2, 4)

    def long_stage(draft: Draft) -> None:
        for step in draft.steps:
            extra = np.where(np.arange(8) % 2 == 1, step.values["forward_s"] + step.values["backward_s"], np.float32(0.0))
            for name in ("forward_s", "backward_s"):
                step.values[name][1::2] *= 2.0
            step.values["step_s"] += extra.max()

    def slow(draft: Draft) -> None:
        times = 4.0 if begins and draft.tick >= begins[0] else 1.6
        for step in draft.steps if draft.tick >= 8 else ():
            before = step.values["forward_s"][2] + step.values["backward_s"][2]
            for name in ("forward_s", "backward_s"):
                step.values[name][2] *= times
            step.values["step_s"] += np.float32(max(0.0, (times - 2.2) * before))

    frames = job_frames(8, 1, ticks, np.random.default_rng(0), faults=[long_stage, slow], step_s=0.25, layout=layout)
    return claims_of(Straggler(), (replace(frame, layout=layout) for frame in frames))


def test_a_slow_worker_that_nobody_waits_for_is_told_and_not_repaired() -> None:
    found = off_path_claims()
    assert [(claim.kind, claim.entity.name, claim.active) for claim in found] == [("worker.slow", "run/node-2/0", True)]
    assert found[0].evidence[-1].status == "off the critical path"


def test_it_is_told_anew_as_a_slow_worker_when_the_others_do_wait_for_it() -> None:
    found = off_path_claims(20, ticks=50)
    assert [line.status for claim in found for line in claim.evidence[-1:]] == ["off the critical path", ""]
    assert found[-1].evidence[-1].metric == "saved_share"


def test_a_slow_worker_that_all_wait_for_is_told_with_what_it_costs() -> None:
    found = claims_of(Straggler(), job_frames(2, 2, 20, np.random.default_rng(0), faults=[SlowWorker(1, 2.0, 8)], step_s=0.25))
    line = found[0].evidence[-1]
    assert "had worker run/node-0/1 computed as its peers, a step had taken" in line.text
    assert line.value == pytest.approx(0.175 / 0.425, abs=0.04)
    assert line.status == ""


def test_both_workers_of_a_slow_node_are_told_by_what_they_cost_together() -> None:
    found = claims_of(Straggler(), job_frames(4, 2, 20, np.random.default_rng(0), faults=[SlowWorker(2, 2.5, 8), SlowWorker(3, 2.5, 8)], step_s=0.25))
    assert all("and the others that are slow" in claim.evidence[-1].text and not claim.evidence[-1].status for claim in found[:2])


# --- many at once


def as_peers(own: Doubles, who: Truths, slow: Truths, roles: PeerRoles) -> Doubles:
    """Those of `who` as the median of their peers that are not slow."""
    had = own.copy()
    for worker in np.flatnonzero(who).tolist():
        had[worker] = min(own[worker], float(np.median(own[(roles.role == roles.role[worker]) & ~slow])))
    return had


@pytest.mark.parametrize("seed", range(6))
def test_what_one_costs_by_itself_is_what_the_whole_model_says(seed: int) -> None:
    rng, layout = np.random.default_rng(seed), staged(3, 4, tensor=2)
    own, slow = rng.uniform(1.0, 1.2, 24), rng.random(24) < 0.25
    slow[3] = True
    own[slow] *= rng.uniform(1.3, 2.0, int(slow.sum()))
    roles, grid, path = peer_roles(layout.workers, layout, 3), pipeline_grid(layout.workers, layout), CriticalPath()
    values = {"step_s": np.full(24, 9.0, np.float32), "micro_batches": np.full(24, 4.0, np.float32)}
    path.add(Step(number=1, epoch=1, workers=layout.workers, end=BEGAN, values=values), layout, own.astype(np.float32))
    cost = path.cost(slow, roles)

    def taken(who: Truths) -> float:
        return float(grid.length(as_peers(own, who, slow, roles).astype(np.float32), 4.0))

    assert cost is not None
    for worker in np.flatnonzero(slow).tolist():
        just = np.arange(24) == worker
        alone = cost.alone(worker)
        assert alone is not None
        assert alone.saved_s == pytest.approx(taken(~slow & slow) - taken(just), abs=3e-3)
        assert cost.remaining(worker).saved_s == pytest.approx(taken(slow & ~just) - taken(slow), abs=3e-3)


def test_of_many_that_are_slow_at_once_the_first_are_weighed_each_by_itself_and_the_whole_job_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    by_itself: list[int] = []
    cells, place_of = PipelineGrid.cells, PipelineGrid.place_of

    def counted(grid: PipelineGrid, seconds: Floats) -> Floats:
        looked_at.append(len(grid.order))
        return cells(grid, seconds)

    def one(grid: PipelineGrid, worker: int) -> tuple[int, int]:
        by_itself.append(worker)
        return place_of(grid, worker)

    monkeypatch.setattr(PipelineGrid, "cells", counted)
    monkeypatch.setattr(PipelineGrid, "place_of", one)

    def slow(draft: Draft) -> None:
        for step in draft.steps if draft.tick >= 6 else ():
            before = step.values["forward_s"][:90] + step.values["backward_s"][:90]
            computes(step.values, slice(90), 2.0)
            step.values["step_s"] += before.max()

    detector = Straggler()
    for frame in job_frames(40, 8, 20, np.random.default_rng(0), faults=[slow], step_s=0.5):
        looked_at.clear()
        if found := list(detector.update(frame)):
            break
    assert len(found) == 90
    assert len(looked_at) <= 2
    assert set(by_itself) == set(range(64))
    assert all("and the others" in claim.evidence[-1].text and not claim.evidence[-1].status for claim in found)
