"""Bytes of each second: what workers write of their process groups, times what their rings say."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from collectors import collective, nccl_inspector
from collectors.flight_recorder import NAMES, OLD_S, FlightRecorderCollector
from collectors.worker.ring_reader import FlightRingReader
from eagle_eye.clock import FakeClock
from eagle_eye.training import live_flight_recorder
from fakes.flight_ring import ring_answer, ring_entry

ELEMENTS = 250_000
RING = ring_answer(*(ring_entry(number, "all_reduce", [[ELEMENTS]]) for number in range(1, 11)))
MEGABYTE = 1e6


def group(description: str, over: int, *, name: str = "0", backend: str = "gloo", size: int = 2) -> dict[str, Any]:
    progress = {"begun": over + 1, "over": over, "pending_ns": 0}
    return {"name": name, "description": description, "position": 0, "size": size, "members": "ab12", "backends": {backend: progress}}


class RecorderNode:
    """A job with two workers on this node; `answers`: what their recorders say."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, FakeClock()
        self.collector = FlightRecorderCollector(run_dir=folder, clock=self.clock)
        self.answers: dict[str, list[bytes] | None] = {}
        self.collector.rings = FlightRingReader(ask=lambda path, _timeout, _largest: self.answers.get(path), elapsed=lambda: 0.0, used=lambda: 0.0)
        workers = [{"worker": f"r1/n1/{slot}", "slot": slot, "rank": slot, "pid": 10 + slot, "epoch": 1, "born": 1, "socket": str(self.socket(slot))} for slot in range(2)]
        (folder / "jobs").mkdir()
        (folder / "jobs" / "r1.json").write_text(json.dumps({"job": "default/gpt/r1", "run": "r1", "launcher_pid": os.getpid(), "workers": workers, "state": "running"}))

    def socket(self, slot: int) -> Path:
        return self.folder / f"r1-{slot}-1.sock"

    def serve(self, slot: int, *answers: bytes) -> None:
        self.answers[live_flight_recorder.path_beside(str(self.socket(slot)))] = list(answers)

    def look(self, *groups: dict[str, Any], slot: int = 0) -> dict[str, float]:
        """What is told of a worker, a second later; it writes these groups, none: nothing new."""
        self.clock.advance(1.0)
        if groups:
            record = {"version": 1, "pid": 10 + slot, "monotonic_ns": round(self.clock.monotonic() * 1e9), "groups": groups}
            Path(f"{self.socket(slot)}.groups").write_text(json.dumps(record))
        rows = {worker: row.tolist() for each in self.collector.collect() for worker, row in zip(each.entities, each.matrix, strict=True)}
        return {name: value for name, value in zip(NAMES, rows.get(f"r1/n1/{slot}", ()), strict=False) if not math.isnan(value)}


@pytest.fixture
def node(tmp_path: Path) -> RecorderNode:
    return RecorderNode(tmp_path)


def test_bytes_of_a_second_are_the_collectives_that_are_over_times_their_size(node: RecorderNode) -> None:
    node.serve(0, RING)
    assert node.look(group("default_pg", 100)) == {}, "the ring is read behind the numbers"
    assert node.look(group("default_pg", 103)) == {
        "world_bytes_per_s": 3 * MEGABYTE, "world_ring_mean_bytes": MEGABYTE, "all_reduce_bytes_per_s": 3 * MEGABYTE, "all_reduce_per_s": 3.0
    }  # fmt: skip
    assert node.look(group("default_pg", 103)) == {"world_bytes_per_s": 0.0, "all_reduce_bytes_per_s": 0.0, "all_reduce_per_s": 0.0}, "nothing was over"


def test_bus_bandwidth_where_the_ring_has_durations(node: RecorderNode) -> None:
    """Eight ranks, 1 MB in 2 ms: 0.5 GB/s × 2 × 7 / 8."""
    node.serve(0, ring_answer(*(ring_entry(number, "all_reduce", [[ELEMENTS]], backend="nccl", duration_ms=2.0) for number in range(1, 5))))
    node.look(group("default_pg", 1, backend="nccl", size=8))
    assert node.look(group("default_pg", 2, backend="nccl", size=8))["world_ring_bus_bandwidth_bytes_per_s"] == pytest.approx(0.5e9 * 1.75)
    assert "world_ring_bus_bandwidth_bytes_per_s" not in node.look(group("default_pg", 2, backend="nccl", size=8))


def test_each_role_and_each_kind_by_itself(node: RecorderNode) -> None:
    gathers = [ring_entry(number, "all_gather", [[ELEMENTS]], [[2, ELEMENTS]], group="5") for number in range(1, 4)]
    node.serve(0, ring_answer(ring_entry(1, "all_reduce", [[ELEMENTS]]), *gathers))
    node.look(group("default_pg", 0), group("mesh_dp_shard", 0, name="5"))
    found = node.look(group("default_pg", 1), group("mesh_dp_shard", 4, name="5"))
    assert (found["world_bytes_per_s"], found["dp_bytes_per_s"], found["all_gather_bytes_per_s"], found["all_gather_per_s"]) == (MEGABYTE, 8 * MEGABYTE, 8 * MEGABYTE, 4.0)


def test_the_time_between_two_records_counts_and_the_same_record_is_not_told_twice(node: RecorderNode) -> None:
    node.serve(0, RING)
    node.look(group("default_pg", 0))
    assert node.look() == {}
    assert node.look(group("default_pg", 8))["world_bytes_per_s"] == 4 * MEGABYTE


def test_a_group_that_was_made_anew_or_counts_beyond_reason_has_no_numbers(node: RecorderNode) -> None:
    node.serve(0, RING)
    node.look(group("default_pg", 50))
    assert node.look(group("default_pg", 2)) == {}
    assert node.look(group("default_pg", (1 << 63) - 1)) == {}


def test_a_worker_that_writes_no_more_or_whose_ring_is_not_known_has_no_numbers(node: RecorderNode) -> None:
    node.serve(1, RING)
    for over in range(3):
        assert node.look(group("default_pg", over)) == {}, "nobody answers"
    node.look(group("default_pg", 0), slot=1)
    assert node.look(group("default_pg", 1), slot=1)
    node.clock.advance(OLD_S)
    assert node.look(slot=1) == {}


def test_a_ring_that_cannot_be_read_costs_no_numbers_and_is_told_once(node: RecorderNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    node.serve(0, RING)
    node.look(group("default_pg", 0))

    def fail(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(node.collector.rings, "look", fail)
    for over in (1, 2, 3):
        assert node.look(group("default_pg", over))["world_bytes_per_s"] == MEGABYTE
    assert [record.getMessage() for record in caplog.records] == ["a ring of a flight recorder was not read"]


def test_names_do_not_clash() -> None:
    assert len({*NAMES, *collective.NAMES, *nccl_inspector.NAMES}) == len(NAMES) + len(collective.NAMES) + len(nccl_inspector.NAMES)
