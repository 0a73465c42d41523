"""The gpu collector through the real nvidia-ml-py, over a stand-in for the C library below it: arguments, structures and errors are the package's own."""

import math

import pytest

from collectors.gpu import GpuCollector
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event
from fakes.gpu_readings import table_of
from fakes.nvml_gpu import FakeGpu, FakeMigInstance
from fakes.nvml_library import use


def test_all_is_read_through_the_real_package(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [FakeGpu("GPU-a"), FakeGpu("GPU-b", mig=True, instances=[FakeMigInstance("MIG-a")]), FakeGpu("GPU-c", fabric={"state": 3, "status": 0, "healthMask": 1})]
    pynvml = use(monkeypatch, gpus)
    clock = FakeClock()
    collector = GpuCollector(nvml=pynvml, clock=clock)
    collector.collect()
    gpus[0].fields[83] += 4_120_000
    gpus[0].fields[230] = 1
    gpus[0].link_errors[161, 3] = 2
    gpus[2].links[5] = 0
    pynvml.nvmlLib.xids.append((1, 79))
    clock.advance(1.0)
    found = collector.collect()
    row = table_of(found)["GPU-a"]
    assert {name: row[name] for name in ("utilisation_percent", "memory_used_bytes", "power_watts", "temperature_celsius")} == {
        "utilisation_percent": 97, "memory_used_bytes": 60 << 30, "power_watts": 300, "temperature_celsius": 55,
    }  # fmt: skip
    assert (row["sm_clock_mhz"], row["memory_clock_mhz"], row["pcie_generation"], row["pcie_width"], row["processes"]) == (1980, 2619, 5, 16, 1)
    assert (row["nvlinks_active"], row["nvlink_replays_per_s"], row["nvlink_worst"], row["fabric_healthy"]) == (18, 2, 3, 1)
    divided, older = table_of(found)["GPU-b"], table_of(found)["GPU-c"]
    assert math.isnan(divided["utilisation_percent"])
    assert older["fabric_healthy"] == 0
    assert table_of(found, "mig") == {"MIG-a": {"memory_used_bytes": 4 << 30, "memory_percent": 40, "processes": 1}}
    assert sorted((event.name, event.entity.name) for event in found if isinstance(event, Event)) == [("gpu.recovery_action", "GPU-a"), ("gpu.xid", "GPU-b")]
    clock.advance(9.0)
    found = collector.collect()
    assert table_of(found)["GPU-a"]["power_mean_watts"] == 412
    (down,) = [event for event in found if isinstance(event, Event)]
    assert (down.name, down.attributes["link"], down.attributes["remote"], down.attributes["pci"]) == ("gpu.nvlink_down", "5", "0000:c1:00.0", "0000:19:00.0")


class Node:
    """A collector over the real package, second by second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: list[FakeGpu]) -> None:
        self.clock = FakeClock()
        self.collector = GpuCollector(nvml=use(monkeypatch, gpus), clock=self.clock)
        self.found = self.collector.collect()

    def seconds(self, count: int) -> list[Event]:
        """Looks once a second; returns what was told."""
        told: list[Event] = []
        for _ in range(count):
            self.clock.advance(1.0)
            self.found = self.collector.collect()
            told += [each for each in self.found if isinstance(each, Event)]
        return told


def test_of_eight_gpus_each_has_the_links_and_the_errors_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [FakeGpu(f"GPU-{index}") for index in range(8)]
    node = Node(monkeypatch, gpus)
    gpus[3].links[5], gpus[6].links[0], gpus[6].links[17] = 0, 0, 0
    gpus[2].link_errors[161, 9] = 4
    assert node.seconds(1) == []
    assert [gpu for gpu, row in table_of(node.found).items() if row["nvlink_worst"] == 9] == ["GPU-2"]
    told = {(event.entity.name, event.name, event.attributes["link"], event.attributes["remote"]) for event in node.seconds(9)}
    assert told == {
        ("GPU-3", "gpu.nvlink_down", "5", "0000:c1:00.0"), ("GPU-6", "gpu.nvlink_down", "0", "0000:c0:00.0"), ("GPU-6", "gpu.nvlink_down", "17", "0000:c1:00.0"),
    }  # fmt: skip
    table = table_of(node.found)
    assert [table[gpu.uuid]["nvlinks_active"] for gpu in gpus] == [18, 18, 18, 17, 18, 18, 16, 18]
    gpus[3].links[5] = 1
    assert [(event.entity.name, event.name) for event in node.seconds(10)] == [("GPU-3", "gpu.nvlink_up")]


def test_two_instances_of_a_divided_gpu_of_which_one_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    instances = [FakeMigInstance("MIG-a", memory_used=2 << 30, processes=0), FakeMigInstance("MIG-b", memory_used=9 << 30, processes=3)]
    gpus = [FakeGpu("GPU-0"), FakeGpu("GPU-1", mig=True, instances=instances)]
    node = Node(monkeypatch, gpus)
    assert table_of(node.found, "mig") == {
        "MIG-a": {"memory_used_bytes": 2 << 30, "memory_percent": 20, "processes": 0},
        "MIG-b": {"memory_used_bytes": 9 << 30, "memory_percent": 90, "processes": 3},
    }
    assert math.isnan(table_of(node.found)["GPU-1"]["utilisation_percent"])
    assert table_of(node.found)["GPU-0"]["utilisation_percent"] == 97
    instances.pop()
    assert node.seconds(1) == []
    assert math.isnan(table_of(node.found, "mig")["MIG-b"]["memory_used_bytes"]), "removed since the last look"
    (change,) = node.seconds(9)
    assert (change.name, change.entity.name, change.attributes["instances"], change.attributes["enabled"]) == ("gpu.mig_changed", "GPU-1", "MIG-a", "1")
    assert list(table_of(node.found, "mig")) == ["MIG-a"]


def test_a_gpu_that_falls_off_the_bus_and_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [FakeGpu(f"GPU-{index}") for index in range(3)]
    node = Node(monkeypatch, gpus)
    gpus[1].lost = True
    assert [(event.name, event.entity.name) for event in node.seconds(5)] == [("gpu.lost", "GPU-1")]
    table = table_of(node.found)
    assert all(map(math.isnan, table["GPU-1"].values()))
    assert (table["GPU-0"]["power_watts"], table["GPU-2"]["power_watts"]) == (300, 300)
    gpus[1].lost = False
    assert [(event.name, event.entity.name) for event in node.seconds(61)] == [("gpu.returned", "GPU-1")]
    assert table_of(node.found)["GPU-1"]["power_watts"] == 300
