"""The table of exporters' metrics: the rows of this release, and a site's own before them."""

import msgspec
import pytest

from collectors.nvml.watched_gpu import NAMES, STATES
from collectors.site.exporter_table import ExporterMetric, ExporterTable, shipped_metrics
from eagle_eye.types import Kind

OF_DCGM_ALONE = {"sm_active_percent", "tensor_active_percent", "memory_active_percent"}


def names_of(table: ExporterTable, series: str) -> list[str]:
    return [row.metric.name for row in table.rows_of(series)]


def test_what_is_shipped_for_gpus_has_the_names_that_nvml_gives() -> None:
    """So that detectors and pages read it, and NVML's own reading can win."""
    of_gpus = [metric for metric in shipped_metrics() if metric.kind == "gpu"]
    assert {metric.name for metric in of_gpus} - OF_DCGM_ALONE <= set(NAMES)
    assert all(metric.type == "gauge" for metric in of_gpus if metric.name in STATES), "a state is told as it is"
    assert all(metric.largest < 2147483632 or metric.largest <= 9e18 for metric in of_gpus), "DCGM's word for none is no number"


def test_each_shipped_counter_becomes_a_rate() -> None:
    rates = {metric.name for metric in shipped_metrics() if metric.name.endswith("_per_s")} - {"matmul_flops_per_s"} | {"power_mean_watts"}
    assert {metric.name for metric in shipped_metrics() if metric.type == "counter"} == rates


def test_a_row_of_the_site_stands_for_all_of_ours_about_that_series() -> None:
    own = ExporterMetric(series="node_load1", name="load_now")
    assert names_of(ExporterTable(), "node_load1") == ["load_1"]
    assert names_of(ExporterTable([own]), "node_load1") == ["load_now"]
    assert names_of(ExporterTable([own]), "node_context_switches_total") == ["context_switches_per_s"]
    assert "load_1" not in ExporterTable([own]).names[Kind.NODE]


def test_a_row_without_a_name_leaves_a_series_out() -> None:
    table = ExporterTable([ExporterMetric(series="node_load1", name="")])
    assert b"node_load1" not in table.series


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"series": "a", "name": "b", "kind": "gpu"}, "a: entity is missing"),
        ({"series": "a", "name": "b", "where": {"c": "("}}, "a: where:"),
        ({"series": "a{b}", "name": "b"}, "series"),
        ({"series": "a", "name": "Temp C"}, "name"),
        ({"series": "a", "name": "b", "factor": 0}, "factor"),
        ({"series": "a", "name": "b", "kind": "rack"}, "kind"),
        ({"series": "a", "name": "b", "unit": "s"}, "unit"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(row: dict[str, object], told: str) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError), match=told):
        ExporterTable([msgspec.convert(row, ExporterMetric)])
