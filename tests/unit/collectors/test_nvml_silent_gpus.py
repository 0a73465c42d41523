"""GPUs that are listed and give nothing but errors."""

import math

import pytest

from collectors.nvml.watched_gpu import SILENT_LOOKS
from eagle_eye.types import Event
from fakes.gpu_readings import GpuNode, table_of
from fakes.nvml_gpu import FakeMigInstance

UNKNOWN = "NVML_ERROR_UNKNOWN"


def told(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.name, event.entity.name) for event in events]


def is_unread(row: dict[str, float]) -> bool:
    return all(math.isnan(value) for value in row.values())


@pytest.fixture
def node() -> GpuNode:
    made = GpuNode(gpus=3)
    made.seconds(12)
    return made


@pytest.mark.parametrize("error", [UNKNOWN, "NVML_ERROR_NOT_FOUND", "NVML_ERROR_TIMEOUT"])
def test_one_that_has_an_error_at_the_start_costs_no_reading_of_the_others_and_is_told_lost(error: str) -> None:
    node = GpuNode(gpus=3)
    node.nvml.gpus[1].error = error
    assert node.seconds(SILENT_LOOKS - 1) == []
    assert [node.row(number)["power_watts"] for number in (0, 2)] == [300, 300]
    assert is_unread(table_of(node.found)["gpu-1"])
    (event,) = node.seconds(1)
    assert (event.name, event.entity.name) == ("gpu.lost", "gpu-1")
    assert event.attributes["reason"]


def test_one_that_gives_nothing_but_errors_is_lost_with_the_reason_and_keeps_no_states(node: GpuNode) -> None:
    gpu = node.nvml.gpus[1]
    assert node.row(1)["nvlinks_active"] == 18
    gpu.error = UNKNOWN
    assert node.seconds(SILENT_LOOKS - 1) == []
    (event,) = node.seconds(1)
    assert told([event]) == [("gpu.lost", "GPU-00000001")]
    assert event.attributes["reason"] == str(node.nvml.NVMLError(node.nvml.NVML_ERROR_UNKNOWN))
    assert is_unread(node.row(1))
    assert node.row(0)["power_watts"] == 300


def test_it_is_looked_for_told_once_and_returns(node: GpuNode) -> None:
    node.nvml.gpus[1].error = UNKNOWN
    assert told(node.seconds(200)) == [("gpu.lost", "GPU-00000001")]
    node.nvml.gpus[1].error = ""
    assert told(node.seconds(61)) == [("gpu.returned", "GPU-00000001")]
    node.seconds(11)
    assert (node.row(1)["power_watts"], node.row(1)["nvlinks_active"]) == (300, 18)


def test_one_that_was_never_named_returns_under_its_name() -> None:
    node = GpuNode()
    node.nvml.gpus[1].error = UNKNOWN
    assert told(node.seconds(SILENT_LOOKS)) == [("gpu.lost", "gpu-1")]
    node.nvml.gpus[1].error = ""
    assert told(node.seconds(61)) == [("gpu.returned", "GPU-00000001")]


@pytest.mark.parametrize("looks", [1, 2])
def test_twin_one_or_two_looks_with_errors_are_nothing(node: GpuNode, looks: int) -> None:
    node.nvml.gpus[1].mig, node.nvml.gpus[1].instances = True, [FakeMigInstance("MIG-a")]
    node.seconds(18)
    for _ in range(20):
        node.nvml.gpus[1].error = UNKNOWN
        assert node.seconds(looks) == []
        node.nvml.gpus[1].error = ""
        assert node.seconds(1) == []
    node.seconds(11)
    assert (node.row(1)["nvlinks_active"], node.row(1)["mig_enabled"]) == (18, 1)


def test_twin_one_that_has_an_error_at_the_first_looks_alone_is_read_from_then_on() -> None:
    node = GpuNode()
    node.nvml.gpus[1].error = UNKNOWN
    assert node.seconds(2) == []
    node.nvml.gpus[1].error = ""
    assert node.seconds(1) == []
    assert (node.row(1)["power_watts"], node.row(1)["nvlinks_active"]) == (300, 18)
    node.nvml.xids.append((1, 31))
    assert told(node.seconds(1)) == [("gpu.xid", "GPU-00000001")]


def test_twin_one_whose_fields_alone_have_errors_is_read_by_calls(node: GpuNode) -> None:
    node.nvml.gpus[1].field_error = 999
    assert node.seconds(40) == []
    assert (node.row(1)["temperature_celsius"], math.isnan(node.row(1)["nvlinks_active"])) == (55, True)


def test_twin_one_that_this_user_may_not_ask_is_none_of_ours() -> None:
    node = GpuNode()
    node.nvml.gpus[1].error = "NVML_ERROR_NO_PERMISSION"
    assert node.seconds(40) == []
    assert list(table_of(node.found)) == ["GPU-00000000"]


def test_where_every_one_has_an_error_the_driver_is_to_blame() -> None:
    node = GpuNode()
    for gpu in node.nvml.gpus:
        gpu.error = UNKNOWN
    with pytest.raises(node.nvml.NVMLError):
        node.seconds(1)
