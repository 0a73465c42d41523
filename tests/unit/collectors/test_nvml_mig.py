"""GPUs that are divided into MIG instances."""

import math
from types import SimpleNamespace

import pytest

from fakes.gpu_readings import GpuNode
from fakes.nvml_gpu import FakeMigInstance


@pytest.fixture
def divided() -> GpuNode:
    node = GpuNode()
    node.nvml.gpus[0].mig = True
    node.nvml.gpus[0].instances = [FakeMigInstance("MIG-a", memory_used=5 << 30), FakeMigInstance("MIG-b", processes=0)]
    node.nvml.gpus[1].mig = False
    return node


def test_each_instance_is_a_row_of_its_own_beside_the_board(divided: GpuNode) -> None:
    assert divided.seconds(3) == [], "it was so when the agent began"
    assert divided.instances() == {
        "MIG-a": {"memory_used_bytes": 5 << 30, "memory_percent": 50, "processes": 1},
        "MIG-b": {"memory_used_bytes": 4 << 30, "memory_percent": 40, "processes": 0},
    }
    row = divided.row()
    assert (row["power_watts"], row["memory_used_bytes"], row["mig_enabled"]) == (300, 60 << 30, 1)
    assert divided.row(1)["mig_enabled"] == 0


def test_a_divided_gpu_is_not_idle(divided: GpuNode) -> None:
    divided.seconds(2)
    assert math.isnan(divided.row(0)["utilisation_percent"])
    assert divided.row(1)["utilisation_percent"] == 97


def test_not_even_where_a_driver_says_nought(divided: GpuNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divided.nvml, "nvmlDeviceGetUtilizationRates", lambda _: SimpleNamespace(gpu=0, memory=0))
    divided.seconds(2)
    assert math.isnan(divided.row(0)["utilisation_percent"])


def test_a_gpu_that_is_divided_or_joined_is_told_and_its_utilisation_is_back(divided: GpuNode) -> None:
    divided.seconds(1)
    divided.nvml.gpus[0].mig = False
    divided.nvml.gpus[0].instances = []
    (event,) = divided.seconds(10)
    assert (event.name, event.entity.name) == ("gpu.mig_changed", divided.nvml.gpus[0].uuid)
    assert (event.attributes["enabled"], event.attributes["instances"]) == ("0", "")
    assert divided.instances() == {}
    divided.seconds(1)
    assert divided.row()["utilisation_percent"] == 97


def test_a_change_of_the_instances_is_told(divided: GpuNode) -> None:
    divided.seconds(1)
    divided.nvml.gpus[0].instances.append(FakeMigInstance("MIG-c"))
    (event,) = divided.seconds(10)
    assert event.attributes["instances"] == "MIG-a,MIG-b,MIG-c"
    assert set(divided.instances()) == {"MIG-a", "MIG-b", "MIG-c"}


def test_an_instance_that_was_removed_since_the_last_look_is_nan(divided: GpuNode) -> None:
    divided.seconds(1)
    divided.nvml.gpus[0].instances.pop()
    assert divided.seconds(1) == []
    assert math.isnan(divided.instances()["MIG-b"]["memory_used_bytes"])


@pytest.mark.parametrize("missing", ["nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount"])
def test_a_driver_without_mig_gives_the_whole_gpu(divided: GpuNode, missing: str) -> None:
    divided.nvml.missing = {missing}
    assert divided.seconds(20) == []
    assert divided.instances() == {}
    assert divided.row()["power_watts"] == 300
