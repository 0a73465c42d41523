"""GPUs that were lost and came back."""

import math

import pytest

from fakes.gpu_readings import GpuNode


@pytest.fixture
def node() -> GpuNode:
    node = GpuNode()
    node.seconds(2)
    node.nvml.gpus[0].lost = True
    assert [event.name for event in node.seconds(1)] == ["gpu.lost"]
    return node


def test_a_gpu_that_came_back_is_read_again_and_told(node: GpuNode) -> None:
    node.seconds(30)
    node.nvml.gpus[0].lost = False
    (event,) = node.seconds(60)
    assert (event.name, event.entity.name, event.attributes["was"]) == ("gpu.returned", "GPU-00000000", "GPU-00000000")
    assert event.attributes["lost_s"] == "58", "retry_s after the driver was opened"
    assert node.row()["power_watts"] == 300


def test_its_xids_come_again(node: GpuNode) -> None:
    node.nvml.gpus[0].lost = False
    node.seconds(61)
    node.nvml.xids.extend([(0, 31), (1, 63)])
    assert [event.attributes["code"] for event in node.seconds(1)] == ["31", "63"]


def test_it_is_looked_for_each_minute_and_the_others_go_on(node: GpuNode) -> None:
    opened = node.nvml.calls["nvmlInit"]
    counters = node.nvml.gpus[1].fields
    for second in range(180):
        counters[83] += 500_000
        node.nvml.gpus[1].pcie_replays += 2
        assert node.seconds(1) == []
        assert second < 20 or (node.row(1)["power_mean_watts"], node.row(1)["pcie_replays_per_s"]) == (500, 2)
        assert all(math.isnan(value) for value in node.row(0).values())
    assert node.nvml.calls["nvmlInit"] == opened + 3
    assert node.nvml.calls["nvmlShutdown"] == opened + 2, "closed before: what we hold cannot be reset"


def test_rows_that_the_reset_remapped_are_its_state(node: GpuNode) -> None:
    node.nvml.gpus[0].fields[142] = 6
    node.nvml.gpus[0].lost = False
    assert [event.name for event in node.seconds(120)] == ["gpu.returned"]
    assert node.row()["remapped_rows"] == 6


def test_one_that_is_lost_again_is_told_again(node: GpuNode) -> None:
    node.nvml.gpus[0].lost = False
    node.seconds(61)
    node.nvml.gpus[0].lost = True
    assert [event.name for event in node.seconds(3)] == ["gpu.lost"]
    assert all(math.isnan(value) for value in node.row(0).values())


def test_another_that_is_lost_while_one_is_away(node: GpuNode) -> None:
    node.nvml.gpus[1].lost = True
    assert [(event.name, event.entity.name) for event in node.seconds(70)] == [("gpu.lost", "GPU-00000001")]
    node.nvml.gpus[0].lost = node.nvml.gpus[1].lost = False
    assert sorted((event.name, event.entity.name) for event in node.seconds(60)) == [("gpu.returned", "GPU-00000000"), ("gpu.returned", "GPU-00000001")]


def test_one_whose_uuid_was_not_known_returns_under_its_name() -> None:
    node = GpuNode()
    node.nvml.gpus[1].lost = True
    (lost,) = node.seconds(1)
    node.nvml.gpus[1].lost = False
    (event,) = node.seconds(60)
    assert (lost.entity.name, event.entity.name, event.attributes["was"]) == ("gpu-1", "GPU-00000001", "gpu-1")
    assert node.row(1)["power_watts"] == 300
    assert node.seconds(120) == []


def test_one_that_comes_back_with_a_new_driver_is_told(node: GpuNode) -> None:
    node.nvml.gpus[0].lost = False
    node.nvml.reload_driver()
    with pytest.raises(node.nvml.NVMLError):
        node.seconds(1)
    assert [(event.name, event.entity.name) for event in node.seconds(1)] == [("gpu.returned", "GPU-00000000")]


def test_a_driver_that_is_gone_while_one_is_looked_for_raises_until_it_is_back(node: GpuNode) -> None:
    node.nvml.absent = "NVML_ERROR_DRIVER_NOT_LOADED"
    with pytest.raises(Exception, match="modprobe"):
        node.seconds(60)
    with pytest.raises(Exception, match="modprobe"):
        node.seconds(1)
    node.nvml.absent = ""
    node.nvml.gpus[0].lost = False
    assert [event.name for event in node.seconds(1)] == ["gpu.returned"]


def test_a_gpu_that_was_added_is_read_once_the_driver_is_opened_anew(node: GpuNode) -> None:
    node.nvml.gpus.append(type(node.nvml.gpus[0])(uuid="GPU-new"))
    node.seconds(60)
    assert node.row(2)["power_watts"] == 300
