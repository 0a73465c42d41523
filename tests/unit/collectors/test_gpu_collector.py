"""The gpu collector over a stand-in for pynvml: missing fields, lost GPUs, Xid events, no library."""

import logging
import math

import pytest

from collectors.gpu import NAMES, GpuCollector
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event, Kind, Reading
from fakes.nvml import CONSTANTS, FakeNvml


def collect(collector: GpuCollector) -> tuple[dict[str, dict[str, float]], list[Event]]:
    """{gpu: {name: value}} of the readings, and the events."""
    found = collector.collect()
    table = {
        entity: dict(zip(reading.names, row.tolist(), strict=True))
        for reading in found
        if isinstance(reading, Reading)
        for entity, row in zip(reading.entities, reading.matrix, strict=True)
    }
    return table, [event for event in found if isinstance(event, Event)]


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml(gpus=2)


def test_the_fake_speaks_the_words_of_the_real_module() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert {name: getattr(pynvml, name) for name in CONSTANTS} == CONSTANTS
    functions = {name for name in vars(FakeNvml) if name.startswith("nvml")}
    assert {name for name in functions if not callable(getattr(pynvml, name, None))} == set()
    with pytest.raises(pynvml.NVMLError):
        FakeNvml().nvmlDeviceGetCount()


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


def test_a_missing_field_is_nan_and_told_once(nvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    nvml.missing = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEccErrors"}
    collector = GpuCollector(nvml=nvml, clock=FakeClock())
    with caplog.at_level(logging.INFO):
        collect(collector)
        told = len(caplog.records)
        table, events = collect(collector)
    assert told == 6, "two GPUs without power and two kinds of ECC errors"
    assert len(caplog.records) == told
    assert math.isnan(table["GPU-00000000"]["power_watts"])
    assert table["GPU-00000000"]["temperature_celsius"] == 55
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


@pytest.mark.parametrize("absent", ["NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED"])
def test_no_library_or_driver_is_said_once_and_looked_for_each_minute(
    nvml: FakeNvml, absent: str, caplog: pytest.LogCaptureFixture
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
    assert collector.unavailable
    nvml.absent = ""
    clock.advance(1.0)
    assert len(collect(collector)[0]) == 2
    assert collector.unavailable == ""


def test_a_node_without_gpus_says_so() -> None:
    collector = GpuCollector(nvml=FakeNvml(gpus=0), clock=FakeClock())
    assert collector.collect() == []
    assert collector.unavailable == "this node has no GPU"


def test_a_driver_that_goes_away_raises_and_is_looked_for_again(nvml: FakeNvml) -> None:
    clock = FakeClock()
    collector = GpuCollector(nvml=nvml, clock=clock)
    collect(collector)
    nvml.nvmlShutdown()
    with pytest.raises(nvml.NVMLError):
        collector.collect()
    clock.advance(60.0)
    assert set(collect(collector)[0]["GPU-00000000"]) == set(NAMES)
