"""A network that takes the noise off windows of readings: trained in a child process, used where it finds more, refused where it comes from nobody."""

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest

from detectors.features.hidden_layer import HiddenLayer
from detectors.features.window_denoiser import (
    FEWEST,
    LENGTH,
    VERSION,
    WindowDenoiser,
    denoised,
    denoiser_of,
    learned,
    one_sided,
)
from detectors.peer_metrics import NAME, PeerMetrics, PeerMetricsLearner
from detectors.runtime.baseline_learner import BaselineLearner
from eagle_eye.clock import FakeClock
from eagle_eye.frames import Frame
from eagle_eye.types import Baseline, Claim, Doubles, Kind

POWER = "gpu/power_watts"
GPUS = tuple(f"GPU-{number}" for number in range(16))
BEGIN, END = 120, 160
ONE = slice(3, 4)


def noise(count: int, seed: int = 0) -> Doubles:
    return np.random.default_rng(seed).standard_normal((count, LENGTH))


@cache
def of_noise() -> WindowDenoiser:
    return learned({POWER: noise(8000)}, 3.0)


def baseline(model: WindowDenoiser) -> Baseline:
    return Baseline(name=NAME, job="t/n/r", digest=str(id(model)), fitted=1.0, data=msgspec.msgpack.encode(model))


def test_it_is_used_where_it_finds_more_steps_at_the_same_rate_of_healthy_windows() -> None:
    model = of_noise()
    assert model.layer is not None
    unseen = noise(4000, seed=7)
    assert (np.abs(one_sided(denoised(model.layer, unseen))) > model.limits[POWER]).mean() <= 0.002
    struck = unseen.copy()
    struck[:, -8:] += 3.0
    assert (one_sided(denoised(model.layer, struck)) > model.limits[POWER]).mean() > 0.9
    assert (one_sided(struck) > 3.0).mean() < 0.1, "the readings alone do not find it"


def test_it_is_not_used_where_healthy_machines_take_steps_themselves() -> None:
    rng = np.random.default_rng(1)
    stepping = noise(4000) + rng.uniform(-8.0, 8.0, 4000)[:, None] * (np.arange(LENGTH) >= rng.integers(1, LENGTH, 4000)[:, None])
    assert learned({POWER: stepping}, 3.0) == WindowDenoiser(VERSION, None, {})


def test_of_too_few_windows_nothing_is_learned_and_the_same_windows_give_the_same_network() -> None:
    assert learned({POWER: noise(FEWEST - 1)}, 3.0) == WindowDenoiser(VERSION, None, {})
    assert learned({POWER: noise(600)}, 3.0) == learned({POWER: noise(600)}, 3.0)


def test_without_torch_the_readings_alone_count_and_it_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with caplog.at_level(logging.INFO):
        assert learned({POWER: noise(FEWEST)}, 3.0) == WindowDenoiser(VERSION, None, {})
    assert caplog.text.count("torch is not installed") == 1


def layer(**changes: object) -> HiddenLayer:
    return msgspec.structs.replace(HiddenLayer([[0.0] * 2] * LENGTH, [0.0] * 2, [[0.0] * LENGTH] * 2), **changes)


HOSTILE = [
    b"", b"\xc1", b"\x91" * 20_000 + b"\xc0", msgspec.msgpack.encode(["no", "model"]),
    *(msgspec.msgpack.encode(model) for model in (
        WindowDenoiser(VERSION + 1, None, {}), WindowDenoiser(VERSION, None, {POWER: 0.0}), WindowDenoiser(VERSION, None, {POWER: float("nan")}), WindowDenoiser(VERSION, None, {POWER: 1e31}),
        WindowDenoiser(VERSION, layer(bias=[]), {}), WindowDenoiser(VERSION, layer(bias=[0.0] * 3), {}), WindowDenoiser(VERSION, layer(inward=[[0.0] * 2] * 3), {}),
        WindowDenoiser(VERSION, layer(outward=[[0.0] * LENGTH, [0.0]]), {}), WindowDenoiser(VERSION, layer(bias=[float("nan"), 0.0]), {}), WindowDenoiser(VERSION, layer(outward=[[1e31] * LENGTH] * 2), {}),
        WindowDenoiser(VERSION, HiddenLayer([[0.0] * 2000] * LENGTH, [0.0] * 2000, [[0.0] * LENGTH] * 2000), {}),
    )),
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_a_baseline_that_no_learner_makes_is_refused_and_the_one_before_stays(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    detector, model = PeerMetrics(), WindowDenoiser(VERSION, layer(), {POWER: 1.5})
    frame = next(frames(lambda power: None))
    list(detector.update(replace(frame, baselines={NAME: baseline(model)})))
    list(detector.update(replace(frame, baselines={NAME: msgspec.structs.replace(baseline(model), digest="x", data=data)})))
    assert detector._denoiser == model
    assert caplog.text.count("cannot be used") == 1
    with pytest.raises((ValueError, msgspec.MsgspecError, RecursionError)):
        denoiser_of(data)


# --- in the detector -------------------------------------------------------------------------------------------------


def frames(change: object, model: WindowDenoiser | None = None, *, ticks: int = 200, deviation: float = 0.1, seed: int = 5) -> Iterator[Frame]:
    """Power that is noisy from one reading to the next."""
    power = 600.0 * np.exp(np.random.default_rng(seed).normal(0.0, deviation, (ticks, len(GPUS))))
    change(power)  # type: ignore[operator]
    known = {NAME: baseline(model)} if model is not None else {}
    for tick, row in enumerate(power.astype(np.float32)):
        yield Frame(job="t/n/r", number=tick + 1, generation=1, time=100.0 + tick, tick=True, entities={Kind.GPU: GPUS}, metrics={Kind.GPU: {"power_watts": row}}, baselines=known)


def told(change: object, model: WindowDenoiser | None) -> list[Claim]:
    detector = PeerMetrics()
    return [claim for frame in frames(change, model) for claim in detector.update(frame)]


def times(factor: float, of: slice = ONE, begin: int = BEGIN, end: int = END) -> object:
    def change(power: Doubles) -> None:
        power[begin:end, of] *= factor

    return change


def test_fault_a_gpu_that_keeps_apart_by_less_than_its_noise_is_told_once_the_noise_is_learned() -> None:
    assert told(times(0.78), None) == []
    first, *_, last = told(times(0.78), of_noise())
    assert (first.kind, first.entity.name, first.active, last.active) == ("gpu.unlike_peers", GPUS[3], True, False)
    assert {claim.entity.name for claim in told(times(0.78), of_noise())} == {GPUS[3]}
    line = first.evidence[0]
    assert line.value is not None
    assert line.threshold is not None
    assert line.value < line.threshold < 0.9, "the limit is the one that it is beyond"
    assert BEGIN - LENGTH <= first.since - 100.0 <= BEGIN + LENGTH


@pytest.mark.parametrize("innocent", [times(1.0), times(0.95), times(0.7, slice(None)), times(0.7, slice(0, 8)), times(0.6, end=BEGIN + 3)], ids=["healthy", "a little", "all", "half", "three seconds"])
def test_twin_noise_and_what_many_show_are_not_told(innocent: object) -> None:
    assert told(innocent, of_noise()) == []


def test_a_denoiser_that_is_of_no_use_changes_nothing() -> None:
    change = times(0.4)
    assert told(change, WindowDenoiser(VERSION, None, {})) == told(change, None)


def test_the_learner_is_fitted_in_a_child_process_and_what_it_learns_finds_the_fault() -> None:
    learner = BaselineLearner({NAME: PeerMetricsLearner()}, clock=FakeClock(), first_ticks=90, every_ticks=1000)
    seen = list(frames(lambda power: None, ticks=420, seed=9))
    assert all(learner.tick([(frame, True)]) == [] for frame in seen)
    assert learner._child is not None, "a child is fitting"
    assert learner._child.connection.poll(120)
    (fitted,) = learner.tick([(seen[-1], False)])
    learner.close()
    model = denoiser_of(fitted.data)
    assert model.layer is not None
    assert list(model.limits) == [POWER]
    assert {claim.entity.name for claim in told(times(0.78), model)} == {GPUS[3]}


def test_samples_are_windows_of_one_metric_each_beside_the_level_of_their_machine() -> None:
    learner = PeerMetricsLearner()
    looked = [learner.sample(frame) for frame in frames(lambda power: None, ticks=80)]
    names, rows = looked[0][0], np.concatenate([rows for _, rows in looked])
    assert names[:3] == (POWER, "gpu/sm_clock_mhz", "node/power_watts")
    assert len(names) == 3 + LENGTH
    assert (rows[:, 0] == 1.0).all()
    assert not rows[:, 1:3].any()
    assert rows[:, 3:].std() == pytest.approx(1.0, rel=0.3)
