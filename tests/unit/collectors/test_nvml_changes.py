"""Changes that are told at once, each beside what looks like it and is none."""

import math

import pytest

from eagle_eye.types import Event, Kind
from fakes.gpu_readings import GpuNode


@pytest.fixture
def node() -> GpuNode:
    node = GpuNode()
    assert node.seconds(1) == []
    return node


def told(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.name, event.entity.name) for event in events]


# --- NVLink


def test_fault_a_link_that_goes_down_is_told_with_its_other_end_and_is_a_state(node: GpuNode) -> None:
    node.nvml.gpus[1].links[4] = 0
    (event,) = node.seconds(10)
    assert (event.name, event.entity.kind, event.entity.name) == ("gpu.nvlink_down", Kind.GPU, "GPU-00000001")
    assert (event.attributes["link"], event.attributes["remote"], event.attributes["pci"]) == ("4", "0000:c0:00.0", "0000:18:00.0")
    assert node.seconds(20) == [], "once"
    assert (node.row(1)["nvlinks_down"], node.row(1)["nvlinks_active"]) == (1, 17)
    node.nvml.gpus[1].links[4] = 1
    assert told(node.seconds(10)) == [("gpu.nvlink_up", "GPU-00000001")]
    assert (node.row(1)["nvlinks_down"], node.row(1)["nvlinks_active"]) == (0, 18)


def test_twin_a_link_that_never_was_up_is_not_down() -> None:
    node = GpuNode(gpus=1)
    node.nvml.gpus[0].links = [1] * 12 + [0] * 6
    assert node.seconds(30) == []
    assert (node.row()["nvlinks_active"], node.row()["nvlinks_down"]) == (12, 0)


def test_twin_a_link_that_sleeps_to_save_power_is_up(node: GpuNode) -> None:
    node.nvml.gpus[0].links[4] = 2
    assert node.seconds(20) == []
    assert node.row()["nvlinks_active"] == 18


def test_twin_a_link_of_which_nothing_is_said_is_neither(node: GpuNode) -> None:
    node.nvml.gpus[0].unknown_fields = {165}
    assert node.seconds(20) == []
    assert math.isnan(node.row()["nvlinks_active"])
    node.nvml.gpus[0].unknown_fields = set()
    assert node.seconds(10) == []
    assert node.row()["nvlinks_active"] == 18


def test_a_gpu_without_nvlinks_has_none_down() -> None:
    node = GpuNode(gpus=1)
    node.nvml.gpus[0].links = []
    assert node.seconds(20) == []
    assert all(math.isnan(node.row()[name]) for name in ("nvlinks_active", "nvlinks_down", "nvlink_replays_per_s"))


def test_where_the_state_is_no_field_each_link_is_asked_by_a_call() -> None:
    node = GpuNode(gpus=1)
    node.nvml.gpus[0].unknown_fields = {165}
    node.nvml.gpus[0].links = [1] * 12
    node.seconds(1)
    assert node.row()["nvlinks_active"] == 12
    node.nvml.gpus[0].links[11] = 0
    assert [event.attributes["link"] for event in node.seconds(10)] == ["11"]


def test_the_counters_of_a_link_that_came_back_are_read_again(node: GpuNode) -> None:
    gpu = node.nvml.gpus[0]
    whole = gpu.value_of
    gpu.links[4] = 0
    gpu.value_of = lambda number, scope: (3, 0) if number in (161, 162, 163) and scope == 4 else whole(number, scope)  # type: ignore[method-assign]
    node.seconds(10)
    assert (161, 4) not in node.nvml.asked[-2]
    gpu.links[4], gpu.value_of = 1, whole  # type: ignore[method-assign]
    node.seconds(11)
    assert (161, 4) in node.nvml.asked[-2]


# --- memory


def test_fault_a_remapped_row_is_told_and_what_is_to_be_done(node: GpuNode) -> None:
    node.nvml.gpus[0].fields |= {143: 1, 144: 1}
    (event,) = node.seconds(10)
    assert event.name == "gpu.rows_remapped"
    assert {key: event.attributes[key] for key in ("rows", "before", "uncorrected", "pending")} == {"rows": "1", "before": "0", "uncorrected": "1", "pending": "1"}
    assert "a reset of the GPU completes it" in event.message
    assert node.seconds(30) == []


def test_twin_rows_that_were_remapped_before_the_agent_began_are_a_state() -> None:
    node = GpuNode(gpus=1)
    node.nvml.gpus[0].fields |= {142: 7, 144: 1, 145: 1}
    assert node.seconds(30) == []
    assert (node.row()["remapped_rows"], node.row()["remap_pending"], node.row()["remap_failed"]) == (7, 1, 1)


def test_twin_a_remapping_that_a_reset_completed_is_no_new_one(node: GpuNode) -> None:
    node.nvml.gpus[0].fields |= {143: 1, 144: 1}
    node.seconds(10)
    node.nvml.gpus[0].fields |= {144: 0}
    assert node.seconds(10) == []


def test_a_look_without_an_answer_makes_no_row_and_hides_none(node: GpuNode) -> None:
    whole = node.nvml.gpus[0].value_of
    node.nvml.gpus[0].value_of = lambda number, scope: (999, 0) if number == 143 else whole(number, scope)  # type: ignore[method-assign]
    assert node.seconds(10) == []
    assert math.isnan(node.row()["remapped_rows"])
    node.nvml.gpus[0].value_of = whole  # type: ignore[method-assign]
    node.nvml.gpus[0].fields[143] = 1
    assert told(node.seconds(10)) == [("gpu.rows_remapped", "GPU-00000000")]


def test_fault_a_row_that_could_not_be_remapped(node: GpuNode) -> None:
    node.nvml.gpus[0].fields[145] = 1
    assert told(node.seconds(20)) == [("gpu.remap_failed", "GPU-00000000")]


# --- the driver's advice


def test_fault_an_advice_is_told_within_a_second_and_so_is_its_end(node: GpuNode) -> None:
    node.nvml.gpus[0].fields[230] = 4
    (event,) = node.seconds(1)
    assert (event.name, event.attributes["action"], event.attributes["code"]) == ("gpu.recovery_action", "drain-and-reset", "4")
    assert node.seconds(5) == []
    assert node.row()["recovery_action"] == 4
    node.nvml.gpus[0].fields[230] = 0
    assert [event.attributes["action"] for event in node.seconds(1)] == ["none"]


def test_an_advice_from_before_the_agent_began_is_told() -> None:
    node = GpuNode(gpus=1)
    node.nvml.gpus[0].fields[230] = 2
    assert [event.attributes["action"] for event in node.seconds(20)] == ["reboot"]


def test_an_advice_whose_number_means_different_things_is_told_by_its_number(node: GpuNode) -> None:
    node.nvml.gpus[0].fields[230] = 5
    assert [event.attributes["action"] for event in node.seconds(1)] == ["action 5"]


def test_twin_a_driver_that_gives_no_advice_has_none() -> None:
    node = GpuNode(gpus=1)
    node.nvml.gpus[0].unknown_fields = {230}
    assert node.seconds(20) == []
    assert math.isnan(node.row()["recovery_action"])


# --- the fabric

DEGRADED, ROUTE_UNHEALTHY, NO_PARTITION = 0b01, 0b01 << 4, 4 << 8
FINE = 0b10 | 0b10 << 2 | 0b10 << 4 | 0b10 << 6 | 1 << 8
"""Each pair of bits is FALSE, the configuration is right."""


@pytest.mark.parametrize(
    ("fabric", "complaint"),
    [
        ({"healthMask": DEGRADED}, "degraded bandwidth"),
        ({"healthMask": ROUTE_UNHEALTHY | NO_PARTITION}, "a route is unhealthy; incorrect configuration: no partition"),
        ({"healthSummary": 2}, "no reason given"),
        ({"healthSummary": 3}, "limited capacity"),
        ({"status": 999}, "setting it up failed with NVML error 999"),
    ],
)
def test_fault_an_unhealthy_fabric_is_told_with_its_reason(node: GpuNode, fabric: dict[str, int], complaint: str) -> None:
    assert (node.row()["fabric_state"], node.row()["fabric_healthy"]) == (3, 1)
    node.nvml.gpus[0].fabric |= fabric
    (event,) = node.seconds(10)
    assert (event.name, event.attributes["reason"]) == ("gpu.fabric_unhealthy", complaint)
    assert node.seconds(20) == []
    assert node.row()["fabric_healthy"] == 0


def test_an_older_driver_tells_the_fabric_without_a_summary(node: GpuNode) -> None:
    for gpu in node.nvml.gpus:
        gpu.fabric = {"state": 3, "status": 0, "healthMask": FINE}
    assert node.seconds(10) == []
    assert node.row()["fabric_healthy"] == 1
    node.nvml.gpus[0].fabric["healthMask"] = FINE & ~0b11 | DEGRADED
    assert told(node.seconds(10)) == [("gpu.fabric_unhealthy", "GPU-00000000")]


def test_twin_a_fabric_that_is_being_set_up_is_not_unhealthy() -> None:
    node = GpuNode(gpus=1)
    node.nvml.gpus[0].fabric = {"state": 2, "status": 0, "healthMask": 0, "healthSummary": 0}
    assert node.seconds(20) == []
    assert node.row()["fabric_state"] == 2
    assert math.isnan(node.row()["fabric_healthy"])
    node.nvml.gpus[0].fabric |= {"state": 3, "healthSummary": 1}
    assert node.seconds(10) == []


def test_twin_a_gpu_without_a_fabric_has_no_health_of_it() -> None:
    node = GpuNode(gpus=1)
    node.nvml.missing = {"nvmlDeviceGetGpuFabricInfoV"}
    assert node.seconds(20) == []
    assert math.isnan(node.row()["fabric_state"])
