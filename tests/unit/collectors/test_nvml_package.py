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
    gpus[0].fields[83] += 412_000
    gpus[0].fields[230] = 1
    gpus[0].link_errors[161, 3] = 2
    gpus[2].links[5] = 0
    pynvml.nvmlLib.xids.append((1, 79))
    clock.advance(1.0)
    found = collector.collect()
    row = table_of(found)["GPU-a"]
    assert {name: row[name] for name in ("utilisation_percent", "memory_used_bytes", "power_watts", "power_mean_watts", "temperature_celsius")} == {
        "utilisation_percent": 97, "memory_used_bytes": 60 << 30, "power_watts": 300, "power_mean_watts": 412, "temperature_celsius": 55,
    }  # fmt: skip
    assert (row["sm_clock_mhz"], row["memory_clock_mhz"], row["pcie_generation"], row["pcie_width"], row["processes"]) == (1980, 2619, 5, 16, 1)
    assert (row["nvlinks_active"], row["nvlink_replays_per_s"], row["nvlink_worst"], row["fabric_healthy"]) == (18, 2, 3, 1)
    divided, older = table_of(found)["GPU-b"], table_of(found)["GPU-c"]
    assert math.isnan(divided["utilisation_percent"])
    assert older["fabric_healthy"] == 0
    assert table_of(found, "mig") == {"MIG-a": {"memory_used_bytes": 60 << 30, "memory_percent": 75, "processes": 1}}
    assert sorted((event.name, event.entity.name) for event in found if isinstance(event, Event)) == [("gpu.recovery_action", "GPU-a"), ("gpu.xid", "GPU-b")]
    clock.advance(9.0)
    (down,) = [event for event in collector.collect() if isinstance(event, Event)]
    assert (down.name, down.attributes["link"], down.attributes["remote"], down.attributes["pci"]) == ("gpu.nvlink_down", "5", "0000:c1:00.0", "0000:19:00.0")
