"""When RAS is asked, and what of its reports is told: what stays, of the job that it is about."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.nccl.ras_report import RasError
from collectors.nccl_ras import SELDOM_S, NcclRasCollector
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event, Kind
from fakes.nccl_ras import FakeRas, absent, communicator, json_report, member, text_report

WORLD, PAIR = "0x27a079b828ff1a75", "0x9e"
ROW = "    0         1         1         4         4         4   RUNNING  MISMATCH"


class Node:
    """One node with ranks 0 to 3 of a job, beside a RAS."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.ras = folder, FakeClock(), FakeRas()
        (folder / "jobs").mkdir()
        self.register("r1", first_pid=100)
        self.collector = self.made()
        self.waits(0.0)

    def made(self, **options: Any) -> NcclRasCollector:
        return NcclRasCollector(address=f"127.0.0.1:{self.ras.port}", node="n1", run_dir=self.folder, clock=self.clock, **options)

    def register(self, run: str, *, first_pid: int, first_rank: int = 0) -> None:
        workers = [
            {"worker": f"{run}/n1/{slot}", "slot": slot, "rank": first_rank + slot, "pid": first_pid + slot, "epoch": 1, "socket": str(self.folder / f"{run}-{slot}.sock")}
            for slot in range(4)
        ]  # fmt: skip
        job = {"job": f"team/gpt/{run}", "run": run, "node": "n1", "epoch": 1, "launcher_pid": os.getpid(), "workers": workers, "state": "running"}
        (self.folder / "jobs" / f"{run}.json").write_text(json.dumps(job))

    def waits(self, seconds: float, *, size: int = 4) -> None:
        """Rank 1's oldest collective is under way for so long."""
        group = {"name": "0", "description": "default_pg", "position": 1, "size": size, "members": "ab", "backends": {"nccl": {"begun": 9, "over": 8, "pending_ns": round(seconds * 1e9)}}}
        record = {"version": 1, "pid": 101, "monotonic_ns": round(self.clock.monotonic() * 1e9), "groups": [group]}
        (self.folder / "r1-1.sock.groups").write_text(json.dumps(record))

    def runs(self, seconds: float, *, waited_s: float = 0.0) -> list[Event]:
        """So many seconds go by, in runs of the collector."""
        found: list[Event] = []
        for _ in range(round(seconds / 5.0)):
            self.clock.advance(5.0)
            self.waits(waited_s)
            found += self.collector.collect()
        return found

    @property
    def looks(self) -> int:
        return self.ras.commands.count("VERBOSE STATUS")

    def lagging(self, behind: int, count: int = 7) -> None:
        self.ras.report = json_report(communicator(WORLD, [member(rank, {"AllReduce": count - (rank == behind)}) for rank in range(4)]))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.ras.close()


def test_fault_a_rank_that_lags_while_the_others_wait_is_told_once_it_stays(node: Node) -> None:
    node.lagging(2)
    assert node.runs(5.0, waited_s=11.0) == []
    [event] = node.runs(60.0, waited_s=30.0)
    assert (event.name, event.job, event.entity.kind, event.entity.name) == ("nccl.outlier_ranks", "team/gpt/r1", Kind.JOB, "team/gpt/r1")
    assert event.message == f"NCCL RAS: communicator {WORLD} of 4 ranks: AllReduce 7 not launched by rank 2 (process 102 on 172.16.64.210, GPU 2)"
    told = {"communicator": WORLD, "size": "4", "numbered_by": "job", "lagging": "2", "lagging_count": "1", "operation": "AllReduce", "newest": "7", "unresponsive": "", "epoch": "1"}
    assert {name: event.attributes[name] for name in told} == told


def test_its_end_is_told_when_the_job_goes_on(node: Node) -> None:
    node.lagging(2)
    node.runs(15.0, waited_s=20.0)
    node.lagging(4)
    [event] = node.runs(5.0)
    assert (event.name, event.attributes["communicator"]) == ("nccl.ranks_agree", WORLD)
    assert node.runs(70.0) == []


def test_twin_ranks_that_differ_while_the_job_trains_are_not_told(node: Node) -> None:
    """Collectives are launched faster than RAS asks; a look that finds a difference is repeated once, not for ever."""
    node.collector = node.made(every_s=50.0)
    found = []
    for count in range(40):
        node.lagging(2, count)
        found += node.runs(5.0)
    assert found == []
    assert node.looks == 8, "two at the start, and two each 50 s"


def test_fault_a_rank_that_does_not_answer(node: Node) -> None:
    """Ranks of a smaller communicator are numbered as the job does, by the process."""
    node.ras.report = json_report(
        communicator(WORLD, [member(rank, {}) for rank in range(3)], [absent(3)]),
        communicator(PAIR, [{**member(2, {}), "rank": 0}], [{**absent(3, dead=True), "rank": 1}]),
    )
    of_world, of_pair = node.runs(15.0, waited_s=20.0)
    assert of_world.message.endswith("rank 3 (process 103 on 172.16.64.210, GPU 3) not answering")
    assert (of_pair.attributes["numbered_by"], of_pair.attributes["unresponsive"], of_pair.attributes["dead"]) == ("job", "3", "3")
    assert of_pair.message.endswith("(1 given up)")


def test_ranks_that_cannot_be_told_in_the_job_are_the_communicators_own(node: Node) -> None:
    node.ras.report = json_report(communicator(PAIR, [{**member(2, {}), "rank": 0}], [{**absent(3), "rank": 1}]))
    [event] = node.runs(15.0, waited_s=20.0)
    assert (event.attributes["numbered_by"], event.attributes["unresponsive"]) == ("communicator", "1")


def test_text_of_an_older_nccl_tells_the_same(node: Node) -> None:
    lines = "#0-0 (27) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n  3 ranks have launched up to operation 7\n  Rank 2 has not launched any operations -- [process information not found]\n\n"
    node.ras.text = text_report([ROW], warnings=lines)
    [event] = node.runs(15.0, waited_s=20.0)
    assert event.message == "NCCL RAS: communicator 0x27 of 4 ranks: AllReduce 7 not launched by rank 2"


def test_many_ranks_are_counted(node: Node) -> None:
    node.ras.report = json_report(communicator(WORLD, [member(rank, {"AllReduce": 7 * (rank == 0)}) for rank in range(100)]))
    [event] = node.runs(15.0, waited_s=20.0)
    assert event.message.endswith("AllReduce 7 not launched by ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more")
    assert (event.attributes["lagging_count"], len(event.attributes["lagging"].split(","))) == ("99", 64)


def test_a_suspicion_that_lasts_is_looked_into_less_and_less_often(node: Node) -> None:
    node.lagging(2)
    node.runs(100.0, waited_s=20.0)
    looks = node.looks
    assert 4 < looks < 7
    node.runs(SELDOM_S, waited_s=20.0)
    assert node.looks == looks + 1


def test_a_worker_that_writes_nothing_any_more_is_a_suspicion_too(node: Node) -> None:
    node.lagging(2)
    node.clock.advance(11.0)
    node.collector.collect()
    assert node.looks == 1


@pytest.mark.parametrize("every_s", [0.0, 50.0])
def test_without_a_suspicion_it_is_asked_seldom_or_never(node: Node, every_s: float) -> None:
    node.lagging(4)
    node.collector = node.made(every_s=every_s)
    node.runs(150.0)
    assert node.looks == (3 if every_s else 0)


def test_a_node_without_rank_0_leaves_the_asking_to_another_one(node: Node) -> None:
    node.register("r1", first_pid=100, first_rank=4)
    assert node.runs(15.0, waited_s=20.0) == []
    assert node.ras.commands == []


def test_of_two_jobs_the_one_whose_processes_are_told(node: Node) -> None:
    node.register("r2", first_pid=900)
    node.lagging(2)
    assert [event.job for event in node.runs(15.0, waited_s=20.0)] == ["team/gpt/r1"]


def test_twin_a_report_of_processes_that_are_not_registered_is_nobodys(node: Node) -> None:
    node.register("r1", first_pid=500)
    node.lagging(2)
    assert node.runs(15.0, waited_s=20.0) == []
    assert "not registered as workers here" in node.collector.unavailable


def test_twin_where_nobody_listens_nothing_fails(node: Node) -> None:
    node.ras.close()
    assert node.runs(60.0, waited_s=20.0) == []
    assert node.collector.unavailable.startswith(f"nothing listens at 127.0.0.1:{node.ras.port}; NCCL 2.24")


def test_fault_what_is_no_ras_fails_until_it_is_one(node: Node) -> None:
    """The agent tells a failure once, as long as no run succeeds."""
    node.lagging(4)
    node.ras.greeting = b"SSH-2.0-x\n"
    for _ in range(3):
        with pytest.raises(RasError, match="it is no RAS of NCCL"):
            node.runs(5.0, waited_s=20.0)
    node.ras.greeting = b"SERVER PROTOCOL 2\n"
    assert node.runs(5.0, waited_s=20.0) == []


def test_fault_json_that_is_too_long_is_asked_for_in_text(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.nccl.ras_client.REPORT_BYTES", 1500)
    node.lagging(2)
    node.ras.text = text_report([ROW])
    assert node.runs(60.0, waited_s=20.0) == []
    assert node.ras.commands.count("SET FORMAT JSON") == 1
    assert node.looks > 2
