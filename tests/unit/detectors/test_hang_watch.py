"""A detector that never returns holds its thread: it is told by name, and another runner goes on without it."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from detectors.runtime.hang_watch import HANG_S, DetectorCall, HangWatch, MutedDetectors
from detectors.runtime.runner import Runner
from eagle_eye.app.serving import detect_role
from eagle_eye.app.serving.detect_role import HungPartitions, PartitionWorker
from eagle_eye.app.serving.process_context import ProcessContext
from eagle_eye.app.serving.thread_group import ThreadGroup
from eagle_eye.config import Config
from eagle_eye.frames import Frame
from eagle_eye.stream import FINDINGS, OBSERVATIONS, RUNNER_GROUP
from eagle_eye.types import Notice
from fakes.runner_partition import JOB, Exited, World, settle

CALL = DetectorCall(JOB, "holds")


@dataclass
class Service:
    """Of a partition."""

    did: list[str]

    def start(self) -> None:
        self.did.append("started")

    def stop(self) -> None:
        self.did.append("stopped")


@dataclass
class Gate:
    """Shared by all copies of a detector."""

    entered: threading.Event = field(default_factory=threading.Event)
    let: threading.Event = field(default_factory=threading.Event)

    def __deepcopy__(self, _memo: dict[int, Any]) -> "Gate":
        return self


@dataclass
class Holds:
    """Returns only when it is let, once an event has come."""

    gate: Gate

    def update(self, frame: Frame, /) -> Iterator[Any]:
        if frame.events:
            self.gate.entered.set()
            self.gate.let.wait()
        yield from ()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def held(world: World, gate: Gate) -> tuple[Runner, threading.Thread]:
    """A runner whose thread is in the detector that does not return."""
    runner = world.runner(Holds(gate), Exited())
    for _ in range(3):
        world.second(runner)
    world.exit()
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    assert gate.entered.wait(60.0)
    return runner, thread


def looked(runner: Runner, seconds: float = HANG_S) -> list[DetectorCall]:
    return [call for second in range(int(seconds) + 3) if (call := runner.hung_in(float(second))) is not None]


def test_another_runner_goes_on_without_the_detector_that_does_not_return(world: World) -> None:
    gate, muted = Gate(), MutedDetectors()
    runner, thread = held(world, gate)
    try:
        assert looked(runner)[:1] == [CALL]
        runner.leave_behind()
        text = muted.add(CALL)
        assert "detector holds on t/n/r has not returned" in text
        successor = world.runner(Holds(gate), Exited(), generation=2, hung=muted)
        for _ in range(3):
            world.second(successor)
        settle(successor)
        assert [finding.kind for finding in world.findings] == ["worker.exited"]
        committed = world.stream.committed(RUNNER_GROUP, OBSERVATIONS, 0)
    finally:
        gate.let.set()
        thread.join(60.0)
    assert not thread.is_alive(), "it ends when it comes back"
    assert [finding.kind for finding in world.findings] == ["worker.exited"], "and tells nothing"
    assert world.stream.committed(RUNNER_GROUP, OBSERVATIONS, 0) == committed


def test_twin_a_detector_that_comes_back_in_time_is_not_left_behind(world: World) -> None:
    gate = Gate()
    runner, thread = held(world, gate)
    assert looked(runner, HANG_S / 2) == []
    gate.let.set()
    settle_by = count()
    while not world.findings and next(settle_by) < 60_000:
        thread.join(0.001)
    runner.stop()
    thread.join(60.0)
    assert [finding.kind for finding in world.findings] == ["worker.exited"]


def test_twin_a_slow_detector_that_is_called_again_and_again_has_not_hung() -> None:
    watch = HangWatch()
    for second in range(100):
        watch.count, watch.inside = second, CALL
        assert watch.hung(float(second)) is None


def test_twin_a_process_that_was_stopped_has_no_detector_that_hangs() -> None:
    watch = HangWatch()
    watch.count, watch.inside = 1, CALL
    assert [watch.hung(at) for at in (0.0, 1.0, 3600.0, 3601.0)] == [None] * 4


def test_a_partition_whose_thread_is_held_is_taken_again_above_its_term(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, hung, did, threads, told = Gate(), HungPartitions(), list[str](), ThreadGroup(), list[Notice]()
    monkeypatch.setattr(detect_role, "partition_services", lambda _context, _partition: [Service(did)])
    notices: Any = type("Notices", (), {"put": staticmethod(told.append)})
    nobody: Any = None
    context = ProcessContext(config=Config(state_dir=str(tmp_path)), clock=world.clock, ledger=nobody, stream=world.stream, incarnation="i", notices=notices)
    detectors = [("holds", Holds(gate)), ("exited", Exited())]
    worker = PartitionWorker(context, threads, detectors, hung, 0, 1)

    def until(condition: Callable[[], Any]) -> None:
        for _ in range(60_000):
            if condition():
                return
            world.clock.advance(0.01)
            threads.stop.wait(0.001)
        raise AssertionError("waited too long")

    try:
        until(world.marks)
        world.exit()
        until(gate.entered.is_set)
        worker.check()
        assert not worker.ended
        until(lambda: worker.check() or worker.ended)
        assert (worker.superseded_by, hung.muted.__contains__(CALL)) == (1, True)
        assert [notice.name for notice in told] == ["detector.hung"]
        successor = PartitionWorker(context, threads, detectors, hung, 0, 2)
        until(lambda: world.stream.read(FINDINGS, 0, 0, 10))
        gate.let.set()
        until(lambda: not worker._thread.is_alive())
        assert threads.failed is None
        assert did == ["started"], "the services of the partition go on"
        assert list(context.runners.values()) == [successor._runner]
    finally:
        gate.let.set()
        threads.stop.set()
        worker.stop()
        successor.stop()
        for each in (worker, successor):
            each.join()
    assert did == ["started", "stopped"]


def test_a_detector_is_muted_for_the_job_that_it_hangs_on_and_for_all_at_the_second() -> None:
    muted = MutedDetectors()
    muted.add(CALL)
    assert CALL in muted
    assert DetectorCall("t/n/other", "holds") not in muted
    assert "muted for all jobs" in muted.add(DetectorCall("t/n/second", "holds"))
    assert DetectorCall("t/n/other", "holds") in muted
    assert DetectorCall("t/n/other", "sees") not in muted
