"""A node's elastic workers while nobody coordinates the job."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from eagle_eye.clock import SystemClock
from eagle_eye.errors import LauncherLost
from eagle_eye.rpc.control_messages import Body
from eagle_eye.training.elastic.launcher_session import LauncherSession
from eagle_eye.types import Layout, RankPlacement
from remediation.launcher.event_log import EventLog
from remediation.launcher.follower import ReportQueue
from remediation.launcher.job_file import JobFile
from remediation.launcher.launcher_settings import LauncherSettings
from remediation.launcher.training_command import parse_training_command
from remediation.launcher.vote_log import VoteLog
from remediation.launcher.worker.elastic_node import ElasticNode
from remediation.launcher.worker.worker_environment import StoreAddress
from remediation.launcher.worker.worker_process import Worker
from remediation.launcher.worker.workers import Workers

NAME = "r/n0/0"


class Node:
    """One node with one elastic worker, played by this process, and what it reports to the coordinator."""

    def __init__(self, folder: Path, *, forked: bool = True) -> None:
        self.told: asyncio.Queue[tuple[str, Body]] = asyncio.Queue()
        self.settings = LauncherSettings(job="t/j/r", node="n0", command=("x",), state_dir=folder, run_dir=folder, lease_s=0.02)
        workers = self.workers = Workers(self.settings, parse_training_command((sys.executable, "-m", "x"), folder), {}, lambda *_: None)
        self.worker = Worker(
            place=RankPlacement(worker=NAME, node="n0", rank=0, local_rank=0), epoch=3, pid=os.getpid(), start_time=1, secret="",
            log=folder, log_from=0, ring=folder, socket=folder, began=0.0,
        )  # fmt: skip
        if forked:
            workers._by_pid[os.getpid()] = self.worker
        clock = SystemClock()
        self.node = ElasticNode(
            self.settings, workers, VoteLog(folder, "r", "n0"), JobFile(folder, "t/j/r", "n0", os.getpid()),
            EventLog("t/j/r", "n0", "b", clock, lambda *_: None), clock, report=lambda *said: self.told.put_nowait(said), ask_store=self._never,
        )  # fmt: skip

    async def _never(self, _question: Body) -> Body:
        raise AssertionError("nobody asks the store")

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[ElasticNode]:
        """Once the worker has entered."""
        await self.node.sessions.start()
        session = await asyncio.to_thread(LauncherSession.connect, str(self.settings.elastic_socket), NAME, os.getpid())
        self.session = session
        session.join(epoch=3, step=0, micro_batches=4, segments=1, layers=[8], fresh=True)
        async with asyncio.timeout(5):
            assert (await self.told.get())[0] == "entered"
            yield self.node
        session.close()
        await self.node.close()


def test_workers_are_held_until_an_epoch_frees_them_however_long_that_takes(tmp_path: Path) -> None:
    async def play() -> None:
        made = Node(tmp_path)
        async with made.entered() as node:
            node.hold()
            assert node.held
            assert len(node.registry) == 1, "whoever coordinates next hears of them"
            place = RankPlacement(worker=NAME, node="n0", rank=0, local_rank=0)
            layout = Layout(job="t/j/r", epoch=4, time=0.0, coordinator="n1", launchers={"n0": "n0:1"}, placements=(place,), in_place=True)
            await node.actions["regroup"]({"layout": layout, "ballot": "b", "words": {}, "leaving": []})
            assert not node.held

    asyncio.run(play())


def test_a_worker_that_is_being_ended_is_not_counted_on_by_the_next_coordinator(tmp_path: Path) -> None:
    async def play() -> None:
        made = Node(tmp_path)
        async with made.entered() as node:
            assert len(node.registry) == 1
            made.worker.ordered_s = 0.0
            assert node.registry == []
            answer = await node.actions["fence"]({"asked": {"epoch": 4, "ballot": "b"}, "workers": [NAME, "r/n1/0"]})
            assert answer["vote"]
            told = dict([await made.told.get(), await made.told.get()])
            assert (told["abandoned"]["worker"], told["abandoned"]["pid"]) == (NAME, os.getpid())
            assert (told["held"]["holdings"], told["held"]["silent"]) == ([], [])

    asyncio.run(play())


def test_what_a_transition_cost_reaches_another_coordinator_though_the_next_epoch_has_been_voted_for(tmp_path: Path) -> None:
    async def play() -> None:
        made, reached = Node(tmp_path), asyncio.Queue[str]()

        async def send(kind: str, _body: Body) -> None:
            reached.put_nowait(kind)

        async with made.entered() as node:
            session = made.session
            await node.actions["fence"]({"asked": {"epoch": 4, "ballot": "b"}, "workers": [NAME], "soft": [NAME]})
            queue = ReportQueue(send, lambda: 4)
            sending = asyncio.create_task(queue.run())
            for kind in ("broken", "joined", "resumed"):
                session.send(kind, epoch=3)
                queue.put(*await made.told.get())
            assert [await reached.get(), await reached.get()] == ["joined", "resumed"], "not that the connections of epoch 3 broke"
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    asyncio.run(play())


def test_a_report_that_cannot_be_sent_at_all_keeps_none_behind_it() -> None:
    async def play() -> None:
        reached = asyncio.Queue[str]()

        async def send(kind: str, body: Body) -> None:
            reached.put_nowait(f"{kind} {body['worker'].upper()}")

        queue = ReportQueue(send, lambda: 1)
        for kind, body in (("death", {"lasting": True}), ("exited", {"lasting": True, "worker": "w0"})):
            queue.put(kind, body)
        sending = asyncio.create_task(queue.run())
        async with asyncio.timeout(60.0):
            assert await reached.get() == "exited W0"
            await queue.sent()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    asyncio.run(play())


class LateZygote:
    """Reports a pid when it is let."""

    def __init__(self) -> None:
        self.asked, self.reports = asyncio.Event(), asyncio.Event()

    async def fork(self, *_: object) -> int:
        self.asked.set()
        await self.reports.wait()
        return os.getpid()


def test_a_worker_that_speaks_before_its_pid_is_known_is_waited_for(tmp_path: Path) -> None:
    async def play() -> None:
        made, zygote = Node(tmp_path, forked=False), LateZygote()
        made.workers.zygote = zygote  # type: ignore[assignment] - the process at the other end of a socket
        layout = Layout(job="t/j/r", epoch=3, time=0.0, coordinator="n0", launchers={"n0": "n0:1"}, placements=())
        forking = asyncio.create_task(made.workers.fork_joining(layout, 0, StoreAddress(host="n0", port=1, served=False), 0))
        async with asyncio.timeout(5):
            await zygote.asked.wait()
        await made.node.sessions.start()
        session = await asyncio.to_thread(LauncherSession.connect, str(made.settings.elastic_socket), NAME, os.getpid())
        session.join(epoch=3, step=0, micro_batches=4, segments=1, layers=[8], fresh=True)
        stranger = await asyncio.to_thread(LauncherSession.connect, str(made.settings.elastic_socket), "r/n0/9", os.getpid())
        stranger.join(epoch=3, step=0, micro_batches=4, segments=1, layers=[8], fresh=True)
        with pytest.raises(LauncherLost):  # by now the first one's word has been read, too
            await asyncio.to_thread(stranger.next_assignment, 3)
        assert made.told.empty()
        zygote.reports.set()
        async with asyncio.timeout(5):
            assert (await made.told.get())[0] == "entered"
        await forking
        stranger.close()
        session.close()
        await made.node.close()

    asyncio.run(play())
