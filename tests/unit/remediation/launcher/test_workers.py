"""Workers of a node: their births, their ends, and what is told of either."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eagle_eye.config import CheckpointsConfig
from eagle_eye.training.checkpoint.memory_segment import fetched_beside
from eagle_eye.types import Layout, RankPlacement
from fakes.no_descriptors import no_descriptors
from fakes.paper_settings import settings
from remediation.launcher.training_command import parse_training_command
from remediation.launcher.worker.worker_environment import StoreAddress
from remediation.launcher.worker.worker_process import Worker
from remediation.launcher.worker.workers import Workers


def test_a_process_that_was_started_to_join_has_its_slot_until_it_has_ended(tmp_path: Path) -> None:
    workers = Workers(settings(tmp_path), parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, lambda *_: None)
    assert not workers.is_on_its_way(0)
    joining = workers._by_pid[7] = Worker(
        place=RankPlacement(worker="r/n0/0", node="n0", rank=2, local_rank=0), epoch=1, pid=7, start_time=1, secret="", log=tmp_path,
        log_from=0, ring=tmp_path, socket=tmp_path, began=0.0, elastic=True,
    )  # fmt: skip
    assert workers.is_on_its_way(0), "whoever asks again gets no second one beside it"
    assert not workers.is_on_its_way(1)
    joining.member = True
    assert not workers.is_on_its_way(0), "the coordinator has met it, and knows why it asks"
    joining.member, joining.status = False, 9
    assert not workers.is_on_its_way(0)


def test_checkpoints_in_memory_outlive_the_epochs_and_go_with_the_job(tmp_path: Path) -> None:
    workers = Workers(settings(tmp_path), parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, lambda *_: None)
    memory = workers.memory_path(0)
    ring, reserved = workers._ring_of(0, 1), memory.with_name(f"{memory.name}.77.new")
    backup, fetched, chunk = memory.with_name(memory.name.replace("-0.memory", "-backup-3of8.memory")), fetched_beside(memory), memory.with_name(memory.name.replace("-0.memory", "-0f1e2d.chunk"))
    for path in (memory, ring, reserved, backup, fetched, chunk):
        path.touch()
    workers._sweep(2)
    assert (memory.exists(), reserved.exists(), backup.exists(), ring.exists()) == (True, True, True, False)
    workers.close()
    assert [path for path in (memory, reserved, backup, fetched, chunk) if path.exists()] == []


def test_a_worker_that_ends_at_once_is_heard_of_with_its_code(tmp_path: Path) -> None:
    class Hasty:
        """Tells of the birth and of the end in one breath, as a busy machine makes it look."""

        def __init__(self, workers: Workers) -> None:
            self.workers = workers

        async def fork(self, *_: object) -> int:
            self.workers.exited(1 << 22, 7 << 8)
            return 1 << 22

    async def play() -> list[int | None]:
        told: asyncio.Queue[int | None] = asyncio.Queue()
        given = settings(tmp_path)
        given.logs.mkdir(parents=True)
        workers = Workers(given, parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, lambda _, status: told.put_nowait(status))
        workers.zygote = Hasty(workers)  # type: ignore[assignment]
        place = RankPlacement(worker="r/n0/0", node=given.node, rank=0, local_rank=0)
        layout = Layout(job=given.job, epoch=1, time=0.0, coordinator="n0", launchers={"n0": "n0:1"}, placements=(place,))
        await workers.start(layout, StoreAddress(host="127.0.0.1", port=1, served=False), 3)
        async with asyncio.timeout(5):
            return [await told.get()]

    assert asyncio.run(play()) == [7 << 8]


@pytest.mark.parametrize("status", [0, int(signal.SIGKILL)])
def test_a_worker_that_is_gone_is_told_once_its_zygote_says_how_it_ended(tmp_path: Path, status: int) -> None:
    """The zygote has reaped it and was held up before it could say so: who was done is not dead."""

    async def end() -> list[int | None]:
        told: list[int | None] = []
        workers = Workers(settings(tmp_path), parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, lambda _, status: told.append(status))
        pid = 1 << 22  # above the kernel's highest: gone
        worker = workers._by_pid[pid] = Worker(
            place=RankPlacement(worker="r/n0/0", node="n0", rank=0, local_rank=0), epoch=1, pid=pid, start_time=1, secret="",
            log=tmp_path, log_from=0, ring=tmp_path / "ring", socket=tmp_path, began=0.0,
        )  # fmt: skip
        workers._watch.watch(pid)
        async with asyncio.timeout(5):
            while not worker.dying:
                await asyncio.sleep(0)
        workers.exited(pid, status)
        return told

    assert asyncio.run(end()) == [status]


def test_a_lost_zygote_takes_only_those_with_it_that_it_had_not_reaped(tmp_path: Path) -> None:
    """The pid of a reaped worker may be a stranger's by now."""
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        workers = Workers(settings(tmp_path), parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, lambda *_: None)
        place = RankPlacement(worker="r/n0/0", node="n0", rank=0, local_rank=0)
        workers._by_pid[stranger.pid] = Worker(
            place=place, epoch=1, pid=stranger.pid, start_time=1, secret="", log=tmp_path, log_from=0, ring=tmp_path,
            socket=tmp_path, began=0.0, status=0,
        )  # fmt: skip
        workers.zygote_lost()
        stranger.terminate()
        assert stranger.wait() == -signal.SIGTERM, "the first signal that it got"
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize(("status", "waits"), [(1 << 8, True), (0, False), (int(signal.SIGKILL), False)])
def test_an_exit_code_waits_for_the_exception_that_it_overtook_a_signal_does_not(
    tmp_path: Path, status: int, waits: bool
) -> None:
    async def end() -> tuple[list[str], list[str]]:
        told: list[str] = []
        done = asyncio.Event()

        def hear(worker: Worker, _: int | None) -> None:
            told.append(worker.exception)
            done.set()

        workers = Workers(settings(tmp_path), parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, hear)
        pid = 1 << 22  # above the kernel's highest
        worker = Worker(
            place=RankPlacement(worker="r/n0/0", node="n0", rank=0, local_rank=0), epoch=1, pid=pid, start_time=1, secret="",
            log=tmp_path, log_from=0, ring=tmp_path / "ring", socket=tmp_path, began=0.0,
        )  # fmt: skip
        workers._by_pid[pid] = worker
        workers.exited(pid, status)
        at_once = list(told)
        worker.exception = "ImportError"  # as the inbox does when the message is read
        async with asyncio.timeout(5):
            await done.wait()
        workers.exited(pid, status)
        return at_once, told

    at_once, told = asyncio.run(end())
    assert (at_once, told) == (([], ["ImportError"]) if waits else ([""], [""]))


def test_what_cannot_be_removed_of_earlier_epochs_keeps_no_worker_from_starting(tmp_path: Path) -> None:
    workers = Workers(settings(tmp_path), parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, lambda _worker, _status: None)
    old = tmp_path / "r-0-1.sock"
    old.touch()
    with no_descriptors():
        workers._sweep(2)
    assert old.exists()
    workers._sweep(2)
    assert not old.exists(), "twin: later it is removed"


@pytest.mark.parametrize(
    ("command", "killed", "after_death", "told"),
    [
        pytest.param("sleep 60", True, False, [("r/n0/0", int(signal.SIGKILL))], id="killed just before the order to end all"),
        pytest.param("exit 3", True, True, [("r/n0/0", 3 << 8)], id="ended by a code just before the order that another's death led to"),
        pytest.param("sleep 60", False, True, [], id="twin: ended by us"),
        pytest.param("exit 3", True, False, [], id="twin: missed a peer that was ended by command a moment before"),
    ],
)
def test_who_ended_just_before_the_order_to_end_all_is_told(tmp_path: Path, command: str, killed: bool, after_death: bool, told: list[tuple[str, int]]) -> None:
    """The peers cry first that a connection broke, and all are to start again: who ended by itself must still be named before the next epoch begins."""

    async def end() -> list[tuple[str, int | None]]:
        heard: list[tuple[str, int | None]] = []
        workers = Workers(settings(tmp_path), parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, lambda worker, status: heard.append((worker.name, status)))
        child = subprocess.Popen(["sh", "-c", command if command == "exit 3" else f"exec {command}"])
        worker = workers._by_pid[child.pid] = Worker(
            place=RankPlacement(worker="r/n0/0", node="n0", rank=0, local_rank=0), epoch=3, pid=child.pid, start_time=1, secret="",
            log=tmp_path, log_from=0, ring=tmp_path / "ring", socket=tmp_path, began=0.0,
        )  # fmt: skip
        workers._watch.watch(child.pid)
        if killed:
            if command == "sleep 60":
                child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has looked
        stopping = asyncio.create_task(workers.stop(after_death=after_death))
        while not (worker.ordered or worker.dying):
            await asyncio.sleep(0)
        child.kill()
        child.wait()
        workers.exited(child.pid, 3 << 8 if command == "exit 3" else int(signal.SIGKILL))
        await stopping
        workers.close()
        return [each for each in heard if not worker.overtaken]

    assert asyncio.run(end()) == told


class SlowZygote:
    """Forks the second worker when it is let."""

    def __init__(self) -> None:
        self.pids, self.asked, self.second = iter((1 << 22, (1 << 22) + 1)), asyncio.Event(), asyncio.Event()

    async def fork(self, slot: str, *_: object) -> int:
        if slot == "1":
            self.asked.set()
            await self.second.wait()
        return next(self.pids)


def test_a_worker_that_is_born_while_all_are_ended_is_ended_too_and_no_death(tmp_path: Path) -> None:
    """A replacement was being forked as its job failed: its end is ours."""
    layout = Layout(job="t/j/r", epoch=1, time=1.0, coordinator="n0", launchers={}, placements=(), reason="start")

    class LateZygote(SlowZygote):
        def __init__(self) -> None:
            super().__init__()
            self.killed: list[int] = []

        def kill(self, pid: int, number: int) -> None:
            self.killed.append(pid)

    async def run() -> tuple[list[int], list[int | None]]:
        told: list[int | None] = []
        workers = Workers(settings(tmp_path), parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, lambda _, status: told.append(status))
        workers.zygote = zygote = LateZygote()  # type: ignore[assignment]
        joining = asyncio.create_task(workers.fork_joining(layout, 1, StoreAddress(host="127.0.0.1", port=1), 0))
        await zygote.asked.wait()
        await workers.stop()
        zygote.second.set()
        await joining
        workers.exited(1 << 22, int(signal.SIGKILL))
        return zygote.killed, told

    assert asyncio.run(run()) == ([1 << 22], [])


def test_a_worker_that_ends_before_the_next_one_is_forked_does_not_finish_the_job(tmp_path: Path) -> None:
    places = tuple(RankPlacement(worker=f"r/n0/{slot}", node="n0", rank=slot, local_rank=slot) for slot in (0, 1))
    layout = Layout(job="t/j/r", epoch=1, time=1.0, coordinator="n0", launchers={}, placements=places, reason="start")

    async def run() -> list[bool]:
        finished: list[bool] = []
        workers = Workers(settings(tmp_path), parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, lambda _worker, _status: finished.append(workers.finished))
        workers.zygote = zygote = SlowZygote()  # type: ignore[assignment]
        starting = asyncio.create_task(workers.start(layout, StoreAddress(host="127.0.0.1", port=1), 0))
        await zygote.asked.wait()
        workers.exited(workers.all[0].pid, 0)
        zygote.second.set()
        await starting
        workers.exited(workers.all[1].pid, 0)
        workers.close()
        return finished

    assert asyncio.run(run()) == [False, True]


@pytest.mark.parametrize(("nnodes", "share", "copies"), [((1, 2), 0.25, "3"), ((1, 1), 0.25, "2"), ((1, 2), 0.0, "2")])
def test_where_checkpoints_in_memory_go_to_another_node_a_worker_holds_one_more(tmp_path: Path, nnodes: tuple[int, int], share: float, copies: str) -> None:
    """The neighbour takes one while the newest stays and the next is written."""
    given = settings(tmp_path, nnodes=nnodes, backup=CheckpointsConfig(backup_share=share))
    given.logs.mkdir(parents=True)
    environments: list[dict[str, str]] = []

    class Zygote:
        async def fork(self, _slot: str, _argv: object, environment: dict[str, str], *_: object) -> int:
            environments.append(environment)
            workers.exited(1 << 22, 0)
            return 1 << 22

    async def start() -> None:
        place = RankPlacement(worker="r/n0/0", node=given.node, rank=0, local_rank=0)
        layout = Layout(job=given.job, epoch=1, time=0.0, coordinator="n0", launchers={"n0": "n0:1"}, placements=(place,))
        await workers.start(layout, StoreAddress(host="127.0.0.1", port=1, served=False), 3)

    workers = Workers(given, parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, lambda *_: None)
    workers.zygote = Zygote()  # type: ignore[assignment]
    asyncio.run(start())
    assert [environment["EAGLE_EYE_CHECKPOINT_COPIES"] for environment in environments] == [copies]
