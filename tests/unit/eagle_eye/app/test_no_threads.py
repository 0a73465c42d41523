"""A server process that may start no further thread, or a partition whose detection fails: it costs itself, is told and begun again, and the server goes on."""

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detectors.runtime.runner import Runner
from eagle_eye.app.serving import detect_role
from eagle_eye.app.serving.detect_role import FIRST_S, GIVEN_UP, HungPartitions, PartitionWorker
from eagle_eye.app.serving.lead_role import LeadRole
from eagle_eye.app.serving.process_context import ProcessContext
from eagle_eye.app.serving.thread_group import ThreadGroup
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import EagleEyeError, LedgerUnavailable
from eagle_eye.ledger import Ledger
from eagle_eye.open_file_limit import is_shortage
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.types import Notice
from fakes.runner_partition import Exited, World
from remediation.engine.engine import Engine


class NoThreads:
    """The kernel gives this process no thread of some names, so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> None:
        self.left = times
        start = threading.Thread.start

        def begin(thread: threading.Thread) -> None:
            if thread.name.startswith(name) and self.left:
                self.left -= 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", begin)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


class Partition:
    """Its workers, one after the other as an owner begins them."""

    def __init__(self, world: World, directory: Path) -> None:
        self.told: list[Notice] = []
        self.threads, self.hung = ThreadGroup(), HungPartitions()
        self._world = world
        notices: Any = type("Notices", (), {"put": staticmethod(self.told.append)})
        nobody: Any = None
        config = msgspec.structs.replace(Config(state_dir=str(directory)), history=msgspec.structs.replace(Config().history, enabled=False))
        self._context = ProcessContext(config=config, clock=world.clock, ledger=nobody, stream=world.stream, incarnation="i", notices=notices)
        self.term = 0
        self.worker = self.next()

    def next(self) -> PartitionWorker:
        self.term += 1
        self.worker = PartitionWorker(self._context, self.threads, [("exited", Exited())], self.hung, 0, self.term)
        return self.worker

    def until(self, condition: Callable[[], Any]) -> None:
        for _ in range(60_000):
            if condition():
                return
            self._world.clock.advance(0.001)
            self.threads.stop.wait(0.001)
        raise AssertionError("waited too long")

    def close(self) -> None:
        self.worker.stop()
        self.worker.join()


def test_a_partition_that_gets_no_thread_is_begun_again(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    NoThreads(monkeypatch, "runner-", 2)
    partition = Partition(world, tmp_path)
    try:
        for count in (1, 2):
            assert (partition.worker.ended, partition.worker.superseded_by) == (True, 0)
            assert f"begins again in {FIRST_S * count:g} s" in partition.told[-1].message
            world.clock.advance(FIRST_S * count)
            assert partition.worker.superseded_by == partition.term
            partition.next()
        partition.until(world.marks)
        assert [notice.name for notice in partition.told] == ["detection.failing"] * 2
        assert partition.threads.failed is None
    finally:
        partition.close()


def test_a_partition_whose_detection_fails_ends_no_server(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_runner: Runner, _stop: Any) -> None:
        raise ValueError("what nobody foresaw")

    with monkeypatch.context() as broken:
        broken.setattr(Runner, "run", fail)
        partition = Partition(world, tmp_path)
        partition.until(lambda: partition.worker.superseded_by == 1)
    try:
        assert partition.worker.ended
        partition.next()
        partition.until(world.marks)
        assert "ValueError: what nobody foresaw" in partition.told[0].message
        assert partition.threads.failed is None
    finally:
        partition.close()


def test_a_partition_that_fails_three_times_in_a_row_is_given_up_here(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    NoThreads(monkeypatch, "runner-", 5)
    partition = Partition(world, tmp_path)
    tried = [partition.worker.given_up, *(partition.next().given_up for _ in range(GIVEN_UP - 1))]
    assert tried == [False] * (GIVEN_UP - 1) + [True]
    assert ["another server" in notice.message for notice in partition.told] == tried
    partition.worker.stop()
    assert not partition.next().given_up, "taken again it begins with the first try"
    partition.close()


def test_partitions_are_assigned_again_after_a_round_that_failed(tmp_path: Path, empty_ledger: Path) -> None:
    told: list[Notice] = []
    notices: Any = type("Notices", (), {"put": staticmethod(told.append)})
    context: Any = type("Context", (), {"notices": notices, "clock": SystemClock(), "config": Config(state_dir=str(tmp_path))})
    role, rounds = DetectRoleOf(context), 0

    class Ownership:
        def round(self) -> None:
            nonlocal rounds
            rounds += 1
            if rounds < 3:
                raise RuntimeError("can't start new thread")

    ownership: Any = Ownership()
    for _ in range(4):
        role._round(ownership)
    assert (rounds, [notice.name for notice in told]) == (4, ["detection.failing"]), "told once"


class DetectRoleOf(detect_role.DetectRole):
    """Without detectors of a configuration."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._told = False


def led(directory: Path) -> list[Notice]:
    """Notices of a server until it leads."""
    told: list[Notice] = []
    notices: Any = type("Notices", (), {"put": staticmethod(told.append)})
    clock, stop = SystemClock(), threading.Event()
    ledger = Ledger.open(directory / "ledger.sqlite")
    context = ProcessContext(config=Config(state_dir=str(directory)), clock=clock, ledger=ledger, stream=MemoryStream(clock=clock), incarnation="i", notices=notices)

    async def lead() -> None:
        running = asyncio.create_task(LeadRole(context, "127.0.0.1:0", 0.2, stop).run())
        async with asyncio.timeout(60.0):
            while context.leading is None and not running.done():
                await asyncio.sleep(0.01)
        stop.set()
        await running

    try:
        asyncio.run(lead())
    finally:
        ledger.close()
    return told


@pytest.mark.parametrize(("thread", "times"), [("lease", 1), ("engine", 1), ("lease", 3)])
def test_a_leader_that_gets_no_thread_stands_by_and_leads_later(
    tmp_path: Path, empty_ledger: Path, monkeypatch: pytest.MonkeyPatch, thread: str, times: int
) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(empty_ledger.read_bytes())
    NoThreads(monkeypatch, thread, times)
    assert [notice.name for notice in led(tmp_path)] == ["leader.failing", "leader.elected"]


def test_a_term_that_could_not_be_begun_leaves_the_spool_to_the_next_one(tmp_path: Path, empty_ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(empty_ledger.read_bytes())
    resume, away = Engine.resume, [LedgerUnavailable("the ledger is away")]

    def resumed(engine: Engine) -> None:
        if away:
            raise away.pop()
        resume(engine)

    monkeypatch.setattr(Engine, "resume", resumed)
    assert [notice.name for notice in led(tmp_path)] == ["leader.elected"]


@pytest.mark.parametrize(("error", "passing"), [
    (RuntimeError("can't start new thread"), True), (MemoryError(), True), (OSError(errno.EMFILE, "Too many open files"), True),
    (RuntimeError("cannot join thread before it is started"), False), (OSError(errno.EADDRINUSE, "in use"), False), (EagleEyeError("no"), False),
])  # fmt: skip
def test_what_is_a_want_of_threads_descriptors_or_memory(error: Exception, passing: bool) -> None:
    around = EagleEyeError("the server had to stop")
    around.__cause__ = error
    assert (is_shortage(error), is_shortage(around)) == (passing, passing)
