"""Baselines are fitted on healthy ticks, in a child process whose failure is told and never fatal."""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from detectors.isolation_forest import IsolationForestLearner
from detectors.runtime.baseline_learner import BaselineLearner, learners
from eagle_eye import plugins
from eagle_eye.clock import FakeClock
from eagle_eye.frames import Frame
from eagle_eye.types import Baseline, Floats, Kind, Notice
from fakes.synthetic_frames import JOB, job_frames


class Samples:
    """Remembers the nodes' cpu_percent."""

    def sample(self, frame: Frame, /) -> tuple[tuple[str, ...], Floats]:
        return ("cpu_percent",), frame.metrics[Kind.NODE]["cpu_percent"][:, None]


@dataclass
class Mean(Samples):
    """The mean of what it saw, and how much it saw."""

    def fit(self, history: Mapping[str, Any], /) -> Baseline:
        matrix = history["matrix"]
        data = msgspec.msgpack.encode([float(matrix.mean()), len(matrix), os.getpid()])
        return Baseline(name="mean", job="", digest="", fitted=0.0, data=data)


@dataclass
class Failing(Samples):
    """Cannot be fitted."""

    def fit(self, history: Mapping[str, Any], /) -> Baseline:
        raise ValueError("too few")


@dataclass
class Dying(Samples):
    """Takes its process with it."""

    def fit(self, history: Mapping[str, Any], /) -> Baseline:
        os._exit(3)


@dataclass
class Endless(Samples):
    """Never ends."""

    def fit(self, history: Mapping[str, Any], /) -> Baseline:
        threading.Event().wait()
        raise AssertionError


@dataclass
class Deaf:
    """Cannot even take samples."""

    def sample(self, frame: Frame, /) -> tuple[tuple[str, ...], Floats]:
        raise KeyError("cpu_percent")

    def fit(self, history: Mapping[str, Any], /) -> Baseline:
        raise AssertionError


class Class:
    """BaselineLearner with a clock and an ear."""

    def __init__(self, learner: Any, **options: Any) -> None:
        self.clock = FakeClock()
        self.reported: list[str] = []
        self.learner = BaselineLearner(
            {"mean": learner}, clock=self.clock, first_ticks=5, every_ticks=8, on_notice=self._told, **options
        )
        self.frames = list(job_frames(2, 1, 30, np.random.default_rng(1)))

    def _told(self, notice: Notice) -> None:
        assert notice.name == "learning.failed"
        self.reported.append(notice.message)

    def look(self, ticks: range, healthy: bool = True) -> list[Baseline]:
        return [each for tick in ticks for each in self.learner.tick([(self.frames[tick], healthy)])]

    def finish(self) -> list[Baseline]:
        """Wait for the child under way; the tick that collects it is not healthy, so that it begins nothing new."""
        child = self.learner._child
        assert child is not None
        assert child.connection.poll(30)
        return self.learner.tick([(self.frames[0], False)])


def test_a_baseline_is_fitted_in_a_child_on_healthy_ticks_only_and_stored_by_digest(tmp_path: Path) -> None:
    lesson = Class(Mean(), directory=tmp_path)
    assert lesson.look(range(10, 20), healthy=False) == []
    assert lesson.learner._child is None
    lesson.look(range(5))
    [baseline] = lesson.finish()
    mean, count, pid = msgspec.msgpack.decode(baseline.data)
    expected = np.concatenate([frame.metrics[Kind.NODE]["cpu_percent"] for frame in lesson.frames[:5]]).mean()
    assert (count, mean) == (10, pytest.approx(float(expected)))
    assert pid != os.getpid()
    assert (baseline.job, baseline.fitted) == (JOB, lesson.clock.now())
    [path] = tmp_path.iterdir()
    assert path.name == f"{baseline.digest}.msgpack"
    assert msgspec.msgpack.decode(path.read_bytes(), type=Baseline) == baseline
    assert lesson.look(range(5, 12)) == []
    assert lesson.learner._child is None  # not before the schedule says so
    lesson.look(range(12, 13))
    assert lesson.learner._child is not None
    lesson.learner.close()


@pytest.mark.parametrize(
    ("learner", "message"), [(Failing(), "ValueError: too few"), (Dying(), "ended without a result")]
)
def test_the_failure_of_a_child_is_told_and_not_fatal(learner: Any, message: str) -> None:
    lesson = Class(learner)
    lesson.look(range(5))
    assert lesson.finish() == []
    assert message in lesson.reported[0]
    assert lesson.look(range(5, 8)) == []


def test_a_child_that_takes_too_long_is_ended() -> None:
    lesson = Class(Endless(), limit_s=10.0)
    lesson.look(range(5))
    child = lesson.learner._child
    assert child is not None
    lesson.clock.advance(11.0)
    assert lesson.learner.tick([(lesson.frames[0], False)]) == []
    assert "took longer than 10 s" in lesson.reported[0]
    assert not child.process.is_alive()


def test_a_learner_that_cannot_take_samples_is_told() -> None:
    lesson = Class(Deaf())
    lesson.look(range(1))
    assert "cannot take samples: KeyError" in lesson.reported[0]


def test_a_job_that_is_gone_is_forgotten_and_other_names_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    lesson = Class(Mean())
    lesson.look(range(3))
    assert list(lesson.learner._samples) == [(JOB, "mean")]
    monkeypatch.setattr(Mean, "sample", lambda self, frame: (("other",), np.ones((1, 1), dtype=np.float32)))
    lesson.look(range(3, 4))
    assert lesson.learner._samples[JOB, "mean"].count == 1
    lesson.learner.tick([])
    assert lesson.learner._samples == {}


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detectors.runtime.baseline_learner.SAMPLES_KEPT", 7)
    lesson = Class(Mean())
    lesson.look(range(4))
    assert lesson.learner._samples[JOB, "mean"].count <= 7 + 1


def test_the_learners_beside_detectors_are_found() -> None:
    found = learners((name, plugins.load("detectors", name)) for name in ("exits", "isolation_forest"))
    assert list(found) == ["isolation_forest"]
    assert isinstance(found["isolation_forest"], IsolationForestLearner)
