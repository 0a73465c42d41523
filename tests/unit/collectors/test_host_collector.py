"""The host collector over a stand-in for psutil: rates, first looks, resets and missing parts."""

import math
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.host import HostCollector
from eagle_eye.clock import FakeClock

Times = namedtuple("Times", "user nice system idle iowait irq softirq steal guest")


class Machine:
    """What psutil tells, as plain attributes."""

    def __init__(self) -> None:
        self.times = Times(100.0, 0.0, 50.0, 1000.0, 10.0, 0.0, 0.0, 0.0, 40.0)
        self.disks: dict[str, SimpleNamespace] | None = {"nvme0n1": disk(1000, 2000), "nvme0n1p1": disk(900, 1900)}
        self.cards = {"lo": card(received=10**9), "eth0": card(received=500, sent=700), "ib0": card(received=500)}
        self.switches = 1000

    def cpu_times(self) -> Times:
        return self.times

    def cpu_count(self) -> int:
        return 4

    def cpu_stats(self) -> SimpleNamespace:
        return SimpleNamespace(ctx_switches=self.switches)

    def virtual_memory(self) -> SimpleNamespace:
        return SimpleNamespace(available=3e9, percent=70.0)

    def swap_memory(self) -> SimpleNamespace:
        return SimpleNamespace(percent=5.0)

    def getloadavg(self) -> tuple[float, float, float]:
        return 1.5, 1.0, 0.5

    def disk_io_counters(self, perdisk: bool = False, nowrap: bool = True) -> dict[str, SimpleNamespace] | None:
        assert perdisk
        return self.disks

    def net_io_counters(self, pernic: bool = False, nowrap: bool = True) -> dict[str, SimpleNamespace]:
        return self.cards


def card(received: int = 0, sent: int = 0) -> SimpleNamespace:
    return SimpleNamespace(bytes_recv=received, bytes_sent=sent, errin=0, errout=0, dropin=0, dropout=0)


def disk(read: int = 0, written: int = 0) -> SimpleNamespace:
    return SimpleNamespace(read_bytes=read, write_bytes=written)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two disks, and no card: a container's."""
    for name in ("nvme0n1", "nvme1n1"):
        (tmp_path / "sys/block" / name).mkdir(parents=True)
    return tmp_path / "sys"


@pytest.fixture
def pressure(tmp_path: Path) -> Path:
    for name in ("cpu", "memory", "io"):
        (tmp_path / name).write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull total=7\n")
    return tmp_path


def look(collector: HostCollector) -> dict[str, float]:
    (reading,) = collector.collect()
    assert reading.matrix.shape == (1, len(reading.names))
    return dict(zip(reading.names, reading.matrix[0].tolist(), strict=True))


def test_first_look_has_gauges_and_no_rates(pressure: Path, sysfs: Path) -> None:
    values = look(HostCollector(node="n1", system=Machine(), clock=FakeClock(), pressure=pressure, sysfs=sysfs))
    assert values["load_1"] == 1.5
    assert values["processors"] == 4.0
    assert values["memory_available_bytes"] == pytest.approx(3e9)
    rates = [name for name in values if name.endswith("_per_s") or name.startswith("cpu_") or "pressure" in name]
    assert len(rates) == 14
    assert all(math.isnan(values[name]) for name in rates)


def test_counters_become_rates_over_the_time_that_passed(pressure: Path, sysfs: Path) -> None:
    machine, clock = Machine(), FakeClock()
    collector = HostCollector(node="n1", system=machine, clock=clock, pressure=pressure, sysfs=sysfs)
    look(collector)
    clock.advance(2.0)
    machine.times = Times(102.0, 0.0, 51.0, 1000.5, 10.25, 0.0, 0.0, 0.25, 41.0)
    machine.disks = {"nvme0n1": disk(5000, 2000), "nvme0n1p1": disk(4900, 1900)}
    machine.cards |= {"lo": card(received=2 * 10**9), "eth0": card(received=1500, sent=1700)}
    machine.switches = 1600
    (pressure / "cpu").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n")
    values = look(collector)
    assert values["cpu_percent"] == pytest.approx(100 * 3.25 / 4)
    assert values["cpu_iowait_percent"] == pytest.approx(100 * 0.25 / 4)
    assert values["cpu_steal_percent"] == pytest.approx(100 * 0.25 / 4)
    assert values["disk_read_bytes_per_s"] == 2000, "what went to a partition is in its disk"
    assert values["disk_write_bytes_per_s"] == 0
    assert values["net_received_bytes_per_s"] == 500, "the loopback interface does not count"
    assert values["net_sent_bytes_per_s"] == 500
    assert values["context_switches_per_s"] == 300
    assert values["cpu_pressure_percent"] == pytest.approx(25.0)


def test_a_counter_that_goes_back_is_no_reading_and_the_next_one_is(pressure: Path, sysfs: Path) -> None:
    machine, clock = Machine(), FakeClock()
    collector = HostCollector(system=machine, clock=clock, pressure=pressure, sysfs=sysfs)
    look(collector)
    clock.advance(1.0)
    machine.cards = {"eth0": card(received=100, sent=700)}
    machine.switches = 10
    values = look(collector)
    assert math.isnan(values["net_received_bytes_per_s"])
    assert math.isnan(values["context_switches_per_s"])
    clock.advance(1.0)
    machine.switches = 15
    values = look(collector)
    assert values["net_received_bytes_per_s"] == 0
    assert values["context_switches_per_s"] == 5


def test_a_machine_without_disks_or_pressure_files_gives_the_rest(tmp_path: Path, sysfs: Path) -> None:
    machine, clock = Machine(), FakeClock()
    machine.disks = None
    collector = HostCollector(system=machine, clock=clock, pressure=tmp_path / "none", sysfs=sysfs)
    look(collector)
    clock.advance(1.0)
    values = look(collector)
    assert math.isnan(values["disk_read_bytes_per_s"])
    assert math.isnan(values["io_pressure_percent"])
    assert values["net_sent_bytes_per_s"] == 0


# --- disks and interfaces that come, go, begin anew, or are others of the same name


class Changing:
    """A machine that is looked at each second."""

    def __init__(self, sysfs: Path) -> None:
        self.machine, self.clock, self.numbers = Machine(), FakeClock(), {"lo": 1, "eth0": 2, "ib0": 3}
        self.collector = HostCollector(
            system=self.machine, clock=self.clock, sysfs=sysfs, pressure=sysfs, interface_numbers=lambda: [(number, name) for name, number in self.numbers.items()]
        )
        look(self.collector)

    def next(self) -> dict[str, float]:
        self.clock.advance(1.0)
        return look(self.collector)


@pytest.fixture
def changing(sysfs: Path) -> Changing:
    return Changing(sysfs)


def test_an_interface_that_appears_with_old_counters_invents_no_rate(changing: Changing) -> None:
    changing.machine.cards |= {"eth0": card(received=600, sent=700), "ib1": SimpleNamespace(**{**vars(card(5 * 10**14, 10**14)), "errin": 7000, "dropout": 9000})}
    changing.numbers["ib1"] = 4
    values = changing.next()
    assert [values[f"net_{name}_per_s"] for name in ("received_bytes", "sent_bytes", "errors", "drops")] == [100, 0, 0, 0]
    changing.machine.cards["ib1"].bytes_recv += 40
    assert changing.next()["net_received_bytes_per_s"] == 40, "from then on it counts"


def test_an_interface_that_goes_or_begins_anew_leaves_the_rates_of_the_others(changing: Changing) -> None:
    changing.machine.cards = {"eth0": card(received=510, sent=700)}
    assert changing.next()["net_received_bytes_per_s"] == 10
    changing.machine.cards |= {"ib0": card(received=2**32 - 1)}
    changing.next()
    changing.machine.cards |= {"eth0": card(received=515, sent=700), "ib0": card(received=3)}
    assert changing.next()["net_received_bytes_per_s"] == 5, "a counter of four bytes that wrapped, or was reset"


def test_another_interface_of_the_same_name_invents_no_rate(changing: Changing) -> None:
    changing.machine.cards["ib0"], changing.numbers["ib0"] = card(received=10**14), 9
    assert changing.next()["net_received_bytes_per_s"] == 0


def test_where_there_are_cards_what_passes_through_them_counts_once(changing: Changing, sysfs: Path) -> None:
    """A node of Kubernetes has an interface for each pod, and bridges and bonds beside its cards."""
    (sysfs / "class/net/eth0/device").mkdir(parents=True)
    changing.machine.cards |= {"bond0": card(), "veth7": card()}
    changing.next()
    for name in ("eth0", "bond0", "veth7"):
        changing.machine.cards[name].bytes_recv += 50
    assert changing.next()["net_received_bytes_per_s"] == 50


def test_a_disk_that_appears_or_is_swapped_invents_no_rate(changing: Changing) -> None:
    changing.machine.disks = {"nvme0n1": disk(1500, 2000), "nvme1n1": disk(10**15, 10**15)}
    assert changing.next()["disk_read_bytes_per_s"] == 500
    changing.machine.disks = {"nvme0n1": disk(1600, 2000), "nvme1n1": disk(4096, 0)}
    assert changing.next()["disk_read_bytes_per_s"] == 100
    changing.machine.disks = {"nvme1n1": disk(4196, 0)}
    assert changing.next()["disk_read_bytes_per_s"] == 100


def test_a_numa_node_that_appears_invents_no_misses(tmp_path: Path) -> None:
    """As the memory of a GPU that its driver gives to the kernel."""
    clock, kernel = FakeClock(), Kernel(tmp_path)
    collector = kernel.collector(clock)
    look(collector)
    kernel.misses(15, 7, 90_000)
    assert looks(collector, clock)["numa_misses_per_s"] == 1.0


def test_two_looks_at_the_same_moment_divide_by_nothing(pressure: Path, sysfs: Path) -> None:
    collector = HostCollector(system=Machine(), clock=FakeClock(), pressure=pressure, sysfs=sysfs)
    look(collector)
    assert math.isnan(look(collector)["net_sent_bytes_per_s"])


# --- what the kernel tells beside psutil


class Kernel:
    """A small /proc and /sys."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sysfs = root / "proc", root / "sys"
        self.files("1000", "0", "4000")
        self.misses(5, 7)

    def files(self, *fields: str) -> None:
        self._put(self.proc / "sys/fs/file-nr", "\t".join(fields))

    def misses(self, *counts: int) -> None:
        for node, count in enumerate(counts):
            self._put(self.sysfs / f"devices/system/node/node{node}/numastat", f"numa_hit 900\nnuma_miss {count}\nnuma_foreign 3")

    def process(self, pid: int, state: str, start_time: int = 5) -> None:
        fields = [state, "1", *["0"] * 17, str(start_time), *["0"] * 30]
        self._put(self.proc / str(pid) / "stat", f"{pid} (a) b (c) {' '.join(fields)}")

    @staticmethod
    def _put(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def collector(self, clock: FakeClock) -> HostCollector:
        return HostCollector(system=Machine(), clock=clock, proc=self.proc, sysfs=self.sysfs, chronyc=str(self.proc / "none"))


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def looks(collector: HostCollector, clock: FakeClock, seconds: float = 10.0) -> dict[str, float]:
    clock.advance(seconds)
    return look(collector)


def test_open_files_are_a_share_of_what_the_kernel_allows(kernel: Kernel) -> None:
    assert look(kernel.collector(FakeClock()))["file_descriptors_percent"] == 25.0


def test_numa_misses_of_all_nodes_are_a_rate(kernel: Kernel) -> None:
    clock = FakeClock()
    collector = kernel.collector(clock)
    assert math.isnan(look(collector)["numa_misses_per_s"])
    kernel.misses(15, 27)
    assert looks(collector, clock)["numa_misses_per_s"] == 3.0
    kernel.misses(1, 1)
    assert math.isnan(looks(collector, clock)["numa_misses_per_s"])


def test_fault_processes_that_stay_blocked_are_counted(kernel: Kernel) -> None:
    clock = FakeClock()
    kernel.process(10, "D")
    kernel.process(11, "D")
    kernel.process(12, "S")
    collector = kernel.collector(clock)
    assert math.isnan(look(collector)["processes_blocked"])
    assert looks(collector, clock)["processes_blocked"] == 2.0
    assert looks(collector, clock, 1.0)["processes_blocked"] == 2.0, "it is not looked at each second"


def test_twin_processes_that_wait_for_a_moment_and_another_of_the_same_number_are_not_blocked(kernel: Kernel) -> None:
    clock = FakeClock()
    kernel.process(10, "D")
    kernel.process(11, "D", start_time=5)
    collector = kernel.collector(clock)
    look(collector)
    kernel.process(10, "S")
    kernel.process(11, "D", start_time=6)
    kernel.process(12, "D")
    assert looks(collector, clock)["processes_blocked"] == 0.0


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=60))
def test_whatever_the_kernels_files_hold_nothing_fails(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    clock, kernel = FakeClock(), Kernel(tmp_path_factory.mktemp("kernel"))
    kernel.process(10, "D")
    for path in ("proc/sys/fs/file-nr", "sys/devices/system/node/node0/numastat", "proc/10/stat"):
        (kernel.proc.parent / path).write_bytes(content)
    collector = kernel.collector(clock)
    look(collector)
    values = looks(collector, clock)
    for name in ("file_descriptors_percent", "numa_misses_per_s", "processes_blocked"):
        assert math.isnan(values[name]) or 0.0 <= values[name] < math.inf
