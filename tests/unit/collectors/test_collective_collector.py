"""The files that workers write of their process groups, whatever is in them, as numbers and events."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.agent.failure_boundary import STEADY_S
from collectors.collective import AGAIN_S, EXACT, NAMES, OLD_S, CollectiveCollector
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event, Reading


def group(description: str, position: int = 0, size: int = 2, *, begun: int = 0, over: int = 0, pending_s: float = 0.0, backend: str = "gloo") -> dict[str, Any]:
    progress = {"begun": begun, "over": over, "pending_ns": round(pending_s * 1e9)}
    return {"name": description, "description": description, "position": position, "size": size, "members": "ab12", "backends": {backend: progress}}


class Node:
    """A job with two workers on this node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.collector = CollectiveCollector(node="n1", run_dir=folder, clock=self.clock)
        self.list_workers(epoch=1)

    def list_workers(self, *, epoch: int) -> None:
        workers = [
            {"worker": f"r1/n1/{slot}", "slot": slot, "rank": slot, "pid": 10 + slot, "epoch": epoch, "born": 1, "socket": str(self.socket(slot))} for slot in range(2)
        ]
        (self.folder / "jobs").mkdir(exist_ok=True)
        new = self.folder / "jobs" / f"new{epoch}"
        new.write_text(json.dumps({"job": "default/gpt/r1", "run": "r1", "launcher_pid": os.getpid(), "workers": workers, "state": "running"}))
        new.replace(self.folder / "jobs" / "r1.json")

    def socket(self, slot: int) -> Path:
        return self.folder / f"r1-{slot}-1.sock"

    def write(self, slot: int, *groups: dict[str, Any], version: int = 1) -> None:
        record = {"version": version, "pid": 10 + slot, "monotonic_ns": round(self.clock.monotonic() * 1e9), "groups": groups}
        self.write_text(slot, json.dumps(record))

    def write_text(self, slot: int, text: str | bytes) -> None:
        Path(f"{self.socket(slot)}.groups").write_bytes(text if isinstance(text, bytes) else text.encode())

    def collect(self) -> tuple[dict[str, dict[str, float]], list[Event]]:
        """(worker → its numbers, those that are there; events)."""
        found = self.collector.collect()
        rows = {
            worker: {name: value for name, value in zip(each.names, row.tolist(), strict=True) if not math.isnan(value)}
            for each in found if isinstance(each, Reading) for worker, row in zip(each.entities, each.matrix, strict=True)
        }  # fmt: skip
        return rows, [each for each in found if isinstance(each, Event)]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_numbers_by_the_role_of_the_group(node: Node) -> None:
    node.write(0, group("default_pg", begun=51, over=50, pending_s=2.5), group("mesh_tp", begun=7, over=7))
    rows, _ = node.collect()
    assert rows == {
        "r1/n1/0": {
            "world_collectives": 51, "world_collectives_over": 50, "world_collective_age_s": 2.5,
            "tp_collectives": 7, "tp_collectives_over": 7, "tp_collective_age_s": 0.0,
        }
    }  # fmt: skip
    assert len(NAMES) == 21


def test_groups_of_one_role_are_taken_together_and_large_numbers_stay_exact(node: Node) -> None:
    node.write(0, group("x", begun=EXACT + 3, over=EXACT + 2, pending_s=1.0), group("y", begun=2, over=0, pending_s=9.0))
    rows, _ = node.collect()
    assert rows["r1/n1/0"] == {"other_collectives": 5, "other_collectives_over": 2, "other_collective_age_s": 9.0}


def test_facts_are_told_when_they_are_seen_when_they_change_and_again_for_who_reads_later(node: Node) -> None:
    node.write(1, group("default_pg", 1, 2), group("mesh_tp", 1, 2))
    _, (event,) = node.collect()
    assert (event.name, event.job, event.entity.name) == ("worker.groups", "default/gpt/r1", "r1/n1/1")
    assert event.attributes == {"rank": "1", "epoch": "1", "groups": "default_pg 1/2 ab12; mesh_tp 1/2 ab12", "tp": "1"}
    assert node.collect()[1] == []
    node.write(1, group("default_pg", 1, 2), group("mesh_tp", 1, 2), group("mesh_pp", 0, 2))
    assert [each.attributes["pp"] for each in node.collect()[1]] == ["0"]
    node.list_workers(epoch=2)
    assert [each.attributes["epoch"] for each in node.collect()[1]] == ["2"]
    node.clock.advance(AGAIN_S + 1)
    node.write(1, group("default_pg", 1, 2), group("mesh_tp", 1, 2), group("mesh_pp", 0, 2))
    assert len(node.collect()[1]) == 1


def test_a_worker_that_writes_no_more_has_no_numbers_until_it_writes_again(node: Node) -> None:
    """Stopped, or held by its interpreter's lock: its last numbers are of then."""
    node.write(0, group("default_pg", begun=5, over=5))
    assert node.collect()[0]
    node.clock.advance(OLD_S + 0.1)
    assert node.collect()[0] == {}
    node.write(0, group("default_pg", begun=6, over=6))
    assert node.collect()[0]["r1/n1/0"]["world_collectives"] == 6


def test_workers_without_groups_are_none_of_its_business(node: Node) -> None:
    assert node.collect() == ({}, [])


@pytest.mark.parametrize("text", [
    "", "{", "[]", "null", b"\xff\xfe", '{"version": 1}', '{"version": 1, "pid": 1, "monotonic_ns": -1, "groups": []}',
    '{"version": 1, "pid": 1, "monotonic_ns": 1, "groups": [{}]}', json.dumps({"version": 1, "pid": 1, "monotonic_ns": 1, "groups": [{**group("x" * 300)}]}),
    json.dumps({"version": 1, "pid": 1, "monotonic_ns": 1, "groups": [group("x", begun=-1)]}), json.dumps({"version": 2, "pid": 1, "monotonic_ns": 1, "groups": []}),
])  # fmt: skip
def test_what_is_no_record_costs_itself_and_is_told_once(node: Node, text: str | bytes, caplog: pytest.LogCaptureFixture) -> None:
    node.write_text(0, text)
    node.write(1, group("default_pg", begun=5, over=5))
    looks = [node.collect() for _ in range(3)]
    assert [list(rows) for rows, _ in looks] == [["r1/n1/1"]] * 3
    (failing,) = [event for _, events in looks for event in events if event.name == "collector.failing"]
    assert (failing.entity.name, failing.attributes["collector"]) == ("n1", "collective")
    assert failing.message.startswith(f"process groups of r1/n1/0, file {node.socket(0)}.groups, is left out by the collector collective, the others are not: ")
    assert [record.message.count("is left out") for record in caplog.records] == [1]
    assert node.collector.problems == (failing.message,)


@pytest.mark.parametrize("how", ["mended", "gone"])
def test_groups_that_are_read_again_or_whose_worker_is_gone_are_told_as_over(node: Node, how: str) -> None:
    node.write_text(0, "{")
    assert [event.name for event in node.collect()[1]] == ["collector.failing"]
    if how == "mended":
        node.write(0, group("default_pg"))
        assert [event.name for event in node.collect()[1]] == ["worker.groups"], "it may fail again at the next look"
        node.clock.advance(STEADY_S)
    else:
        (node.folder / "jobs" / "r1.json").unlink()
    assert [event.name for event in node.collect()[1]] == ["collector.recovered"]
    assert node.collector.problems == ()


def test_a_fifo_and_a_file_without_end_do_not_stop_it(node: Node) -> None:
    os.mkfifo(f"{node.socket(0)}.groups")
    node.write_text(1, b"[" * (2 << 20))
    rows, (failing,) = node.collect()
    assert rows == {}
    assert "it is no regular file (EINVAL); name a regular file" in failing.message
    assert "it has more than 1048576 bytes (EFBIG)" in failing.message
    assert node.collect() == ({}, [])


@given(st.binary(max_size=200))
def test_whatever_stands_there_nothing_fails(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    node = Node(tmp_path_factory.mktemp("node"))
    node.write(0, group("default_pg", begun=5, over=5))
    whole = Path(f"{node.socket(0)}.groups").read_bytes()
    node.write_text(0, whole[: len(junk)] + junk + whole[2 * len(junk) :])
    node.write(1, group("default_pg", begun=5, over=5))
    assert "r1/n1/1" in node.collect()[0], "the other worker is read all the same"
