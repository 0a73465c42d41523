"""The gpu collector over a stand-in for pynvml: what it reads, Xid events, lost GPUs, no library, calls that hang."""

import logging
import math
import sys
import threading

import pytest

from collectors.gpu import GpuCollector
from collectors.nvml.driver import NvmlUnavailable
from collectors.nvml.watched_gpu import NAMES
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event, Kind
from fakes.gpu_readings import Table, table_of
from fakes.nvml import FakeNvml


def collect(collector: GpuCollector) -> tuple[Table, list[Event]]:
    """{gpu: {name: value}} of the readings, and the events."""
    found = collector.collect()
    return table_of(found), [event for event in found if isinstance(event, Event)]


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml(gpus=2)


def test_every_number_in_its_unit(nvml: FakeNvml) -> None:
    table, events = collect(GpuCollector(nvml=nvml, clock=FakeClock()))
    assert list(table) == ["GPU-00000000", "GPU-00000001"]
    row = table["GPU-00000000"]
    assert row["utilisation_percent"] == 97
    assert row["memory_used_bytes"] == 60 << 30
    assert row["memory_percent"] == 75
    assert row["power_watts"] == 300
    assert row["temperature_celsius"] == 55
    assert row["sm_clock_mhz"] == 1980
    assert row["memory_clock_mhz"] == 2619
    assert math.isnan(row["ecc_corrected_per_s"]), "a counter has no rate at the first look"
    assert events == []


def test_counters_are_rates_and_never_negative(nvml: FakeNvml) -> None:
    clock = FakeClock()
    collector = GpuCollector(nvml=nvml, clock=clock)
    collect(collector)
    clock.advance(2.0)
    nvml.gpus[1].ecc = {0: 10, 1: 2}
    nvml.gpus[1].throttle_reasons = 0x48
    row = collect(collector)[0]["GPU-00000001"]
    assert (row["ecc_corrected_per_s"], row["ecc_uncorrected_per_s"]) == (5, 1)
    assert int(row["throttle_reasons"]) == 0x48
    clock.advance(1.0)
    nvml.gpus[1].ecc = {0: 0, 1: 3}
    row = collect(collector)[0]["GPU-00000001"]
    assert math.isnan(row["ecc_corrected_per_s"])
    assert row["ecc_uncorrected_per_s"] == 1


def test_a_missing_function_is_nan_and_told_once_and_not_called_again(nvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    nvml.missing = {"nvmlDeviceGetTemperature"}
    collector = GpuCollector(nvml=nvml, clock=FakeClock())
    with caplog.at_level(logging.INFO):
        collect(collector)
        table, events = collect(collector)
    assert [record.getMessage() for record in caplog.records if "temperature" in record.getMessage()] == [
        "GPU 0 (GPU-00000000) has no temperature_celsius: Not Supported",
        "GPU 1 (GPU-00000001) has no temperature_celsius: Not Supported",
    ]
    assert nvml.calls["nvmlDeviceGetTemperature"] == 2
    assert math.isnan(table["GPU-00000000"]["temperature_celsius"])
    assert table["GPU-00000000"]["power_watts"] == 300
    assert events == []


def test_an_older_package_knows_throttle_reasons_by_the_old_name(nvml: FakeNvml) -> None:
    nvml.gpus[0].throttle_reasons = 4
    nvml.nvmlDeviceGetCurrentClocksEventReasons = None  # type: ignore[assignment, method-assign]
    assert collect(GpuCollector(nvml=nvml, clock=FakeClock()))[0]["GPU-00000000"]["throttle_reasons"] == 4


def test_a_lost_gpu_is_told_once_and_the_others_go_on(nvml: FakeNvml) -> None:
    collector = GpuCollector(nvml=nvml, clock=FakeClock())
    collect(collector)
    nvml.gpus[0].lost = True
    nvml.xids.append((1, 63))
    table, events = collect(collector)
    assert [(event.name, event.entity.kind, event.entity.name) for event in events] == [
        ("gpu.lost", Kind.GPU, "GPU-00000000")
    ]
    assert events[0].attributes["reason"]
    assert all(math.isnan(value) for value in table["GPU-00000000"].values())
    assert table["GPU-00000001"]["power_watts"] == 300
    table, events = collect(collector)
    assert [event.attributes["code"] for event in events] == ["63"], "the Xid events of the other still come"
    assert all(math.isnan(value) for value in table["GPU-00000000"].values())


def test_a_gpu_that_is_lost_before_the_first_look(nvml: FakeNvml) -> None:
    nvml.gpus[1].lost = True
    collector = GpuCollector(nvml=nvml, clock=FakeClock())
    table, events = collect(collector)
    assert [(event.name, event.entity.name) for event in events] == [("gpu.lost", "gpu-1")]
    assert table["GPU-00000000"]["power_watts"] == 300
    assert collect(collector)[1] == []


def test_xid_events_name_gpu_and_code(nvml: FakeNvml) -> None:
    collector = GpuCollector(nvml=nvml, clock=FakeClock())
    collect(collector)
    nvml.xids.extend([(1, 79), (0, 48)])
    _, events = collect(collector)
    assert [(event.name, event.entity.name, event.attributes["code"]) for event in events] == [
        ("gpu.xid", "GPU-00000001", "79"),
        ("gpu.xid", "GPU-00000000", "48"),
    ]
    assert collect(collector)[1] == []


def test_a_storm_of_xid_events_does_not_hold_the_collector(nvml: FakeNvml) -> None:
    collector = GpuCollector(nvml=nvml, clock=FakeClock())
    nvml.xids.extend([(0, 31)] * 1000)
    assert len(collect(collector)[1]) == 64


def test_gpus_without_xid_events_give_numbers(nvml: FakeNvml) -> None:
    nvml.missing = {"nvmlDeviceRegisterEvents"}
    assert collect(GpuCollector(nvml=nvml, clock=FakeClock()))[0]["GPU-00000000"]["power_watts"] == 300


@pytest.mark.parametrize(
    ("absent", "remedy"),
    [
        ("NVML_ERROR_LIBRARY_NOT_FOUND", "install NVIDIA's driver"),
        ("NVML_ERROR_DRIVER_NOT_LOADED", "modprobe nvidia"),
        ("NVML_ERROR_NO_PERMISSION", "/dev/nvidiactl"),
        ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "restart the node"),
        ("NVML_ERROR_FUNCTION_NOT_FOUND", "too old"),
    ],
)
def test_what_is_missing_is_said_once_with_the_remedy_and_looked_for_each_minute(
    nvml: FakeNvml, absent: str, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    nvml.absent = absent
    clock = FakeClock()
    collector = GpuCollector(nvml=nvml, clock=clock)
    with caplog.at_level(logging.INFO):
        for _ in range(119):
            assert collector.collect() == []
            clock.advance(1.0)
    assert nvml.calls["nvmlInit"] == 2
    assert len(caplog.records) == 1
    assert remedy in collector.unavailable
    nvml.absent = ""
    clock.advance(1.0)
    assert len(collect(collector)[0]) == 2
    assert collector.unavailable == ""


def test_a_package_that_is_not_installed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    collector = GpuCollector(clock=FakeClock())
    assert collector.collect() == []
    assert collector.unavailable == "the module pynvml is missing (pip install 'eagle-eye[gpu]')"


def test_a_node_without_gpus_says_so() -> None:
    collector = GpuCollector(nvml=FakeNvml(gpus=0), clock=FakeClock())
    assert collector.collect() == []
    assert collector.unavailable == "this node has no GPU"


def test_a_driver_that_goes_away_raises_until_it_is_back(nvml: FakeNvml) -> None:
    clock = FakeClock()
    collector = GpuCollector(nvml=nvml, clock=clock)
    collect(collector)
    nvml.absent = "NVML_ERROR_DRIVER_NOT_LOADED"
    nvml.reload_driver()
    with pytest.raises(nvml.NVMLError):
        collector.collect()
    for _ in range(3):
        clock.advance(1.0)
        with pytest.raises(NvmlUnavailable, match="modprobe"):
            collector.collect()
    nvml.absent = ""
    clock.advance(1.0)
    assert set(collect(collector)[0]["GPU-00000000"]) == set(NAMES)


def test_any_other_error_at_the_start_is_told_until_it_is_over(nvml: FakeNvml) -> None:
    nvml.refuses = {"nvmlDeviceGetCount": "NVML_ERROR_UNKNOWN"}
    collector = GpuCollector(nvml=nvml, clock=FakeClock())
    for _ in range(2):
        with pytest.raises(nvml.NVMLError):
            collector.collect()
    nvml.refuses = {}
    assert len(collect(collector)[0]) == 2


def test_one_look_at_eight_gpus_makes_few_calls() -> None:
    """Seven of each GPU, and one for Xid events; more only when it looks at what changes slowly."""
    nvml, clock = FakeNvml(gpus=8), FakeClock()
    collector = GpuCollector(nvml=nvml, clock=clock)
    collector.collect()
    counts: list[int] = []
    for _ in range(20):
        clock.advance(1.0)
        before = nvml.calls.total()
        collector.collect()
        counts.append(nvml.calls.total() - before)
    assert nvml.calls["nvmlDeviceGetFieldValues"] == 8 * 22, "one a second, and one that finds the NVLinks"
    assert sorted(counts) == [57] * 18 + [121] * 2


def test_the_call_that_hangs_is_named(nvml: FakeNvml) -> None:
    collector = GpuCollector(nvml=nvml, clock=FakeClock())
    collect(collector)
    assert collector.doing == ""
    nvml.hang("nvmlDeviceGetTemperature")
    thread = threading.Thread(target=collector.collect, daemon=True)
    thread.start()
    assert nvml.wait_until_hanging(60.0)
    assert collector.doing == "nvmlDeviceGetTemperature of GPU 0 (GPU-00000000)"
    nvml.release()
    thread.join(60.0)
    assert collector.doing == ""
