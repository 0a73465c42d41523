"""A node whose metrics leave the course that they take in healthy minutes."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest

from detectors.features.metric_model import FEWEST_PEAKS, MetricModel, departures, fitted, limit_of
from detectors.metric_forecast import BEFORE, NAME, MetricForecast, MetricForecastLearner
from eagle_eye.frames import Frame
from eagle_eye.types import Baseline, Claim, Doubles, Floats, Kind

NODES = ("node-0", "node-1", "node-2")
NAMES = ("cpu_percent", "load_1", "net_sent_bytes_per_s")


def readings(ticks: int, seed: int) -> Doubles:
    """ticks × nodes × metrics: load that comes and goes, which cpu and traffic follow."""
    rng = np.random.default_rng(seed)
    load = 4.0 + np.cumsum(rng.normal(0.0, 0.1, (ticks, len(NODES))), axis=0)
    noise = rng.normal(0.0, 0.05, (3, ticks, len(NODES)))
    return np.stack([10.0 * load + noise[0], load + 0.1 * noise[1], 1e6 * load + 1e5 * noise[2]], axis=2)


def frames(values: Doubles, baseline: Baseline | None = None) -> Iterator[Frame]:
    """A tick each three seconds, as the detector is asked."""
    for tick, rows in enumerate(values.astype(np.float32)):
        metrics = {Kind.NODE: {name: rows[:, column] for column, name in enumerate(NAMES)}}
        yield Frame(job="t/n/r", number=tick + 1, generation=1, time=3.0 * tick, tick=True, entities={Kind.NODE: NODES}, metrics=metrics, baselines={NAME: baseline} if baseline else {})


def sampled(learner: MetricForecastLearner) -> tuple[tuple[str, ...], Floats]:
    looked = [learner.sample(frame) for frame in frames(readings(200, 1))]
    return looked[0][0], np.concatenate([rows for _, rows in looked])


@cache
def baseline() -> Baseline:
    learner = MetricForecastLearner()
    names, matrix = sampled(learner)
    return learner.fit({"job": "t/n/r", "time": 5.0, "names": names, "matrix": matrix, "before": b""})


def told(values: Doubles, fit: Baseline | None = None) -> list[Claim]:
    detector = MetricForecast()
    return [claim for frame in frames(values, fit or baseline()) for claim in detector.update(frame)]


def test_fault_a_metric_that_leaves_the_others_company_is_told_though_its_value_is_nothing_unusual() -> None:
    values = readings(60, 2)
    usual = values[30:45, 1, 0].copy()
    values[30:45, 1, 0] = usual.mean() + 8.0 * (-1.0) ** np.arange(15)
    first, last = told(values)
    assert (first.kind, first.entity.name, first.active, last.active) == ("node.unforeseen", "node-1", True, False)
    assert first.evidence[1].metric == "cpu_percent"
    assert 30 * 3.0 - 12.0 <= first.since <= 32 * 3.0


def test_twin_load_that_comes_and_goes_in_all_metrics_and_one_odd_reading_are_not_told() -> None:
    values = readings(60, 3)
    values[20:40] *= 1.0 + 0.15 * np.sin(np.linspace(0.0, np.pi, 20))[:, None, None]
    values[50, 0, 2] *= 1.15
    assert told(values) == []


def test_without_a_baseline_without_readings_or_after_a_gap_it_is_silent() -> None:
    values = readings(40, 2)
    values[20:, 1] *= 3.0
    assert [claim for frame in frames(values) for claim in MetricForecast().update(frame)] == []
    unread = readings(40, 2)
    unread[20:, 1] = np.nan
    assert told(unread) == []
    detector = MetricForecast()
    rare = (replace(frame, time=10.0 * frame.time) for frame in frames(values, baseline()))
    assert [claim for frame in rare for claim in detector.update(frame)] == []


def test_samples_are_pairs_of_looks_three_seconds_apart() -> None:
    learner = MetricForecastLearner()
    ticks = [replace(frame, time=float(number)) for number, frame in enumerate(frames(readings(7, 1)))]
    looked = [learner.sample(frame) for frame in ticks]
    assert looked[0][0] == (*NAMES, *(BEFORE + name for name in NAMES))
    assert [len(rows) for _, rows in looked] == [0, 0, 0, 3, 0, 0, 3]
    assert np.array_equal(looked[6][1][:, 3:], looked[3][1][:, :3])


def test_too_few_samples_are_refused_and_the_same_samples_give_the_same_baseline() -> None:
    learner = MetricForecastLearner()
    names, matrix = sampled(learner)
    assert learner.fit({"job": "t/n/r", "time": 5.0, "names": names, "matrix": matrix}) == baseline()
    with pytest.raises(ValueError, match="at least 60"):
        learner.fit({"job": "t/n/r", "time": 5.0, "names": names, "matrix": matrix[:59]})


def test_a_metric_that_never_moved_is_odd_once_it_moves_and_one_that_was_never_read_says_nothing() -> None:
    before = np.concatenate([readings(120, 1)[:, 0], np.zeros((120, 1)), np.full((120, 1), np.nan)], axis=1)
    model = fitted((*NAMES, "still", "unread"), before[:-1], before[1:])
    moved = before[-1:].copy()
    moved[0, 3:] = 50.0
    seen = departures(model, before[-2:-1], moved)
    assert seen.strengths[0].argmax() == 3
    assert np.isfinite(seen.scores).all()


def test_the_limit_is_above_all_that_was_seen_and_rises_with_the_tail() -> None:
    rng = np.random.default_rng(1)
    light, heavy = rng.exponential(1.0, 5000), rng.pareto(4.0, 5000)
    assert limit_of(light) == pytest.approx(np.log(1e6), rel=0.3)
    assert limit_of(heavy) > limit_of(light)
    assert limit_of(np.arange(FEWEST_PEAKS * 1.0)) > FEWEST_PEAKS


@pytest.mark.parametrize("change", [{"mean": [1.0]}, {"spread": [0.0, 1.0, 1.0]}, {"error": [1e31, 1.0, 1.0]}, {"weights": [[0.0] * 3]}, {"limit": -1.0}, {"names": ()}])
def test_a_baseline_that_no_learner_makes_is_refused_and_said_so(change: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    model = msgspec.structs.replace(msgspec.msgpack.decode(baseline().data, type=MetricModel), **change)
    foreign = msgspec.structs.replace(baseline(), digest="x", data=msgspec.msgpack.encode(model))
    with caplog.at_level(logging.WARNING):
        assert told(readings(10, 2), foreign) == []
    assert "cannot be used" in caplog.text
