"""What it costs a node to read its GPUs once a second: processor time of the gpu collector for 8 GPUs × 60 metrics.

    python -m benchmarks.collect.gpu_cost
    python -m benchmarks.collect.gpu_cost --gpus 4 --seconds 3000

NVML is the stand-in of the tests, so that it runs anywhere: what the driver itself takes is not in it, and what the stand-in takes is told beside.
On a GPU `python -m benchmarks.collect.gpu_beside_nvidia_smi` measures both.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rich.progress import track

from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from collectors.gpu import GpuCollector
from collectors.nvml.watched_gpu import NAMES
from eagle_eye.clock import FakeClock
from eagle_eye.types import Reading
from tests.fakes.nvml import FakeNvml

AGENT_PERCENT = 3.0
"""Of one core: what agent and launcher may use together (benchmarks.chain.overhead)."""
GOAL_PERCENT = 0.7
"""What is left of it for GPUs: without any they use 2.3 %."""
ROUND = 10
"""Seconds after which a collector has looked once at everything."""
WARM_UP = 3
"""Rounds that are not measured."""


class RecordedNvml:
    """The stand-in, and which calls were made of it with which arguments."""

    def __init__(self, nvml: FakeNvml) -> None:
        self._nvml = nvml
        self.calls: list[Callable[[], Any]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        return partial(self._record, found) if name.startswith("nvml") and callable(found) else found

    def _record(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.calls.append(partial(function, *arguments))
        return function(*arguments)


def moving(nvml: FakeNvml) -> None:
    """Counters go on by a second."""
    for gpu in nvml.gpus:
        gpu.fields[83] += 500_000
        gpu.fields[74] += 100_000_000
        gpu.link_errors[161, 3] = gpu.link_errors.get((161, 3), 0) + 1


def collector_ms(gpus: int, seconds: int) -> tuple[list[float], int]:
    """(processor time of each collect in ms, metrics of a GPU that were read)."""
    nvml, clock = FakeNvml(gpus=gpus), FakeClock()
    collector = GpuCollector(nvml=nvml, clock=clock)
    taken: list[float] = []
    for second in track(range(WARM_UP * ROUND + seconds), "seconds", transient=True, disable=not sys.stderr.isatty()):
        clock.advance(1.0)
        moving(nvml)
        began = time.process_time()
        found = collector.collect()
        if second >= WARM_UP * ROUND:
            taken.append((time.process_time() - began) * 1000)
    (reading,) = [each for each in found if isinstance(each, Reading)]
    return taken, int((reading.matrix == reading.matrix).any(axis=0).sum())


def stand_in_ms(gpus: int, rounds: int) -> tuple[float, float]:
    """(processor time in ms of the calls alone, their number), both per second: the same calls of the stand-in, without a collector."""
    clock, nvml = FakeClock(), RecordedNvml(FakeNvml(gpus=gpus))
    collector = GpuCollector(nvml=nvml, clock=clock)
    for second in range(2 * ROUND + 1):
        if second == ROUND + 1:
            nvml.calls.clear()
        clock.advance(1.0)
        collector.collect()
    calls = nvml.calls[:]
    began = time.process_time()
    for _ in range(rounds):
        for call in calls:
            _answered(call, nvml)
    return (time.process_time() - began) * 1000 / rounds / ROUND, len(calls) / ROUND


def _answered(call: Callable[[], Any], nvml: Any) -> None:
    try:
        call()
    except nvml.NVMLError:
        return  # no Xid waits


def rows(gpus: int, seconds: int) -> list[Row]:
    """The figures."""
    taken, metrics = collector_ms(gpus, seconds)
    alone, calls = stand_in_ms(gpus, max(1, seconds // ROUND))
    mean = statistics.fmean(taken)
    share = mean / 10  # milliseconds in a second → percent
    return [
        Row(
            f"processor time of the collector, mean of {len(taken)} seconds", f"{mean:.2f} ms, worst {max(taken):.2f} ms",
            peer=f"the stand-in for NVML alone, contained in it: {alone:.2f} ms",
        ),
        Row("share of one core", f"{share:.2f}%", f"≤ {GOAL_PERCENT:g} %, of {AGENT_PERCENT:g} % for agent and launcher", share <= GOAL_PERCENT),
        Row("metrics of a GPU", f"{metrics} of {len(NAMES)} read"),
        Row("calls of NVML a second", f"{calls:.0f}"),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=1000, help="of the node's time (1000)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.gpus < 1 or options.seconds < ROUND:
        parser.error(f"--gpus is at least 1, and --seconds at least {ROUND}")
    steal = neighbours()
    return report([*rows(options.gpus, options.seconds), steal()], options.json, f"reading {options.gpus} GPUs once a second")


if __name__ == "__main__":
    sys.exit(main())
