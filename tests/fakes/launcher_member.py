"""A launcher with two workers that are no processes: for tests of what it makes of their messages and ends."""

import asyncio
import sys
from pathlib import Path

from eagle_eye import wire
from eagle_eye.clock import SystemClock
from eagle_eye.config import StallConfig
from eagle_eye.rpc.control_messages import Body
from eagle_eye.types import Event, RankPlacement
from remediation.launcher.event_log import EventLog
from remediation.launcher.job_file import JobFile
from remediation.launcher.job_member import JobMember
from remediation.launcher.launcher_settings import LauncherSettings
from remediation.launcher.training_command import parse_training_command
from remediation.launcher.vote_log import VoteLog
from remediation.launcher.worker.elastic_node import ElasticNode
from remediation.launcher.worker.worker_process import Worker
from remediation.launcher.worker.workers import Workers

PID = 1 << 22
"""Above the kernel's highest."""


class Member:
    """A launcher with two workers that are no processes, and what it tells the stream and the coordinator."""

    def __init__(self, folder: Path, stall: StallConfig | None = None) -> None:
        settings = LauncherSettings(job="t/j/r", node="n0", command=("x",), state_dir=folder, run_dir=folder, stall=stall or StallConfig())
        self.written: list[bytes] = []
        self.reported: list[tuple[str, Body]] = []
        clock = SystemClock()
        log = EventLog("t/j/r", "n0", "b", clock, lambda _topic, _key, value: self.written.append(value))
        workers = Workers(settings, parse_training_command((sys.executable, "-m", "x"), folder), {}, self._ended)
        self.all, self.votes = workers, VoteLog(folder, "r", "n0")
        self.known = asyncio.Event()
        """The coordinator knows all reports."""
        self.workers = [self._worker(folder, slot) for slot in range(2)]
        workers._by_pid = {worker.pid: worker for worker in self.workers}
        votes, file = self.votes, JobFile(folder, "t/j/r", "n0", PID)
        elastic = ElasticNode(settings, workers, votes, file, log, clock, report=self._report, ask_store=self._never)
        self.member = JobMember(settings, workers, votes, file, log, self._report, self._known, elastic)

    @property
    def events(self) -> list[Event]:
        reader = wire.RecordReader()
        return [record for value in self.written if isinstance(record := reader.read(value), Event)]

    def raises(self, **more: object) -> None:
        """The first worker reports an exception."""
        self.says("exception", **{"type": "ValueError", "message": "no", "traceback": "", "step": 4, **more})

    def says(self, kind: str, **fields: object) -> None:
        """A message of the first worker."""
        self.member.receive({"kind": kind, "worker": self.workers[0].name, "pid": self.workers[0].pid, "epoch": 1, **fields})

    def _ended(self, worker: Worker, status: int | None) -> None:
        self.member.worker_ended(worker, status)

    def _report(self, kind: str, body: Body) -> None:
        self.reported.append((kind, body))

    async def _known(self) -> None:
        await self.known.wait()

    async def _never(self, _question: Body) -> Body:
        raise AssertionError("nobody asks the store")

    def _worker(self, folder: Path, slot: int) -> Worker:
        place = RankPlacement(worker=f"r/n0/{slot}", node="n0", rank=slot, local_rank=slot)
        return Worker(
            place=place, epoch=1, pid=PID + slot, start_time=1, secret="", log=folder / "log", log_from=0, ring=folder / "ring", socket=folder, began=0.0
        )


def made(folder: Path) -> Member:
    async def make() -> Member:
        return Member(folder)

    return asyncio.run(make())
