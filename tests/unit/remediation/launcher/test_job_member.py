"""What a launcher makes of its workers' messages and ends."""

import asyncio
import sys
from pathlib import Path

from eagle_eye import wire
from eagle_eye.clock import SystemClock
from eagle_eye.rpc.control_messages import Body
from eagle_eye.types import Event, RankPlacement
from remediation.launcher.elastic_node import ElasticNode
from remediation.launcher.event_log import EventLog
from remediation.launcher.job_file import JobFile
from remediation.launcher.job_member import JobMember
from remediation.launcher.launcher_settings import LauncherSettings
from remediation.launcher.training_command import parse_training_command
from remediation.launcher.vote_log import VoteLog
from remediation.launcher.workers import Worker, Workers

PID = 1 << 22
"""Above the kernel's highest."""


class Member:
    """A launcher with two workers that are no processes, and what it tells the stream and the coordinator."""

    def __init__(self, folder: Path) -> None:
        settings = LauncherSettings(job="t/j/r", node="n0", command=("x",), state_dir=folder, run_dir=folder)
        self.written: list[bytes] = []
        self.reported: list[tuple[str, Body]] = []
        clock = SystemClock()
        log = EventLog("t/j/r", "n0", "b", clock, lambda _topic, _key, value: self.written.append(value))
        workers = Workers(settings, parse_training_command((sys.executable, "-m", "x"), folder), {}, lambda *_: None)
        self.workers = [self._worker(folder, slot) for slot in range(2)]
        workers._by_pid = {worker.pid: worker for worker in self.workers}
        votes, file = VoteLog(folder, "r", "n0"), JobFile(folder, "t/j/r", "n0", PID)
        elastic = ElasticNode(settings, workers, votes, file, log, clock, report=self._report, ask_store=self._never)
        self.member = JobMember(settings, workers, votes, file, log, self._report, elastic)

    @property
    def events(self) -> list[Event]:
        reader = wire.RecordReader()
        return [record for value in self.written if isinstance(record := reader.read(value), Event)]

    def raises(self, **more: object) -> None:
        """The first worker reports an exception."""
        said = {"kind": "exception", "worker": self.workers[0].name, "epoch": 1, "type": "ValueError", "message": "no", "traceback": "", "step": 4}
        self.member.receive({**said, **more})

    def _report(self, kind: str, body: Body) -> None:
        self.reported.append((kind, body))

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


def test_an_exception_of_the_main_thread_is_how_the_worker_dies(tmp_path: Path) -> None:
    member = made(tmp_path)
    member.raises(thread="", fatal=True)
    assert [event.name for event in member.events] == ["exception"]
    assert member.workers[0].exception == "ValueError"


def test_the_users_own_line_is_told_where_the_traceback_ends_in_a_library(tmp_path: Path) -> None:
    member = made(tmp_path)
    lines = '  File "/home/ada/train.py", line 9, in save\n    torch.save(state, path)\n  File "/venv/lib/python3.11/site-packages/torch/s.py", line 1, in save\n    raise\n'
    member.raises(thread="", message="No space left on device", traceback=lines)
    assert member.events[0].attributes["frame"] == "train.py:9 in save"


def test_twin_an_exception_that_ends_a_thread_is_told_and_the_worker_does_not_die_of_it(tmp_path: Path) -> None:
    member = made(tmp_path)
    member.raises(thread="reporter", fatal=False)
    (event,) = member.events
    assert (event.name, event.attributes["thread"]) == ("thread.exception", "reporter")
    assert (member.workers[0].exception, member.workers[0].failure) == ("", None)


def test_an_end_with_zero_is_told_and_reported_once_all_of_the_node_have_ended(tmp_path: Path) -> None:
    member = made(tmp_path)

    async def end() -> None:
        for worker in member.workers:
            worker.end = 0
            member.member.worker_ended(worker, 0)

    asyncio.run(end())
    assert [(event.name, event.attributes["rank"]) for event in member.events] == [("worker.finished", "0"), ("worker.finished", "1")]
    assert [kind for kind, _ in member.reported] == ["worker_finished", "worker_finished", "finished"]
