"""What-if: how long a step had taken, had some of its workers been as the others."""

import msgspec
import numpy as np
import pytest

from detectors.features.peer_roles import peer_roles
from detectors.features.step_estimate import NOTICEABLE, RecentWork, pipeline_grid
from eagle_eye.types import Doubles, Layout, Step
from fakes.synthetic_frames import BEGAN, layout_of


def staged(stages: int, replicas: int, tensor: int = 1) -> Layout:
    layout = layout_of(stages * replicas, tensor)
    places = tuple(
        msgspec.structs.replace(place, dp=rank // (stages * tensor), pp=rank // tensor % stages, tp=rank % tensor) for rank, place in enumerate(layout.placements)
    )
    return msgspec.structs.replace(layout, placements=places)


def step_of(layout: Layout, own: Doubles, step_s: float, **logged: Doubles) -> Step:
    values = {"step_s": np.full(len(own), step_s), "forward_s": own / 4, "backward_s": own / 2, "optimizer_s": own / 4, **logged}
    return Step(number=1, epoch=1, workers=layout.workers, end=BEGAN, values={name: np.asarray(each, np.float32) for name, each in values.items()})


def recent(layout: Layout, own: Doubles, step_s: float, **logged: Doubles) -> RecentWork:
    work = RecentWork()
    for _ in range(3):
        work.add(step_of(layout, own, step_s, **logged), layout)
    return work


def only(*workers: int, of: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(np.arange(of), workers)


def test_a_replica_takes_its_longest_stage_and_the_others_once() -> None:
    layout = staged(4, 2)
    own = np.array([1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.5], np.float32)
    grid = pipeline_grid(layout.workers, layout)
    assert grid.length(own) == pytest.approx(2.0)
    assert grid.length(own, 4) == pytest.approx(2.0 + 3.0 / 4)


def test_a_stage_is_as_slow_as_the_slowest_of_those_that_compute_it_together() -> None:
    layout = staged(2, 1, tensor=2)
    assert pipeline_grid(layout.workers, layout).length(np.array([1.0, 1.2, 0.5, 0.4], np.float32), 2) == pytest.approx(1.2 + 0.5 / 2)


def test_workers_without_a_layout_are_replicas_of_their_own() -> None:
    grid = pipeline_grid(("a", "b", "c"), None)
    assert (len(grid.replicas), grid.stages) == (3, 1)
    assert grid.length(np.array([1.0, 3.0, 2.0], np.float32), 4) == pytest.approx(3.0)


def test_replicas_of_different_depth_have_no_stages_to_compare() -> None:
    layout = staged(4, 2)
    assert pipeline_grid(layout.workers[:-1], layout).stages == 0


def test_one_slow_worker_costs_what_it_is_slower_and_two_alike_only_together() -> None:
    layout, own = layout_of(8, 1), np.ones(8)
    own[3] = 1.5
    saved = recent(layout, own, 1.7).had(only(3, of=8), peer_roles(layout.workers, layout, 3))
    assert saved is not None
    assert saved.step_s == pytest.approx(1.7)
    assert saved.saved_s == pytest.approx(0.5)
    own[5] = 1.5
    work = recent(layout, own, 1.7)
    alone, together = (work.had(only(*who, of=8), peer_roles(layout.workers, layout, 3)) for who in ((3,), (3, 5)))
    assert alone is not None
    assert together is not None
    assert alone.share < NOTICEABLE
    assert together.saved_s == pytest.approx(0.5)


def test_a_slow_worker_of_a_short_stage_is_waited_for_by_nobody() -> None:
    layout, own = staged(2, 4), np.tile([0.5, 1.0], 4)
    own[2] = 0.9
    saved = recent(layout, own, 1.2).had(only(2, of=8), peer_roles(layout.workers, layout, 3))
    assert saved is not None
    assert saved.saved_s == pytest.approx(0.0)


def test_nothing_is_said_where_workers_do_not_wait_or_have_no_peers_or_no_marks() -> None:
    layout, own = layout_of(8, 1), np.ones(8)
    own[3] = 1.5
    roles, alone = peer_roles(layout.workers, layout, 3), staged(2, 1)
    assert recent(layout, own, 1.1).had(only(3, of=8), roles) is None
    assert recent(alone, np.array([1.0, 1.5]), 1.7).had(only(1, of=2), peer_roles(alone.workers, alone, 3)) is None
    assert RecentWork().had(only(3, of=8), roles) is None


def test_gpus_that_are_behind_their_hosts_are_told_by_their_own_time() -> None:
    layout, own = layout_of(8, 1), np.ones(8)
    gpu = np.ones(8)
    gpu[3] = 2.0
    behind = {"gpu_lag_s": np.full(8, 0.2), "gpu_forward_s": gpu / 2, "gpu_backward_s": gpu / 2}
    saved = recent(layout, own, 2.2, **behind).had(only(3, of=8), peer_roles(layout.workers, layout, 3))
    assert saved is not None
    assert saved.saved_s == pytest.approx(1.0)
    behind["gpu_lag_s"] = np.full(8, 0.0)
    saved = recent(layout, own, 2.2, **behind).had(only(3, of=8), peer_roles(layout.workers, layout, 3))
    assert saved is not None
    assert saved.saved_s == pytest.approx(0.0)


@pytest.mark.parametrize(("own", "words"), [
    ([1.0, 1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.0], "had worker run/node-3/0 been"),
    ([0.8, 1.6, 0.8, 1.6, 0.8, 1.6, 0.8, 1.6], "had all pipeline stages the same work (stage 1 has most)"),
    ([1.0] * 8, ""),
])  # fmt: skip
def test_the_best_what_if_of_a_job(own: list[float], words: str) -> None:
    layout = staged(2, 4) if "stages" in words else layout_of(8, 1)
    found = recent(layout, np.array(own), 1.8).best()
    assert (found.text if found else "").startswith(words)


def test_the_operation_that_makes_steps_long_is_named() -> None:
    work, layout = RecentWork(), layout_of(8, 1)
    rng = np.random.default_rng(1)
    for number in range(5):
        data = np.where(np.arange(8) == rng.integers(8), 0.8, 0.0) + 0.01 * (number + 1)
        work.add(step_of(layout, np.ones(8), 2.0, data_s=data), layout)
    found = work.best()
    assert found is not None
    assert "nobody waited for data for longer than its peers" in found.text
