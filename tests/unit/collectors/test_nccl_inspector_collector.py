"""Logs of NCCL Inspector that grow, as numbers of the workers that write them."""

import json
import math
import os
import socket
from pathlib import Path

import pytest

from collectors.nccl_inspector import SEARCH_S, NcclInspectorCollector
from eagle_eye.clock import FakeClock
from fakes.inspector_log import inspector_line


class Node:
    """A job with two workers here; its Inspector writes to a folder."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.logs = folder / "nccl-inspector-7"
        self.logs.mkdir()
        (folder / "jobs").mkdir()
        workers = [{"worker": f"r1/n1/{slot}", "slot": slot, "rank": slot, "pid": 100 + slot, "epoch": 1} for slot in range(2)]
        job = {"job": "team/gpt/r1", "run": "r1", "launcher_pid": os.getpid(), "workers": workers, "state": "running"}
        (folder / "jobs" / "r1.json").write_text(json.dumps(job))
        self.collector = NcclInspectorCollector(folders=(f"{folder}/nccl-inspector-*",), run_dir=folder, clock=self.clock)

    def write(self, slot: int, *lines: str, host: str = socket.gethostname()) -> None:
        with (self.logs / f"{host}-pid{100 + slot}.log").open("a") as file:
            file.write("".join(lines))

    def look(self, seconds: float = 5.0) -> dict[str, dict[str, float]]:
        """Worker → its numbers, those that are there."""
        self.clock.advance(seconds)
        return {
            worker: {name: value for name, value in zip(each.names, row.tolist(), strict=True) if not math.isnan(value)}
            for each in self.collector.collect() for worker, row in zip(each.entities, each.matrix, strict=True)
        }  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_rates_since_the_look_before_by_role_of_the_group(node: Node) -> None:
    node.write(0, inspector_line())
    assert node.look() == {}, "what was there before is not of now"
    node.write(0, inspector_line(group="default_pg", size=1000, us=100, bus_gbs=10.0), inspector_line(group="default_pg", size=3000, us=300, bus_gbs=20.0))
    node.write(0, inspector_line(operation="Send", peer=1, size=500, bus_gbs="nan"))
    found = node.look()
    assert found == {"r1/n1/0": {
        "world_measured_bytes_per_s": 800.0, "world_bus_bytes_per_s": pytest.approx(17.5e9), "world_measured_mean_s": pytest.approx(2e-4),
        "p2p_measured_bytes_per_s": 100.0, "p2p_measured_mean_s": pytest.approx(1e-4),
    }}  # fmt: skip
    assert node.look() == {}


def test_a_line_is_read_once_it_is_whole(node: Node) -> None:
    node.write(0, "")
    node.look()
    line = inspector_line(size=1000)
    node.write(0, line[:50])
    assert node.look() == {}
    node.write(0, line[50:])
    assert node.look()["r1/n1/0"]["other_measured_bytes_per_s"] == 200.0
    assert node.collector.unreadable == 0


def test_a_log_that_comes_later_is_found(node: Node) -> None:
    node.look()
    node.write(1, "")
    node.look(SEARCH_S)
    node.write(1, inspector_line())
    assert list(node.look()) == ["r1/n1/1"]


def test_twin_another_hosts_process_of_the_same_number_is_not_ours(node: Node) -> None:
    node.write(0, "", host="elsewhere")
    node.look()
    node.write(0, inspector_line(), host="elsewhere")
    assert node.look() == {}


def test_fault_what_cannot_be_read_is_counted_and_told_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.write(0, "")
    node.look()
    node.write(0, "torn\n", '{"header":{}}\n', inspector_line(size=1000))
    assert node.look()["r1/n1/0"]["other_measured_bytes_per_s"] == 200.0
    assert (node.collector.unreadable, len(caplog.records)) == (2, 1)


def test_fault_a_fifo_in_its_place_costs_nothing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(node.logs / f"{socket.gethostname()}-pid100.log")
    assert [node.look() for _ in range(2)] == [{}, {}]
    assert "no regular file" in caplog.text


@pytest.mark.parametrize("folder", ["logs", "", "/"])
def test_a_folder_that_is_no_whole_path_is_refused_at_the_start(folder: str) -> None:
    with pytest.raises(ValueError, match="no path from the root"):
        NcclInspectorCollector(folders=(folder,))


def test_without_folders_nothing_is_read_and_it_says_so() -> None:
    collector = NcclInspectorCollector()
    assert list(collector.collect()) == []
    assert "[collectors.nccl_inspector] folders" in collector.unavailable
