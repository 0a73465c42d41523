"""Exporters' pages over loopback: what becomes of their series, and what happens when an endpoint fails."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.agent.job_directory import LocalJob, LocalWorker
from collectors.scrape import RUN_S, ScrapeCollector
from collectors.site.exporter_table import ExporterMetric
from collectors.site.scraped_metrics import REPEATED_S
from eagle_eye import plugins
from eagle_eye.clock import FakeClock
from eagle_eye.errors import PluginError
from eagle_eye.types import Event, Kind, Reading
from fakes.exporter import FakeExporter, http_page

GPU = 'gpu="0",UUID="GPU-aa",pci_bus_id="00000000:17:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="n1"'
OTHER_GPU = GPU.replace("GPU-aa", "GPU-bb")
Serve = Callable[..., FakeExporter]


@pytest.fixture
def serve() -> Iterator[Serve]:
    made: list[FakeExporter] = []

    def serve(*lines: str) -> FakeExporter:
        made.append(FakeExporter())
        made[-1].shows(*lines)
        return made[-1]

    yield serve
    for each in made:
        each.close()


class Node:
    """A collector of some exporters, and a clock that goes on by `step_s` with each look."""

    def __init__(self, *exporters: FakeExporter, step_s: float = 15.0, **options: Any) -> None:
        self.clock, self.step_s = FakeClock(), step_s
        self.collector = ScrapeCollector(endpoints=tuple(each.url for each in exporters), node="n1", clock=self.clock, **options)
        self.readings: list[Reading] = []

    def look(self, times: int = 1) -> list[Event]:
        events: list[Event] = []
        for _ in range(times):
            found = self.collector.collect()
            self.readings = [each for each in found if isinstance(each, Reading)]
            events += [each for each in found if isinstance(each, Event)]
            self.clock.advance(self.step_s)
        return events

    def values(self, kind: Kind, entity: str) -> dict[str, float]:
        """Those of the newest look that are there."""
        found = {}
        for reading in self.readings:
            if reading.kind is kind and entity in reading.entities:
                row = reading.matrix[reading.entities.index(entity)].tolist()
                found |= {name: value for name, value in zip(reading.names, row, strict=True) if value == value}
        return found


def told(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.name, event.attributes.get("reason", event.attributes.get("reasons", ""))) for event in events]


# --- what becomes of the series


def test_gpus_of_dcgm_exporter_are_told_in_our_units(serve: Serve) -> None:
    node = Node(serve(
        "# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).",
        "# TYPE DCGM_FI_DEV_FB_USED gauge",
        f"DCGM_FI_DEV_FB_USED{{{GPU}}} 1024",
        f"DCGM_FI_DEV_FB_USED{{{OTHER_GPU}}} 2048",
        f"DCGM_FI_DEV_GPU_TEMP{{{GPU}}} 41",
        f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{GPU}}} 0.25",
        f"DCGM_FI_DEV_XID_ERRORS{{{GPU}}} 79",
    ))  # fmt: skip
    assert node.look() == []
    assert node.values(Kind.GPU, "GPU-aa") == {"memory_used_bytes": 2.0**30, "temperature_celsius": 41.0, "tensor_active_percent": 25.0}
    assert node.values(Kind.GPU, "GPU-bb") == {"memory_used_bytes": 2.0**31}
    assert [(each.source, each.kind) for each in node.readings] == [("scrape", Kind.GPU)]


def test_twin_a_part_of_a_gpu_is_not_the_gpu(serve: Serve) -> None:
    node = Node(serve(f'DCGM_FI_DEV_FB_USED{{{GPU},GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"}} 1024', f'DCGM_FI_DEV_GPU_TEMP{{{GPU},GPU_I_ID=""}} 41'))
    node.look()
    assert node.values(Kind.GPU, "GPU-aa") == {"temperature_celsius": 41.0}


def test_fault_dcgms_word_for_none_is_no_number(serve: Serve) -> None:
    node = Node(serve(f"DCGM_FI_DEV_POWER_USAGE{{{GPU}}} 140737488355328", f"DCGM_FI_DEV_GPU_TEMP{{{GPU}}} 2147483632", f"DCGM_FI_DEV_SM_CLOCK{{{GPU}}} 1980"))
    assert told(node.look(3)) == [("scrape.left_out", "2 larger than it can be")], "once"
    assert node.values(Kind.GPU, "GPU-aa") == {"sm_clock_mhz": 1980.0}


def energy(joules: float) -> str:
    return f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{GPU}}} {joules * 1000:.0f}"


def test_a_counter_is_told_as_its_change_a_second(serve: Serve) -> None:
    exporter = serve(energy(1e6))
    node = Node(exporter)
    node.look()
    assert node.readings == []
    exporter.shows(energy(1e6 + 700 * 15))
    node.look()
    assert node.values(Kind.GPU, "GPU-aa") == {"power_mean_watts": pytest.approx(700.0)}


def test_fault_an_exporter_that_was_started_anew_makes_no_rate(serve: Serve) -> None:
    exporter = serve(energy(1e6))
    node = Node(exporter)
    node.look()
    exporter.shows(energy(10.0))
    node.look()
    assert node.values(Kind.GPU, "GPU-aa") == {}


def test_a_page_that_an_exporter_repeats_makes_no_rate_of_0_and_no_double_one_after_it(serve: Serve) -> None:
    """dcgm-exporter looks at its GPUs every 30 s; here every third look of ours is a new one."""
    exporter = serve(energy(1e6))
    node = Node(exporter, step_s=10.0)
    node.look(3)
    watts = []
    for number in range(1, 4):
        exporter.shows(energy(1e6 + 700 * 30 * number))
        for _ in range(3):
            node.look()
            watts += node.values(Kind.GPU, "GPU-aa").values()
    assert watts == pytest.approx([700.0] * 3)


def test_twin_a_counter_that_does_not_move_for_a_minute_is_a_rate_of_0(serve: Serve) -> None:
    node = Node(serve('node_edac_correctable_errors_total{controller="0"} 5'))
    node.look(1 + int(REPEATED_S / 15.0))
    assert node.values(Kind.NODE, "n1") == {"memory_corrected_errors_per_s": 0.0}


def test_series_of_a_node_are_added_together_where_the_table_says_so(serve: Serve) -> None:
    errors = 'node_edac_correctable_errors_total{{controller="{}"}} {}'
    exporter = serve(errors.format(0, 5), errors.format(1, 7), "node_load1 2.5")
    node = Node(exporter)
    node.look()
    exporter.shows(errors.format(0, 20), errors.format(1, 37), "node_load1 2.5")
    node.look()
    assert node.values(Kind.NODE, "n1") == {"memory_corrected_errors_per_s": 3.0, "load_1": 2.5}


def test_links_and_mounts_have_the_names_that_our_own_collectors_give_them(serve: Serve) -> None:
    received = 'node_infiniband_port_data_received_bytes_total{{device="mlx5_0",port="1"}} {}'
    free = 'node_filesystem_avail_bytes{{device="x",fstype="{}",mountpoint="{}"}} 4096'
    exporter = serve(received.format(0), free.format("nfs4", "/mnt/data"), free.format("tmpfs", "/run"))
    node = Node(exporter)
    node.look()
    exporter.shows(received.format(1500), free.format("nfs4", "/mnt/data"), free.format("tmpfs", "/run"))
    node.look()
    assert node.values(Kind.LINK, "n1/mlx5_0:1") == {"received_bytes_per_s": 100.0}
    assert [each.entities for each in node.readings if each.kind is Kind.MOUNT] == [("n1/mnt/data",)]


def hang(rank: int, value: int) -> str:
    return f'XPU_TIMER_COMMON_HANG{{ip="10.0.0.1",job_name="gpt",local_rank="0",pod_name="p",rank="{rank}"}} {value}'


def register(run_dir: Path, run: str, ranks: tuple[int, ...]) -> None:
    workers = tuple(LocalWorker(worker=f"{run}/n1/{slot}", slot=slot, rank=rank, pid=1) for slot, rank in enumerate(ranks))
    (run_dir / "jobs").mkdir(exist_ok=True)
    (run_dir / "jobs" / f"{run}.json").write_bytes(msgspec.json.encode(LocalJob(job=f"team/gpt/{run}", run=run, node="n1", workers=workers)))


def test_workers_of_xpu_timer_are_known_by_their_rank(serve: Serve, tmp_path: Path) -> None:
    latency = 'XPU_TIMER_COLL_KERNEL_MAX_LATENCY{{level="{}",operation="AllReduce",rank="9"}} {}'
    register(tmp_path, "r1", (8, 9))
    node = Node(serve(hang(8, 1), hang(9, 0), latency.format(1, 87), latency.format(3, 374)), run_dir=tmp_path)
    assert node.look() == []
    assert node.values(Kind.WORKER, "r1/n1/0") == {"hang_reported": 1.0}
    assert node.values(Kind.WORKER, "r1/n1/1") == {"hang_reported": 0.0, "collective_kernel_max_s": pytest.approx(374e-6)}


def test_fault_with_two_jobs_on_a_node_a_rank_names_nobody(serve: Serve, tmp_path: Path) -> None:
    register(tmp_path, "r1", (0, 1))
    register(tmp_path, "r2", (2, 3))
    node = Node(serve(hang(0, 1)), run_dir=tmp_path)
    assert told(node.look()) == [("scrape.left_out", "1 of nothing known here")]
    assert node.readings == []


def test_a_site_maps_its_own_exporter(serve: Serve) -> None:
    own = ExporterMetric(series="site_inlet_degrees", name="inlet_temperature_celsius", factor=0.1, where={"zone": "front|back"}, combine="max")
    node = Node(serve('site_inlet_degrees{zone="front"} 241', 'site_inlet_degrees{zone="back"} 263', 'site_inlet_degrees{zone="outside"} 400'), metrics=(own,))
    node.look()
    assert node.values(Kind.NODE, "n1") == {"inlet_temperature_celsius": pytest.approx(26.3)}


def test_fault_several_series_of_one_entity_are_told_and_the_first_counts(serve: Serve) -> None:
    node = Node(serve('node_load1{a="1"} 1', 'node_load1{a="2"} 2'))
    assert told(node.look()) == [("scrape.left_out", "1 more than one for an entity")]
    assert node.values(Kind.NODE, "n1") == {"load_1": 1.0}


def test_columns_stay_while_their_endpoint_is_away(serve: Serve) -> None:
    """Their names are part of the schema: a new one each time would be sent again and again."""
    first, second = serve(f"DCGM_FI_DEV_GPU_TEMP{{{GPU}}} 41"), serve(f"DCGM_FI_DEV_SM_CLOCK{{{GPU}}} 1980")
    node = Node(first, second)
    node.look()
    assert node.readings[0].names == ("temperature_celsius", "sm_clock_mhz")
    second.answer = http_page("", "500 No")
    node.look()
    assert node.readings[0].names == ("temperature_celsius", "sm_clock_mhz")


def test_of_two_endpoints_that_tell_the_same_the_first_counts(serve: Serve) -> None:
    first, second = serve("node_load1 1"), serve("node_load1 2")
    node = Node(first, second)
    first.answer = http_page("", "500 No")
    node.look(2)
    assert node.values(Kind.NODE, "n1") == {"load_1": 2.0}
    assert node.collector.unavailable == f"127.0.0.1:{first.port}/metrics: it answers with HTTP status 500 (1 of 2 are read)"
    first.shows("node_load1 1")
    node.look(3)
    assert node.values(Kind.NODE, "n1") == {"load_1": 1.0}


# --- endpoints that fail


def test_fault_an_endpoint_that_fails_is_told_once_and_again_when_it_works(serve: Serve) -> None:
    exporter = serve("node_load1 1")
    node = Node(exporter)
    node.look()
    exporter.answer = http_page("", "500 No")
    assert [event.name for event in node.look(8)] == ["collector.failing"]
    assert node.collector.unavailable == f"127.0.0.1:{exporter.port}/metrics: it answers with HTTP status 500"
    exporter.shows("node_load1 1")
    [event] = node.look(20)
    assert (event.name, event.attributes["collector"]) == ("collector.recovered", f"scrape 127.0.0.1:{exporter.port}/metrics")
    assert node.collector.unavailable == ""


def test_twin_an_exporter_that_refuses_once_while_it_is_started_anew_is_not_told(serve: Serve) -> None:
    exporter = serve("node_load1 1")
    node = Node(exporter)
    exporter.answer = http_page("", "503 Soon")
    events = node.look()
    exporter.shows("node_load1 1")
    assert events + node.look(2) == []
    assert node.values(Kind.NODE, "n1") == {"load_1": 1.0}


def test_an_endpoint_that_fails_is_asked_less_and_less(serve: Serve) -> None:
    exporter = serve()
    exporter.answer = http_page("", "500 No")
    node = Node(exporter)
    node.look(241)  # an hour
    assert len(exporter.requests) < 20
    node.look(20)
    assert len(exporter.requests) >= 12, "every five minutes"


@pytest.mark.parametrize("lines", [(), ("<html><body>Exporter</body></html>",), ("other_metric 1",)], ids=["empty", "html", "others"])
def test_fault_a_page_without_a_series_of_the_table_is_a_failure(serve: Serve, lines: tuple[str, ...]) -> None:
    [event] = Node(serve(*lines)).look(3)
    assert "is a series of the table" in event.attributes["reason"]


def test_fault_torn_lines_cost_themselves_alone_and_are_told_once(serve: Serve) -> None:
    node = Node(serve('node_load1{a="', "node_load1 1", "node_load1 1"))
    assert told(node.look(4)) == [("scrape.left_out", "1 torn or malformed, 1 twice in the page")]
    assert node.values(Kind.NODE, "n1") == {"load_1": 1.0}


def test_twin_nan_is_how_exporters_write_that_there_is_nothing(serve: Serve) -> None:
    assert Node(serve("node_load1 NaN")).look(3) == []


def test_a_slow_endpoint_lets_the_others_wait_for_one_run_at_most(serve: Serve) -> None:
    slow, other = serve(), serve("node_load1 1")
    node = Node(slow, other)

    def late(connection: Any) -> None:
        node.clock.advance(RUN_S + 1.0)
        connection.sendall(http_page("", "500 No"))

    slow.answer = late
    node.look()
    assert (len(other.requests), node.readings) == (0, [])
    node.look()
    assert (len(other.requests), node.values(Kind.NODE, "n1")) == (1, {"load_1": 1.0})


def test_series_of_a_page_are_bounded(serve: Serve) -> None:
    node = Node(serve(*(f"DCGM_FI_DEV_GPU_TEMP{{UUID=\"GPU-{number}\"}} 1" for number in range(60))), series=50)
    assert told(node.look()) == [("scrape.left_out", "10 beyond the limit")]
    assert len(node.readings[0].entities) == 50


# --- configuration


def test_nothing_is_asked_unless_a_site_names_it() -> None:
    collector = ScrapeCollector()
    assert collector.collect() == []
    assert collector.unavailable.startswith("no endpoint is named; ")


def test_a_configuration_that_cannot_be_used_is_refused_at_the_start() -> None:
    own = {"endpoints": ["http://127.0.0.1:9400/metrics"], "metrics": [{"series": "a", "name": "a_s"}]}
    assert plugins.build(ScrapeCollector, own, {}).metrics == (ExporterMetric(series="a", name="a_s"),)
    for options, match in (({"endpoints": ["9400"]}, "http://HOST:PORT/metrics"), ({"metrics": [{"series": "a", "name": "b", "kind": "gpu"}]}, "entity is missing")):
        with pytest.raises(PluginError, match=match):
            plugins.build(ScrapeCollector, options, {})


def test_the_endpoint_that_hangs_is_named(serve: Serve) -> None:
    exporter, seen = serve(), list[str]()
    node = Node(exporter)
    exporter.answer = lambda _connection: seen.append(node.collector.doing)
    node.look()
    assert seen == [f"the page of 127.0.0.1:{exporter.port}/metrics"]
    assert node.collector.doing == ""
