"""This node's processors, memory, disks and network, read through psutil; its file descriptors, NUMA misses, blocked processes and clock.

Counters are returned as rates over the time since the last look: NaN the first time, and NaN when a counter went
backwards. Of disks, interfaces and NUMA nodes each has its own rate, and what is told is their sum: one that comes, goes,
begins anew or takes another's name leaves its own rate out, and invents none.
"""

import logging
import math
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.ranges import Seconds
from eagle_eye.types import Kind, Reading

from .node.clock_offset import ClockWatch
from .node.counter_rates import CounterRates, total
from .node.kernel_files import KernelFiles, count_of, names_in

log = logging.getLogger(__name__)

SHARES = ("cpu_percent", "cpu_iowait_percent", "cpu_steal_percent")
"""Of all processors together: 100 = every one of them, all the time."""
GAUGES = ("processors", "load_1", "memory_available_bytes", "memory_percent", "swap_percent")
KERNEL_GAUGES = ("file_descriptors_percent", "processes_blocked", "clock_offset_s", "clock_synchronised")
"""Open files of the whole machine, as a share of fs.file-max; processes in state D at two looks in a row; how far the clock is ahead."""
RATES = (
    "disk_read_bytes_per_s",
    "disk_write_bytes_per_s",
    "net_received_bytes_per_s",
    "net_sent_bytes_per_s",
    "net_errors_per_s",
    "net_drops_per_s",
    "context_switches_per_s",
    "numa_misses_per_s",
)
"""The network: what went through its cards. What bridges, bonds and the interfaces of containers pass on is in it once, and the loopback is not.
A NUMA miss: a page that had to be taken from another node than was wanted."""
PRESSURES = ("cpu_pressure_percent", "memory_pressure_percent", "io_pressure_percent")
"""Share of the time in which some task waited for it (/proc/pressure, Linux 4.20 and later)."""
NAMES = SHARES + GAUGES + RATES + PRESSURES + KERNEL_GAUGES

BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
"""Guest time is contained in user time (man 5 proc_stat), so it is left out."""
LOOPBACK = "lo"
PROCESSES_MOST = 20_000
"""That are looked at for those that are blocked."""

HostCounter = tuple[str, str]
"""What it becomes, or the name of the kind of processor time; and of which disk, interface or NUMA node: '' for the whole machine."""
Values = dict[str, float]


@dataclass
class HostCollector:
    """Node metrics, one row."""

    node: str = ""
    """Name of this node; set by the agent."""
    pressure: Path = Path("/proc/pressure")
    """Directory of the kernel's pressure stall information."""
    proc: Path = Path("/proc")
    """Where the kernel's procfs is mounted."""
    sysfs: Path = Path("/sys")
    """Where the kernel's sysfs is mounted."""
    chronyc: str = "chronyc"
    """The command that asks chronyd for the offset of the clock, once a minute; without it the offset comes from the kernel."""
    run_dir: Path | None = None
    """Run directory, where `pmc` may make a socket; set by the agent."""
    blocked_s: Seconds = 10.0
    """Seconds between two looks at which processes are blocked."""
    system: Any = None
    """The module `psutil`, or a stand-in for it; None imports it when it is first needed."""
    interface_numbers: Callable[[], Iterable[tuple[int, str]]] = socket.if_nameindex
    """The kernel's number and the name of each interface."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 1.0
    timeout_s: ClassVar[float] = 3.0
    later: ClassVar[frozenset[str]] = frozenset({"processes_blocked"})
    """Metrics that have no value before `blocked_s` is over."""
    remedies: ClassVar[Mapping[str, str]] = {
        "clock_offset_s": "let chronyd set the clock and tell how far it is off: apt install chrony",
        **dict.fromkeys(PRESSURES, "boot the kernel with psi=1"),
    }
    """What gives a metric a value where it has none."""

    def __post_init__(self) -> None:
        self._rates: CounterRates[HostCounter] = CounterRates()
        self._is_card: dict[tuple[str, int], bool] = {}
        """Of each interface, by its name and the kernel's number of it, which no second one gets: another may get the name."""
        self._logged: set[str] = set()
        self._files = KernelFiles()
        self._clock_watch = ClockWatch(self.chronyc, socket_folder=self.run_dir, clock=self.clock)
        self._blocked_processes = BlockedProcesses(self.proc)
        self._blocked, self._blocked_at = math.nan, -math.inf

    def collect(self) -> list[Reading]:
        if self.system is None:
            import psutil

            self.system = psutil
        values = self._gauges() | self._kernel_gauges() | self._rises(self._counters())
        row = np.array([[values.get(name, math.nan) for name in NAMES]], np.float32)
        now = self.clock.now()
        return [Reading(source="host", kind=Kind.NODE, entities=(self.node,), names=NAMES, matrix=row, time=now)]

    def _gauges(self) -> Values:
        memory = self.system.virtual_memory()
        swap = self._ask("swap", self.system.swap_memory)
        return {
            "processors": self.system.cpu_count() or math.nan,
            "load_1": self.system.getloadavg()[0],
            "memory_available_bytes": memory.available,
            "memory_percent": memory.percent,
            "swap_percent": swap.percent if swap else math.nan,
        }

    def _kernel_gauges(self) -> Values:
        now = self.clock.monotonic()
        if now - self._blocked_at >= self.blocked_s:
            self._blocked, self._blocked_at = self._blocked_processes.look(), now
        offset = self._clock_watch.look()
        return {
            "file_descriptors_percent": self._file_descriptors(),
            "processes_blocked": self._blocked,
            "clock_offset_s": offset.offset_s,
            "clock_synchronised": offset.synchronised,
        }

    def _file_descriptors(self) -> float:
        """`ALLOCATED 0 MOST` of fs.file-nr (man 5 proc_sys_fs)."""
        fields = [count_of(field) for field in (self._files.text(self.proc / "sys/fs/file-nr") or "").split()]
        if len(fields) != 3 or fields[0] is None or not fields[2]:
            return math.nan
        return 100.0 * fields[0] / fields[2]

    def _counters(self) -> dict[HostCounter, float]:
        """Everything that only rises."""
        counters: dict[HostCounter, float] = {(name, ""): seconds for name, seconds in self.system.cpu_times()._asdict().items()}
        counters["context_switches_per_s", ""] = self.system.cpu_stats().ctx_switches
        counters |= self._of_disks() | self._of_interfaces() | self._numa_misses()
        for name in PRESSURES:
            waited = self._ask(name, partial(_waited, self.pressure / name.partition("_")[0]))
            if waited is not None:
                counters[name, ""] = waited
        return counters

    def _of_disks(self) -> dict[HostCounter, float]:
        """Of each whole disk: what the kernel counts of a partition is in its disk."""
        disks = self._ask("disks", lambda: self.system.disk_io_counters(perdisk=True, nowrap=False)) or {}
        whole = disks.keys() & {name.replace("!", "/") for name in names_in(self.sysfs / "block")}
        return {
            (name, disk): count
            for disk in whole
            for name, count in (("disk_read_bytes_per_s", disks[disk].read_bytes), ("disk_write_bytes_per_s", disks[disk].write_bytes))
        }

    def _of_interfaces(self) -> dict[HostCounter, float]:
        """Of each card; of each interface but the loopback where there is no card, as in a container."""
        interfaces = self._ask("network", lambda: self.system.net_io_counters(pernic=True, nowrap=False)) or {}
        numbers = {name: number for number, name in self._ask("numbers of interfaces", self.interface_numbers) or ()}
        named = {(name, numbers.get(name, 0)): counts for name, counts in interfaces.items() if name != LOOPBACK}
        self._is_card = {key: self._is_card.get(key, False) or (self.sysfs / "class/net" / key[0] / "device").exists() for key in named}
        cards = {key: counts for key, counts in named.items() if self._is_card[key]} or named
        return {
            (name, f"{interface} {number}"): count
            for (interface, number), counts in cards.items()
            for name, count in (
                ("net_received_bytes_per_s", counts.bytes_recv),
                ("net_sent_bytes_per_s", counts.bytes_sent),
                ("net_errors_per_s", counts.errin + counts.errout),
                ("net_drops_per_s", counts.dropin + counts.dropout),
            )
        }

    def _numa_misses(self) -> dict[HostCounter, float]:
        """Of each NUMA node, the line `numa_miss COUNT`."""
        folder = self.sysfs / "devices/system/node"
        texts = {name: self._files.text(folder / name / "numastat") or "" for name in names_in(folder) if re.fullmatch(r"node[0-9]+", name)}
        lines = {name: line for name, text in texts.items() for line in text.splitlines() if line.startswith("numa_miss ")}
        counts = {name: count_of(line.removeprefix("numa_miss ")) for name, line in lines.items()}
        return {("numa_misses_per_s", name): float(count) for name, count in counts.items() if count is not None}

    def _rises(self, counters: dict[HostCounter, float]) -> Values:
        """The rates of RATES and PRESSURES, and the shares of processor time."""
        rates = self._rates.update(counters, self.clock.monotonic())
        parts: dict[str, list[HostCounter]] = {}
        for counter in counters:
            parts.setdefault(counter[0], []).append(counter)
        rises = {name: total(rates, counters_of) for name, counters_of in parts.items()}
        pressures = {name: rises.get(name, math.nan) * 100 for name in PRESSURES}
        return {name: rises.get(name, math.nan) for name in RATES} | pressures | _shares(rises)

    def _ask(self, what: str, read: Callable[[], Any]) -> Any:
        """A part that some machines do not have: None, logged once, and the rest goes on."""
        try:
            return read()
        except (OSError, RuntimeError, ValueError) as error:
            if what not in self._logged:
                self._logged.add(what)
                log.info("this node gives no figures for %s: %s", what, error)
            return None


def _shares(rise: Values) -> Values:
    busy = sum(rise.get(name, 0.0) for name in BUSY)
    waiting = rise.get("iowait", 0.0)
    whole = busy + waiting + rise["idle"]
    if not whole > 0:
        return {}
    parts = {"cpu_percent": busy, "cpu_iowait_percent": waiting, "cpu_steal_percent": rise.get("steal", 0.0)}
    return {name: 100 * part / whole for name, part in parts.items()}


def _waited(pressure: Path) -> float:
    """Seconds in which some task waited, since boot: the first line ends with `total=MICROSECONDS`."""
    with pressure.open() as lines:
        return float(lines.readline().rpartition("total=")[2]) / 1e6


# --- blocked processes


@dataclass
class BlockedProcesses:
    """How many processes of a machine the kernel holds in uninterruptible sleep (state D), and still at the next look: they wait for storage or a driver.

    Looked at now and then: every process for a moment in state D waits for its disk, and most are out of it at once.
    """

    proc: Path = Path("/proc")

    def __post_init__(self) -> None:
        self._before: frozenset[tuple[str, bytes]] | None = None

    def look(self) -> float:
        """Of how many this look and the one before say so; NaN at the first one."""
        before, self._before = self._before, frozenset(self._held())
        return float("nan") if before is None else float(len(before & self._before))

    def _held(self) -> list[tuple[str, bytes]]:
        """Process and its start time, so that a later one of the same number is another."""
        folder = str(self.proc)
        pids = [name for name in names_in(self.proc) if name[0].isdigit()][:PROCESSES_MOST]
        return [(pid, fields[19]) for pid in pids if len(fields := _stat_fields(f"{folder}/{pid}/stat")) > 19 and fields[0] == b"D"]


def _stat_fields(path: str) -> list[bytes]:
    """From the state on (man 5 proc_pid_stat); none if the process is gone. The name before may hold spaces and brackets."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return os.read(file, 1024).rpartition(b")")[2].split()
    except OSError:
        return []
    finally:
        os.close(file)
