"""A node's elastic workers while nobody coordinates the job."""

import asyncio
import os
import sys
from pathlib import Path

from eagle_eye.clock import SystemClock
from eagle_eye.rpc.control_messages import Body
from eagle_eye.training.elastic.launcher_session import LauncherSession
from eagle_eye.types import RankPlacement
from remediation.launcher.elastic_node import ElasticNode
from remediation.launcher.event_log import EventLog
from remediation.launcher.job_file import JobFile
from remediation.launcher.launcher_settings import LauncherSettings
from remediation.launcher.training_command import parse_training_command
from remediation.launcher.vote_log import VoteLog
from remediation.launcher.workers import Worker, Workers

NAME = "r/n0/0"


def test_workers_that_were_held_for_too_long_are_no_longer_counted_on(tmp_path: Path) -> None:
    told: asyncio.Queue[tuple[str, Body]] = asyncio.Queue()
    ended: list[str] = []

    async def never(_question: Body) -> Body:
        raise AssertionError("nobody asks the store")

    async def give_up() -> None:
        ended.append(NAME)

    async def play() -> None:
        settings = LauncherSettings(job="t/j/r", node="n0", command=("x",), state_dir=tmp_path, run_dir=tmp_path, lease_s=0.02)
        workers = Workers(settings, parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, lambda *_: None)
        workers._by_pid[os.getpid()] = Worker(
            place=RankPlacement(worker=NAME, node="n0", rank=0, local_rank=0), epoch=3, pid=os.getpid(), start_time=1, secret="",
            log=tmp_path, log_from=0, ring=tmp_path, socket=tmp_path, began=0.0,
        )  # fmt: skip
        clock = SystemClock()
        node = ElasticNode(
            settings, workers, VoteLog(tmp_path, "r", "n0"), JobFile(tmp_path, "t/j/r", "n0", os.getpid()),
            EventLog("t/j/r", "n0", "b", clock, lambda *_: None), clock, report=lambda *said: told.put_nowait(said), ask_store=never,
        )  # fmt: skip
        await node.sessions.start()
        session = await asyncio.to_thread(LauncherSession.connect, str(settings.elastic_socket), NAME, os.getpid())
        session.join(epoch=3, step=0, micro_batches=4, segments=1, layers=[8], fresh=True)
        async with asyncio.timeout(5):
            assert (await told.get())[0] == "entered"
            node.hold(give_up)
            kind, words = await told.get()
        assert (kind, words["worker"], words["pid"]) == ("abandoned", NAME, os.getpid())
        assert ended == [NAME], "they have ended before anybody is told"
        assert node.registry == [], "and whoever coordinates next does not hear of them"
        session.close()
        await node.close()

    asyncio.run(play())
