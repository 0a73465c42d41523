"""A node whose metrics leave the course that they take in healthy minutes."""

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest

from detectors.features.healthy_limit import FEWEST_PEAKS, limit_of
from detectors.features.hidden_layer import HiddenLayer
from detectors.features.metric_model import MetricModel, checked, departures, fitted
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


# --- the network -----------------------------------------------------------------------------------------------------


BENT = tuple("abcdefgh")


def course(bend: float, seed: int = 1) -> Doubles:
    """Samples × metrics: two that come and go, and six that follow them, straight (0.0) or by their squares."""
    rng = np.random.default_rng(seed)
    first = 2.0 * np.sin(np.arange(2000)[:, None] / np.array([[7.0, 11.0]]) + rng.uniform(0.0, 6.0, (1, 2))) + rng.normal(0.0, 0.05, (2000, 2))
    follows = np.tile((1.0 - bend) * first + bend * first**2, 3)
    following = np.concatenate([follows[:1], follows[:-1]]) + rng.normal(0.0, 0.05, (2000, 6))
    values: Doubles = np.concatenate([10.0 + first, 20.0 + following], axis=1)
    return values


def test_a_network_is_used_where_it_finds_more_than_the_linear_forecast_and_not_where_that_does_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    bent, straight = course(1.0), course(0.0)
    assert fitted(BENT, straight[:-1], straight[1:], network=True).hidden is None
    monkeypatch.setattr("detectors.features.metric_model.SPREADS_OFF", (0.05, 0.5))  # larger ones both find
    network, linear = fitted(BENT, bent[:-1], bent[1:], network=True), fitted(BENT, bent[:-1], bent[1:])
    assert network.hidden is not None
    assert linear.hidden is None, "it is trained where somebody asks for it"
    unseen = course(1.0, seed=3)
    struck = unseen[1:].copy()
    struck[:, 2] += 1.5
    found = [(departures(model, unseen[:-1], struck).scores > np.quantile(departures(model, unseen[:-1], unseen[1:]).scores, 0.99)).mean() for model in (network, linear)]
    assert found[0] > found[1] + 0.3
    assert checked(msgspec.msgpack.decode(msgspec.msgpack.encode(network), type=MetricModel)) == network


def test_without_torch_the_linear_forecast_stands_alone_and_it_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    bent = course(1.0)
    with caplog.at_level(logging.INFO):
        assert fitted(BENT, bent[:-1], bent[1:], network=True) == fitted(BENT, bent[:-1], bent[1:])
    assert caplog.text.count("torch is not installed") == 1


ZEROS = [[0.0] * 2] * 3, [0.0] * 2, [[0.0] * 3] * 2


@pytest.mark.parametrize(
    "change",
    [{"hidden": HiddenLayer(ZEROS[0], [], ZEROS[2])}, {"hidden": HiddenLayer(ZEROS[0][:2], *ZEROS[1:])}, {"hidden": HiddenLayer(*ZEROS[:2], [[0.0] * 4] * 2)}, {"hidden": HiddenLayer(ZEROS[0], [1e31, 0.0], ZEROS[2])}, {"version": 3}],
)
def test_a_network_that_no_learner_makes_is_refused(change: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    test_a_baseline_that_no_learner_makes_is_refused_and_said_so(change, caplog)


def test_a_baseline_of_the_first_version_is_read_on() -> None:
    stored = msgspec.msgpack.decode(baseline().data)
    del stored["version"], stored["hidden"]
    assert checked(msgspec.msgpack.decode(msgspec.msgpack.encode(stored), type=MetricModel)).version == 1
