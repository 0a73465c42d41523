"""A node whose numbers together are unlike those of healthy minutes."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

from collectors.nvml.watched_gpu import STATES
from detectors.features.node_metrics import MASKS_OF_GPUS, STATES_OF_GPUS, features
from detectors.isolation_forest import (
    NAME,
    Forest,
    IsolationForest,
    IsolationForestLearner,
    scores_of,
)
from detectors.isolation_forest import _arrays as arrays
from eagle_eye.frames import Frame
from eagle_eye.types import Baseline, Kind
from fakes.synthetic_events import claims_of
from fakes.synthetic_frames import Draft, Fault, job_frames


@cache
def fitted() -> tuple[Baseline, tuple[str, ...], np.ndarray]:
    learner = IsolationForestLearner()
    seen = [learner.sample(frame) for frame in job_frames(2, 2, 80, np.random.default_rng(1), gpus=True)]
    matrix = np.concatenate([matrix for _, matrix in seen])
    names = seen[0][0]
    return learner.fit({"job": "j", "time": 7.0, "names": names, "matrix": matrix}), names, matrix


def watched(*faults: Fault, ticks: int = 30) -> Iterator[Frame]:
    baseline, _, _ = fitted()
    for frame in job_frames(2, 2, ticks, np.random.default_rng(2), faults=faults, gpus=True):
        yield replace(frame, baselines={NAME: baseline})


def sick(draft: Draft) -> None:
    if 5 <= draft.tick < 20:
        metrics = draft.metrics
        metrics[Kind.NODE]["cpu_percent"][1] = 99.0
        metrics[Kind.NODE]["load_1"][1] = 40.0
        metrics[Kind.NODE]["net_sent_bytes_per_s"][1] = 1e6
        metrics[Kind.GPU]["power_watts"][2:] = 150.0
        metrics[Kind.GPU]["sm_clock_mhz"][2:] = 900.0


def test_fault_a_node_unlike_all_healthy_minutes_is_told_with_what_is_odd() -> None:
    found = claims_of(IsolationForest(), watched(sick, ticks=60))
    assert [(claim.kind, claim.entity.name, claim.active) for claim in found] == [
        ("node.unusual", "node-1", True),
        ("node.unusual", "node-1", False),
    ]
    assert found[0].score < 1.0
    assert {line.metric for line in found[0].evidence[1:]} & {"gpu.power_watts", "gpu.sm_clock_mhz", "load_1"}


def test_twin_healthy_minutes_and_one_odd_reading_are_not_told() -> None:
    def blip(draft: Draft) -> None:
        if draft.tick == 7:
            sick(draft)

    assert claims_of(IsolationForest(), watched(blip, ticks=60)) == []


def test_how_a_gpu_stands_is_no_matter_of_unusual_numbers() -> None:
    assert STATES_OF_GPUS == STATES, "the detector knows those of the collector"

    def remapped(draft: Draft) -> None:
        draft.metrics[Kind.GPU]["remapped_rows"] = np.full_like(draft.metrics[Kind.GPU]["power_watts"], 3.0)

    (frame, *_) = watched(remapped)
    assert "gpu.remapped_rows" not in features(frame)[1]
    assert "gpu.power_watts" in features(frame)[1]


def told_as(*words: str) -> set[str]:
    """The metrics of GPUs that docs/wire.md describes with one of these words first, or in it."""
    text = (Path(__file__).resolve().parents[3] / "docs" / "wire.md").read_text().partition("### Metrics of GPUs")[2]
    rows = re.findall(r"^\| ([a-z_0-9, ]+) \| (.+?) \|", text, re.MULTILINE)
    return {name for names, what in rows if any(word in what for word in words) for name in names.split(", ")}


def test_every_state_mask_and_number_of_a_thing_that_the_collectors_tell_is_left_out_of_the_means() -> None:
    left_out = told_as("state: ", "state,", "state of", "bit mask", "number of the NVLink")
    assert left_out >= {"throttle_reasons", "nvlink_worst", "remapped_rows", "fabric_healthy", "recovery_action"}
    assert left_out == STATES_OF_GPUS | MASKS_OF_GPUS

    def all_of_them(draft: Draft) -> None:
        draft.metrics[Kind.GPU] |= {name: np.full_like(draft.metrics[Kind.GPU]["power_watts"], 4.0) for name in left_out}

    (frame, *_) = watched(all_of_them)
    assert not {name.removeprefix("gpu.") for name in features(frame)[1]} & left_out


def test_without_a_baseline_it_is_silent_and_a_node_without_readings_is_no_case() -> None:
    frames = job_frames(2, 2, 30, np.random.default_rng(2), faults=[sick], gpus=True)
    assert claims_of(IsolationForest(), frames) == []

    def deaf(draft: Draft) -> None:
        for kind in (Kind.NODE, Kind.GPU):
            for values in draft.metrics[kind].values():
                values[:] = np.nan

    assert claims_of(IsolationForest(), watched(deaf)) == []


def test_the_stored_trees_score_as_scikit_learns_do() -> None:
    from sklearn.ensemble import IsolationForest as Grower

    baseline, _, matrix = fitted()
    forest = msgspec.msgpack.decode(baseline.data, type=Forest)
    known = matrix[: int(len(matrix) * 0.75)].astype(np.float32)
    grown = Grower(n_estimators=64, max_samples=min(128, len(known)), random_state=0).fit(known)
    wild = (matrix[:50] * np.random.default_rng(5).uniform(0.5, 1.5, (50, matrix.shape[1]))).astype(np.float32)
    assert np.allclose(scores_of(forest, arrays(forest), wild.astype(np.float64)), -grown.score_samples(wild))


def test_the_same_minutes_give_the_same_baseline_and_too_few_are_refused() -> None:
    baseline, names, matrix = fitted()
    history = {"job": "j", "time": 7.0, "names": names, "matrix": matrix}
    assert IsolationForestLearner().fit(history) == baseline
    with pytest.raises(ValueError, match="at least 60"):
        IsolationForestLearner().fit({**history, "matrix": matrix[:59]})


def test_features_hold_a_nodes_numbers_and_the_means_of_its_gpus() -> None:
    frame = next(iter(job_frames(2, 2, 1, np.random.default_rng(1), gpus=True)))
    nodes, names, matrix = features(frame)
    power = frame.metrics[Kind.GPU]["power_watts"]
    assert nodes == ("node-0", "node-1")
    assert np.allclose(matrix[:, names.index("gpu.power_watts")], [power[:2].mean(), power[2:].mean()])
