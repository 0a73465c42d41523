"""Fields of a GPU: units, rates, states, what is left out, and a driver that refuses them."""

import logging
import math
from pathlib import Path

import pytest

from collectors.nvml.fields import FieldId, FieldKind, metrics_of
from collectors.nvml.watched_gpu import NAMES, STATES
from fakes.gpu_readings import GpuNode

SECONDS = 1_000_000_000
"""Nanoseconds."""


@pytest.fixture
def node() -> GpuNode:
    node = GpuNode()
    node.seconds(1)
    return node


def test_power_is_told_in_watts_of_the_moment_and_of_the_energy_counter(node: GpuNode) -> None:
    node.nvml.gpus[0].fields[83] += 4_120_000
    node.seconds(10)
    row = node.row()
    assert (row["power_watts"], row["power_mean_watts"], row["memory_temperature_celsius"]) == (300, 412, 61)


def test_time_in_a_throttle_reason_is_a_share_of_the_time_since_the_look_before(node: GpuNode) -> None:
    """What takes the driver long is asked for every ten seconds."""
    node.nvml.gpus[0].fields |= {74: SECONDS // 4, 269: SECONDS, 270: 10 * SECONDS + SECONDS // 50}
    node.seconds(1)
    row = node.row()
    assert row["throttled_power_percent"] == pytest.approx(25)
    assert row["throttled_software_thermal_percent"] == pytest.approx(100)
    assert not {270, 271, 83} & {number for number, _ in node.nvml.asked[-1]}
    node.seconds(9)
    row = node.row()
    assert row["throttled_hardware_thermal_percent"] == 100, "the driver counts in steps"
    assert row["throttled_power_brake_percent"] == 0


def test_a_number_that_is_no_time_is_no_share(node: GpuNode) -> None:
    node.nvml.gpus[0].fields[269] = 60 * SECONDS
    node.seconds(1)
    assert math.isnan(node.row()["throttled_software_thermal_percent"])


@pytest.mark.parametrize(
    ("driver", "asked"),
    [("590.44.01", {269, 270, 271}), ("580.126.09", {269, 270, 271}), ("580.65.06", {251, 252, 253}), ("580.95.05", set()), ("570.86.15", set()), ("?", set())],
)
def test_throttle_times_are_asked_by_the_numbers_that_the_driver_means(driver: str, asked: set[int]) -> None:
    node = GpuNode(gpus=1)
    node.nvml.driver = driver
    node.seconds(1)
    assert {number for number, _ in node.nvml.asked[-1]} & {251, 252, 253, 269, 270, 271} == asked


def test_ecc_by_place_adds_up_what_belongs_together(node: GpuNode) -> None:
    node.nvml.gpus[0].ecc = {0: 3, 1: 1}
    node.nvml.gpus[0].fields |= {7: 1, 9: 2, 12: 1, 14: 4, 17: 1, 6: 9, 23: 7}
    node.seconds(10)
    row = node.row()
    assert row["ecc_uncorrected_total"] == 9
    assert row["ecc_memory_uncorrected_total"] == 7
    node.nvml.gpus[0].fields |= {7: 2, 9: 4, 14: 8, 17: 3}
    node.seconds(1)
    row = node.row()
    assert (row["ecc_cache_corrected_per_s"], row["ecc_registers_uncorrected_per_s"]) == (3, 6)


def test_ecc_by_place_is_told_by_calls_where_the_gpu_knows_no_fields_for_it() -> None:
    """As an H100 under driver 580.159."""
    node = GpuNode(gpus=1)
    gpu = node.nvml.gpus[0]
    gpu.unknown_fields, gpu.ecc_at = set(range(7, 29)), {(1, 1, 2): 4, (1, 1, 7): 2}
    node.seconds(11)
    gpu.ecc_at |= {(0, 0, 2): 30, (1, 0, 7): 10}
    node.seconds(10)
    row = node.row()
    assert (row["ecc_memory_corrected_per_s"], row["ecc_memory_uncorrected_per_s"], row["ecc_sram_uncorrected_per_s"]) == (3, 0, 1)
    assert (row["ecc_memory_uncorrected_total"], row["ecc_sram_uncorrected_total"]) == (4, 2)
    assert math.isnan(row["ecc_cache_uncorrected_total"])


def test_ecc_that_is_off_is_nan_without_an_event() -> None:
    node = GpuNode(gpus=1)
    node.nvml.gpus[0].unknown_fields = set(range(3, 29))
    assert node.seconds(3) == []
    row = node.row()
    assert all(math.isnan(value) for name, value in row.items() if name.startswith("ecc_"))
    assert node.nvml.calls["nvmlDeviceGetTotalEccErrors"] == 2, "once for each kind"


def test_a_driver_that_was_loaded_anew_gives_no_negative_rate_and_no_event(node: GpuNode) -> None:
    gpu = node.nvml.gpus[0]
    gpu.fields |= {83: 9_000_000, 142: 4, 145: 1}
    gpu.pcie_replays = 100
    node.seconds(10)
    node.nvml.reload_driver()
    with pytest.raises(node.nvml.NVMLError):
        node.seconds(1)
    assert node.seconds(1) == [], "rows that were remapped before are a state"
    row = node.row()
    assert math.isnan(row["pcie_replays_per_s"])
    assert math.isnan(row["power_mean_watts"])
    assert (row["remapped_rows"], row["remap_failed"]) == (4, 1)


def test_a_counter_that_goes_back_is_nan_until_the_next_look(node: GpuNode) -> None:
    node.nvml.gpus[0].fields[83] = 5
    node.seconds(10)
    assert math.isnan(node.row()["power_mean_watts"])
    node.nvml.gpus[0].fields[83] = 10_005
    node.seconds(10)
    assert node.row()["power_mean_watts"] == 1


def test_states_are_told_as_they_are_each_second_and_asked_for_every_ten(node: GpuNode) -> None:
    node.nvml.gpus[0].fields |= {142: 2, 143: 1, 144: 1, 29: 3, 30: 4}
    node.seconds(9)
    assert node.row()["remapped_rows"] == 0
    node.seconds(1)
    for _ in range(3):
        row = node.row()
        assert (row["remapped_rows"], row["remapped_rows_uncorrected"], row["remap_pending"], row["retired_pages"]) == (3, 1, 1, 7)
        node.seconds(1)
    assert [len(batch) for batch in node.nvml.asked[-2:]] == [77, 77], "without them"


def test_slow_values_are_repeated_in_between(node: GpuNode) -> None:
    node.nvml.gpus[0].pcie_width, node.nvml.gpus[0].processes = 8, 3
    node.seconds(5)
    assert (node.row()["pcie_generation"], node.row()["pcie_width"], node.row()["processes"]) == (5, 16, 1)
    node.seconds(5)
    assert (node.row()["pcie_width"], node.row()["processes"]) == (8, 3)


def test_what_a_gpu_does_not_know_is_left_out_of_later_batches_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    node = GpuNode(gpus=1)
    node.nvml.gpus[0].unknown_fields = {82, 142, 143, 169}
    with caplog.at_level(logging.INFO, "collectors.nvml.field_reader"):
        node.seconds(30)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "memory_temperature_celsius" in lines[0]
    assert "remapped_rows_uncorrected" in lines[0]
    assert "remap_pending" not in lines[0], "it knows that"
    assert {82, 142, 143, 169} & {number for batch in node.nvml.asked[2:] for number, _ in batch} == set()
    assert math.isnan(node.row()["memory_temperature_celsius"])
    assert math.isnan(node.row()["remapped_rows"])


def test_what_this_user_may_not_ask_for_is_left_out_too() -> None:
    node = GpuNode(gpus=1)
    whole = node.nvml.gpus[0].value_of
    node.nvml.gpus[0].value_of = lambda number, scope: (4, 0) if number == 173 else whole(number, scope)  # type: ignore[method-assign]
    assert node.seconds(11) == []
    assert math.isnan(node.row()["pcie_correctable_errors_per_s"])
    assert (173, 0) not in node.nvml.asked[-1]


def test_power_is_asked_by_function_where_there_is_no_field_for_it() -> None:
    node = GpuNode(gpus=1)
    node.nvml.gpus[0].unknown_fields = {185, 186}
    node.seconds(2)
    assert node.row()["power_watts"] == 300


def test_a_driver_that_refuses_the_batch_is_asked_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    node = GpuNode(gpus=1)
    node.nvml.refuses = {"nvmlDeviceGetFieldValues": "NVML_ERROR_FUNCTION_NOT_FOUND"}
    with caplog.at_level(logging.INFO, "collectors.nvml.field_reader"):
        node.seconds(1)
        node.nvml.gpus[0].pcie_replays = 50
        assert node.seconds(9) == []
        node.nvml.gpus[0].ecc = {0: 0, 1: 2}
        assert node.seconds(1) == []
    row = node.row()
    assert (row["power_watts"], row["pcie_replays_per_s"], row["ecc_uncorrected_per_s"], row["utilisation_percent"]) == (300, 5, 2, 97)
    assert math.isnan(row["power_mean_watts"])
    assert len(caplog.records) == 1
    assert node.row()["nvlinks_active"] == 18, "by a call for each"
    node.nvml.refuses = {}
    node.seconds(10)
    assert node.row()["memory_temperature_celsius"] == 61, "a refusal may pass"


def test_a_lost_gpu_shows_in_a_field_too(node: GpuNode) -> None:
    node.nvml.gpus[0].value_of = lambda number, scope: (15, 0)  # type: ignore[method-assign]
    assert [event.name for event in node.seconds(1)] == ["gpu.lost"]


def test_nvlink_errors_are_the_sum_of_all_links_and_name_the_worst() -> None:
    node = GpuNode(gpus=1)
    node.seconds(1)
    assert math.isnan(node.row()["nvlink_worst"])
    node.nvml.gpus[0].link_errors = {(161, 3): 4, (161, 7): 1, (163, 7): 9}
    node.seconds(1)
    row = node.row()
    assert (row["nvlink_replays_per_s"], row["nvlink_crc_errors_per_s"], row["nvlink_worst"]) == (5, 9, 7)
    node.seconds(1)
    assert math.isnan(node.row()["nvlink_worst"]), "none since"


def test_every_metric_is_in_the_documentation_once_with_what_uses_it() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "wire.md").read_text()
    table = text[text.index("### Metrics of GPUs") : text.index("### Event")]
    rows = [line.split("|")[1].split(",") for line in table.splitlines() if line.startswith("| ") and not line.startswith("| metric")]
    assert sorted(name.strip() for names in rows for name in names) == sorted(NAMES)


def test_states_and_rates_are_told_apart() -> None:
    """detectors.isolation_forest leaves the states out; `NAMES` has each metric once."""
    assert len(set(NAMES)) == len(NAMES)
    assert set(NAMES) >= STATES
    assert not {name for name in STATES if name.endswith("_per_s")}
    rates = {metric.name for metric in metrics_of((590, 44)) if metric.kind is FieldKind.COUNTER}
    assert {name for name in rates if not name.endswith(("_per_s", "_percent", "_watts"))} == set()


def test_no_field_is_in_two_metrics_but_where_one_is_a_part_of_the_other() -> None:
    fields = [field for metric in metrics_of((590, 44)) for field in metric.fields]
    assert {field for field in fields if fields.count(field) > 1} == {FieldId.REMAPPED_UNC}
