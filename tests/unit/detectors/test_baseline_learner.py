"""Baselines are fitted on healthy ticks, in a child process whose failure is told and never fatal."""

import importlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from detectors.isolation_forest import IsolationForestLearner
from detectors.runtime import baseline_learner
from detectors.runtime.baseline_learner import FAILURES, BaselineLearner, learners
from detectors.runtime.hang_watch import HANG_S, DetectorCall, MutedDetectors
from eagle_eye import plugins
from eagle_eye.clock import FakeClock
from eagle_eye.frames import Frame
from eagle_eye.types import Baseline, Floats, Kind, Layout, Notice
from fakes import runner_partition
from fakes.runner_partition import Exited, World
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


def test_a_baseline_is_fitted_in_a_child_on_healthy_ticks_only_and_stored_by_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline_learner, "STORED_BYTES", 1500)
    (tmp_path / "of-last-year.msgpack").write_bytes(b"x" * 1400)
    os.utime(tmp_path / "of-last-year.msgpack", (1.0, 1.0))
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


class Foreign:
    """Samples whatever it is told to."""

    def __init__(self, sample: Callable[[], Any]) -> None:
        self._sample = sample

    def sample(self, frame: Frame, /) -> Any:
        return self._sample()

    def fit(self, history: Mapping[str, Any], /) -> Baseline:
        raise AssertionError


def leaves() -> Any:
    raise SystemExit(0)


ONES = np.ones((2, 1), dtype=np.float32)
UNUSABLE: list[Callable[[], Any]] = [
    leaves, lambda: None, lambda: (("a",), None), lambda: (("a",), [[1.0]]), lambda: (("a", "b"), ONES), lambda: (("a",), ONES[0]), lambda: (["a"], ONES), lambda: ((1,), ONES),
    lambda: (("a",), np.array([["x"]])),
]  # fmt: skip


@pytest.mark.parametrize("sample", UNUSABLE)
def test_a_learner_whose_samples_cannot_be_used_is_not_asked_for_ever(sample: Callable[[], Any]) -> None:
    lesson = Class(Foreign(sample))
    lesson.look(range(10))
    assert len(lesson.reported) == FAILURES
    assert "not asked again until the server restarts" in lesson.reported[-1]
    assert lesson.learner._child is None


def test_twin_a_learner_that_fails_now_and_then_is_asked_on() -> None:
    answers = cycle([None, None, (("a",), ONES)])
    lesson = Class(Foreign(lambda: next(answers)))
    lesson.look(range(12))
    assert len(lesson.reported) == 8
    assert lesson.learner._samples[JOB, "mean"].ticks == 4


def test_of_a_matrix_without_end_the_newest_samples_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detectors.runtime.baseline_learner.SAMPLES_KEPT", 7)
    lesson = Class(Foreign(lambda: (("a",), np.arange(100.0)[:, None])))
    lesson.look(range(1))
    assert [row.tolist() for row in lesson.learner._samples[JOB, "mean"].rows] == [[[float(number)] for number in range(93, 100)]]


def test_a_learner_that_no_process_can_be_started_for_is_told_and_not_fatal() -> None:
    lesson = Class(Foreign(lambda: (("a",), ONES)))  # its function cannot be pickled
    assert lesson.look(range(8)) == []
    assert lesson.learner._child is None
    assert ["cannot be fitted" in message for message in lesson.reported] == [True]
    lesson.look(range(8, 16))
    assert len(lesson.reported) == 2, "it is tried again when the next one is due"


@dataclass
class Scribbles(Samples):
    """What it fits is no baseline."""

    def fit(self, history: Mapping[str, Any], /) -> Any:
        return ["no", "baseline"]


def test_what_is_no_baseline_is_told_and_not_fatal() -> None:
    lesson = Class(Scribbles())
    lesson.look(range(5))
    assert lesson.finish() == []
    assert "no baseline" in lesson.reported[0]


def test_a_learner_that_does_not_return_is_noticed_from_outside_and_not_asked_again() -> None:
    entered, let, muted = threading.Event(), threading.Event(), MutedDetectors()

    def hold() -> Any:
        entered.set()
        let.wait()
        return ("a",), ONES

    lesson = Class(Foreign(hold))
    thread = threading.Thread(target=lesson.look, args=(range(1),), daemon=True)
    thread.start()
    try:
        assert entered.wait(60.0)
        seconds = range(int(HANG_S) + 3)
        [call, *_] = [call for second in seconds if (call := lesson.learner.watch.hung(float(second))) is not None]
        assert call == DetectorCall(JOB, "mean", learner=True)
        assert "the learner of mean on" in muted.add(call)
    finally:
        let.set()
        thread.join(60.0)
    assert lesson.learner.watch.inside is None
    successor = Class(Foreign(hold), hung=muted)
    successor.look(range(3))
    assert successor.learner._samples == {}
    assert DetectorCall(JOB, "mean") not in muted, "the detector itself goes on"


def test_a_learner_that_does_not_return_holds_no_partition() -> None:
    entered, let, world = threading.Event(), threading.Event(), World()

    def hold() -> Any:
        entered.set()
        let.wait()
        return (), None

    runner = world.runner(Exited(), learner=BaselineLearner({"slow": Foreign(hold)}, clock=world.clock))
    world.put(Layout(job=runner_partition.JOB, epoch=1, time=world.clock.now(), coordinator="n", launchers={}, placements=()))
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    try:
        for _ in range(60_000):
            world.clock.advance(0.01)
            if entered.wait(0.001):
                break
        seconds = range(int(HANG_S) + 3)
        assert next(call for second in seconds if (call := runner.hung_in(float(second)))) == DetectorCall(runner_partition.JOB, "slow", learner=True)
        runner.leave_behind()
    finally:
        let.set()
        thread.join(60.0)
        world.close()
    assert not thread.is_alive()


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


@dataclass
class Drifts(Mean):
    """Says that the healthy minutes are other ones."""

    does: bool = True

    def drifted(self, job: str, /) -> bool:
        return self.does


@pytest.mark.parametrize(("does", "fits"), [(True, 1), (False, 0)])
def test_a_learner_whose_job_has_drifted_is_fitted_again_as_early_as_at_first(does: bool, fits: int) -> None:
    lesson = Class(Drifts(does))
    lesson.look(range(5))
    lesson.finish()
    lesson.look(range(5, 10))
    assert (lesson.learner._child is not None) == bool(fits)
    lesson.learner.close()


def test_the_learners_beside_detectors_are_found() -> None:
    found = learners((name, plugins.load("detectors", name)) for name in ("exits", "isolation_forest"))
    assert list(found) == ["isolation_forest"]
    assert isinstance(found["isolation_forest"], IsolationForestLearner)


FOREIGN = """
from dataclasses import dataclass

class Watches:
    pass

@dataclass
class Asks:
    where: str

    def fit(self, history, /):
        ...
"""


def test_a_learner_that_cannot_be_made_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "foreign_learner.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(tmp_path)
    assert learners([("watches", importlib.import_module("foreign_learner").Watches)]) == {}
