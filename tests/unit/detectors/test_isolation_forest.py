"""A node whose numbers together are unlike those of healthy minutes."""

import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

from collectors.nvml.watched_gpu import STATES
from detectors.features.forest_model import forests_of
from detectors.features.node_metrics import MASKS_OF_GPUS, STATES_OF_GPUS, features
from detectors.isolation_forest import NAME, IsolationForest, IsolationForestLearner
from eagle_eye.frames import Frame
from eagle_eye.types import Baseline, Kind
from fakes.synthetic_events import claims_of
from fakes.synthetic_frames import JOB, Draft, Fault, job_frames, layout_of


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
    of_nodes = [claim for claim in found if claim.entity.kind is Kind.NODE]
    assert [(claim.kind, claim.entity.name, claim.active) for claim in of_nodes] == [
        ("node.unusual", "node-1", True),
        ("node.unusual", "node-1", False),
    ]
    assert all("node-1" in claim.entity.name for claim in found)
    assert found[0].score < 1.0
    assert {f"gpu.{line.metric}".replace("gpu.gpu.", "gpu.").replace("gpu.load_1", "load_1") for line in found[0].evidence[1:]} & {"gpu.power_watts", "gpu.sm_clock_mhz", "load_1"}


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

    baseline, names, matrix = fitted()
    columns = [place for place, name in enumerate(names) if name.startswith("gpu/")]
    rows = matrix[:, columns][np.isfinite(matrix[:, columns]).any(axis=1)]
    known = (np.arange(len(rows)) * 40 // len(rows)) % 4 != 3
    grower = Grower(n_estimators=64, max_samples=128, random_state=0).fit(rows[known])
    wild = (rows[:50] * np.random.default_rng(5).uniform(0.5, 1.5, (50, rows.shape[1]))).astype(np.float32)
    assert np.allclose(forests_of(baseline.data)[Kind.GPU].scores(wild.astype(np.float64)), -grower.score_samples(wild))


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


def test_a_learner_goes_to_its_process_without_what_only_samples_need() -> None:
    learner = IsolationForestLearner()
    for frame in watched(ticks=5):
        learner.sample(frame)
    assert pickle.loads(pickle.dumps(learner)).fit(history_of(fitted())) == fitted()[0]
    assert len(pickle.dumps(learner)) < 10_000


def history_of(known: tuple[Baseline, tuple[str, ...], np.ndarray]) -> dict[str, object]:
    return {"job": "j", "time": 7.0, "names": known[1], "matrix": known[2]}


# --- GPUs and workers ------------------------------------------------------------------------------------------------

NODES, EACH = 4, 4


@cache
def of_a_larger_job() -> Baseline:
    learner = IsolationForestLearner()
    seen = [learner.sample(frame) for frame in job_frames(NODES, EACH, 120, np.random.default_rng(1), gpus=True)]
    return learner.fit({"job": "j", "time": 7.0, "names": seen[-1][0], "matrix": np.concatenate([matrix for _, matrix in seen])})


def sick_gpus(of: slice, *, begin: int = 10, end: int = 40) -> Fault:
    def fault(draft: Draft) -> None:
        if begin <= draft.tick < end:
            for metric, times in (("power_watts", 0.4), ("sm_clock_mhz", 0.6), ("temperature_celsius", 1.4), ("utilisation_percent", 0.5), ("memory_percent", 0.8)):
                draft.metrics[Kind.GPU][metric][of] *= np.float32(times)

    return fault


def sick_workers(of: slice) -> Fault:
    def fault(draft: Draft) -> None:
        if 10 <= draft.tick < 40:
            for metric, times in (("cpu_percent", 0.3), ("runqueue_percent", 30.0), ("rss_bytes", 1.5)):
                draft.metrics[Kind.WORKER][metric][of] *= np.float32(times)

    return fault


def told_of(*faults: Fault, ticks: int = 60, detector: IsolationForest | None = None) -> list[tuple[str, str, bool]]:
    baseline = of_a_larger_job()
    layout = layout_of(NODES, EACH, gpus=True)
    frames = (replace(frame, baselines={NAME: baseline}) for frame in job_frames(NODES, EACH, ticks, np.random.default_rng(2), faults=faults, gpus=True, layout=layout))
    return [(claim.kind, claim.entity.name, claim.active) for claim in claims_of(detector or IsolationForest(), frames)]


def test_fault_one_gpu_that_is_unlike_healthy_ones_is_named_and_withdrawn() -> None:
    found = told_of(sick_gpus(slice(5, 6)))
    assert [each for each in found if each[0] != "node.unusual"] == [("gpu.unusual", "GPU-node-1/1", True), ("gpu.unusual", "GPU-node-1/1", False)]


def test_fault_one_worker_is_named() -> None:
    assert told_of(sick_workers(slice(6, 7))) == [("worker.unusual", "run/node-1/2", True), ("worker.unusual", "run/node-1/2", False)]


@pytest.mark.parametrize("fault", [sick_gpus(slice(4, 8)), sick_workers(slice(4, 8))], ids=["GPUs", "workers"])
def test_fault_where_all_of_a_node_are_unusual_the_node_is_named_and_not_each(fault: Fault) -> None:
    assert told_of(fault) == [("node.unusual", "node-1", True), ("node.unusual", "node-1", False)]


@pytest.mark.parametrize("fault", [sick_gpus(slice(None)), sick_gpus(slice(0, 12)), sick_workers(slice(None))], ids=["all GPUs", "most GPUs", "all workers"])
def test_twin_an_evaluation_or_another_phase_of_all_names_nobody(fault: Fault) -> None:
    assert told_of(fault) == []


def test_twin_what_was_named_is_withdrawn_once_most_others_show_the_same() -> None:
    found = told_of(sick_gpus(slice(5, 6), end=100), sick_gpus(slice(6, 16), begin=28, end=100))
    assert ("gpu.unusual", "GPU-node-1/1", True) in found
    assert [name for _, name, active in found if active] == ["GPU-node-1/1"]
    assert {name for _, name, active in found if not active} == {"GPU-node-1/1"}


def test_twin_gpus_that_the_job_does_not_train_on_are_not_judged() -> None:
    def idle(draft: Draft) -> None:
        draft.entities[Kind.GPU] = (*draft.entities[Kind.GPU], "GPU-idle")
        for metric, values in draft.metrics[Kind.GPU].items():
            draft.metrics[Kind.GPU][metric] = np.append(values, np.float32(0.0 if draft.tick > 10 else values[0]))

    assert told_of(idle) == []


def test_gpus_by_turns_are_told_of_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detectors.isolation_forest.LOOKED_AT", 6)
    found = told_of(sick_gpus(slice(5, 6), end=100), ticks=60)
    assert [each for each in found if each[0] == "gpu.unusual"] == [("gpu.unusual", "GPU-node-1/1", True)]


def test_what_is_gone_is_withdrawn() -> None:
    def gone(draft: Draft) -> None:
        if draft.tick >= 35:
            kept = [place for place in range(16) if place != 5]
            draft.entities[Kind.GPU] = tuple(draft.entities[Kind.GPU][place] for place in kept)
            draft.metrics[Kind.GPU] = {metric: values[kept] for metric, values in draft.metrics[Kind.GPU].items()}

    found = told_of(sick_gpus(slice(5, 6), end=100), gone)
    assert [each for each in found if each[0] == "gpu.unusual"] == [("gpu.unusual", "GPU-node-1/1", True), ("gpu.unusual", "GPU-node-1/1", False)]


def test_no_state_mask_or_count_of_a_worker_is_among_its_metrics() -> None:
    names = set(forests_of(of_a_larger_job().data)[Kind.WORKER].forest.names)
    assert names == {"cpu_percent", "runqueue_percent", "rss_bytes", "throttled_percent"}


def test_a_baseline_of_the_first_version_is_refused_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    stored = msgspec.msgpack.decode(of_a_larger_job().data)
    for data in (stored["kinds"]["node"], {**stored, "version": 1}, {**stored, "kinds": {"link": stored["kinds"]["node"]}}):
        foreign = msgspec.structs.replace(of_a_larger_job(), digest=str(id(data)), data=msgspec.msgpack.encode(data))
        frame = next(iter(job_frames(2, 2, 1, np.random.default_rng(2), gpus=True)))
        assert list(IsolationForest().update(replace(frame, baselines={NAME: foreign}))) == []
    assert caplog.text.count("cannot be used") == 3


def test_healthy_minutes_that_have_moved_ask_for_an_early_fit_and_others_do_not() -> None:
    learner, still = IsolationForestLearner(), IsolationForestLearner()
    layout = layout_of(NODES, EACH, gpus=True)
    moved = job_frames(NODES, EACH, 40, np.random.default_rng(4), gpus=True, layout=layout, faults=[sick_gpus(slice(None), begin=0)])
    for frame in moved:
        learner.sample(replace(frame, baselines={NAME: of_a_larger_job()}))
    for frame in job_frames(NODES, EACH, 40, np.random.default_rng(5), gpus=True, layout=layout):
        still.sample(replace(frame, baselines={NAME: of_a_larger_job()}))
    assert (learner.drifted(JOB), still.drifted(JOB), learner.drifted("another")) == (True, False, False)


def test_of_very_many_machines_some_are_remembered_by_turns_and_a_kind_that_is_away_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detectors.isolation_forest.LEARNED_AT_ONCE", 5)
    learner = IsolationForestLearner()
    frames = list(job_frames(NODES, EACH, 3, np.random.default_rng(4), gpus=True))
    (names, first), (_, second) = learner.sample(frames[0]), learner.sample(frames[1])
    assert len(first) == len(second) == 4 + 5 + 5
    metrics = {kind: values for kind, values in frames[2].metrics.items() if kind is not Kind.WORKER}
    names_without, without = learner.sample(replace(frames[2], metrics=metrics))
    assert names_without == names
    assert len(without) == 4 + 5
