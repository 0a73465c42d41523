"""Whether the gpu collector reads what nvidia-smi reads, and what that costs. Needs a GPU: without one it says so and ends with status 2.

    python -m benchmarks.collect.gpu_beside_nvidia_smi --minutes 10
    python -m benchmarks.collect.gpu_beside_nvidia_smi --minutes 1 --json

Each look reads our numbers, then nvidia-smi's, then ours again: a number of nvidia-smi agrees if it lies within one unit of what we read before and
after. Metrics that nvidia-smi does not show, or this GPU does not have, are listed as not compared.
"""

import argparse
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.report import Row, report
from collectors.gpu import GpuCollector
from collectors.nvml.fields import FieldId
from collectors.nvml.watched_gpu import NAMES
from eagle_eye.types import Reading

PAUSE_S = 1.0
USUAL_LOOKS = 12
FIELD_TRIES, DEAREST = 5, 6
NO_GPU = 2
MIB = 1 << 20
SMI = "nvidia-smi"
Numbers = dict[str, dict[str, float]]
"""UUID of a GPU → name → number; NaN: not told."""


class Compared(NamedTuple):
    """One metric of ours and what nvidia-smi calls it."""

    metric: str
    queries: tuple[str, ...]
    """Of --query-gpu; added together."""
    unit: float = 1.0
    """Theirs → ours; numbers that differ by no more than this agree."""


COMPARED = (
    Compared("utilisation_percent", ("utilization.gpu",)),
    Compared("memory_utilisation_percent", ("utilization.memory",)),
    Compared("memory_used_bytes", ("memory.used", "memory.reserved"), MIB),
    Compared("power_watts", ("power.draw",)),
    Compared("temperature_celsius", ("temperature.gpu",)),
    Compared("memory_temperature_celsius", ("temperature.memory",)),
    Compared("sm_clock_mhz", ("clocks.sm",)),
    Compared("memory_clock_mhz", ("clocks.mem",)),
    Compared("pcie_generation", ("pcie.link.gen.current",)),
    Compared("pcie_width", ("pcie.link.width.current",)),
    Compared("ecc_corrected_total", ("ecc.errors.corrected.aggregate.total",)),
    Compared("ecc_uncorrected_total", ("ecc.errors.uncorrected.aggregate.total",)),
    Compared("ecc_memory_uncorrected_total", ("ecc.errors.uncorrected.aggregate.dram",)),
    Compared("ecc_sram_uncorrected_total", ("ecc.errors.uncorrected.aggregate.sram",)),
    Compared("throttle_reasons", ("clocks_event_reasons.active",)),
    Compared("mig_enabled", ("mig.mode.current",)),
    Compared("retired_pages", ("retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count")),
)
"""NVML's first version of the memory call, which we use, counts what the driver reserved as used; nvidia-smi shows it apart."""
SWITCH = {"Enabled": 1.0, "Disabled": 0.0}


@dataclass
class Agreement:
    """How far one metric was off in all looks."""

    looks: int = 0
    off: list[float] = field(default_factory=list)
    """By how many units, for each number."""
    worst: str = ""

    def add(self, theirs: float, before: float, after: float, unit: float) -> None:
        """One number of nvidia-smi between two of ours."""
        low, high = min(before, after), max(before, after)
        off = max(low - theirs, theirs - high, 0.0) / unit
        if not self.off or off > max(self.off):
            self.worst = f"ours {before:g} and {after:g}, theirs {theirs:g}"
        self.off.append(off)


class NvidiaSmi:
    """The command, asked for what it knows on this machine."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.queries = [query for query in dict.fromkeys(query for each in COMPARED for query in each.queries) if self._knows(query)]

    def read(self) -> Numbers:
        """All GPUs. Raises CalledProcessError and TimeoutExpired."""
        lines = self._ask("uuid", *self.queries).strip().splitlines()
        cells = [[cell.strip() for cell in line.split(",")] for line in lines]
        return {row[0]: dict(zip(self.queries, map(_number, row[1:]), strict=True)) for row in cells}

    def _knows(self, query: str) -> bool:
        try:
            self._ask(query)
        except subprocess.CalledProcessError:
            return False
        return True

    def _ask(self, *queries: str) -> str:
        command = [self._path, f"--query-gpu={','.join(queries)}", "--format=csv,noheader,nounits"]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def _number(cell: str) -> float:
    """Also of a bit mask and of a switch; NaN for "[N/A]" and the like."""
    try:
        return SWITCH[cell] if cell in SWITCH else float(int(cell, 16) if cell.startswith("0x") else cell)
    except ValueError:
        return math.nan


def ours(collector: GpuCollector) -> tuple[Numbers, float]:
    """(what we read, processor time in ms)."""
    began = time.process_time()
    found = collector.collect()
    taken = (time.process_time() - began) * 1000
    readings = [each for each in found if isinstance(each, Reading) and each.source == "gpu"]
    numbers = {
        gpu: dict(zip(each.names, map(float, row), strict=True)) for each in readings for gpu, row in zip(each.entities, each.matrix, strict=True)
    }
    return numbers, taken


def compare(agreements: Mapping[str, Agreement], theirs: Numbers, before: Numbers, after: Numbers) -> None:
    """One look."""
    for gpu in theirs.keys() & before.keys() & after.keys():
        for each in COMPARED:
            told = [theirs[gpu].get(query, math.nan) for query in each.queries]
            known = [number for number in told if not math.isnan(number)]
            numbers = (before[gpu][each.metric], after[gpu][each.metric])
            if known and not any(math.isnan(number) for number in numbers):
                agreements[each.metric].add(sum(known) * each.unit, *numbers, each.unit)


def rows(agreements: Mapping[str, Agreement], taken: Sequence[float], usual: Sequence[float]) -> list[Row]:
    """The worst first; then what it costs: a look that asks for everything, and one as an agent takes it."""
    compared = sorted(((name, each) for name, each in agreements.items() if each.off), key=lambda pair: -max(pair[1].off))
    found = [
        Row(
            f"{name}, {len(each.off)} numbers", f"off by {max(each.off):.2f} units at most, {statistics.fmean(each.off):.3f} on average",
            "≤ 1 unit", max(each.off) <= 1.0, each.worst,
        )
        for name, each in compared
    ]  # fmt: skip
    left = [name for name in NAMES if name not in {name for name, _ in compared}]
    found.append(Row("not compared", f"{len(left)} metrics", peer=", ".join(left)))
    found += [
        Row(f"processor time of {what}, mean of {len(times)}", f"{statistics.fmean(times):.2f} ms, {statistics.fmean(times) / 10:.2f}% of one core at one look a second")
        for what, times in (("a look that asks for everything", taken), ("a usual look", usual))
    ]
    return found


def watch(collector: GpuCollector, smi: NvidiaSmi, seconds: float) -> tuple[Mapping[str, Agreement], list[float]]:
    """Look for so long. Raises what nvidia-smi and the driver raise."""
    agreements = {each.metric: Agreement() for each in COMPARED}
    taken: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before, first = ours(collector)
        theirs = smi.read()
        after, second = ours(collector)
        taken += [first, second]
        compare(agreements, theirs, before, after)
        time.sleep(PAUSE_S)
    return agreements, taken


def usual_looks() -> list[float]:
    """Processor time of each, in ms: as shipped, what changes slowly is repeated from memory most of the time."""
    collector = GpuCollector()
    ours(collector)
    found = []
    for _ in range(USUAL_LOOKS):
        time.sleep(PAUSE_S)
        found.append(ours(collector)[1])
    return found


def field_costs(nvml: Any) -> str:
    """What the dearest fields take of the driver's time."""
    nvml.nvmlInit()
    handle, costs = nvml.nvmlDeviceGetHandleByIndex(0), []
    for field_id in FieldId:
        taken = []
        for _ in range(FIELD_TRIES):
            began = time.thread_time()
            nvml.nvmlDeviceGetFieldValues(handle, [int(field_id)])
            taken.append((time.thread_time() - began) * 1000)
        costs.append((statistics.median(taken), field_id.name))
    return ", ".join(f"{name} {cost:.2f} ms" for cost, name in sorted(costs, reverse=True)[:DEAREST])


def missing(path: str | None, collector: GpuCollector) -> str:
    """Why nothing can be compared here; '' if it can."""
    if not ours(collector)[0]:
        return collector.unavailable
    return "" if path else f"{SMI} is not in the path"


def main(arguments: Iterable[str] | None = None) -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(None if arguments is None else list(arguments))
    if not options.minutes > 0:
        parser.error("--minutes is above 0")
    path, collector = shutil.which(SMI), GpuCollector(slow_s=PAUSE_S / 10)
    why = missing(path, collector)
    if why or path is None:
        print(f"nothing to compare on this machine: {why}", file=sys.stderr)
        return NO_GPU
    agreements, taken = watch(collector, NvidiaSmi(path), options.minutes * 60)
    import pynvml

    found = [*rows(agreements, taken[2:] or taken, usual_looks()), Row("the dearest fields of the first GPU, each asked alone", field_costs(pynvml))]
    return report(found, options.json, "the gpu collector beside nvidia-smi")


if __name__ == "__main__":
    sys.exit(main())
