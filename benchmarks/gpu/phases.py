"""Phases by CUDA events beside what the GPU really did, and what they cost. Needs a GPU: without one it ends with status 2.

    python -m benchmarks.gpu.phases [--steps 300] [--json]

The truth is a second pair of events of our own around the same work, waited for; the peer is torch.profiler over the same steps, and what it costs.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Row, report
from eagle_eye.training.probe import Monitor
from eagle_eye.training.ring_buffer import RingReader, RingWriter

NO_GPU = 2
PHASES = {"forward": 6, "backward": 12, "optimizer": 2}
"""Phase → products of matrices in it."""
SIZE = 8192
WITHIN = 0.02
WINDOWS = 12
"""With and without, in turn."""


class Work:
    """A step of a model, on the GPU."""

    def __init__(self) -> None:
        self._matrix = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
        self._out = torch.empty_like(self._matrix)

    def do(self, phase: str) -> None:
        """Hand the phase's kernels over."""
        for _ in range(PHASES[phase]):
            torch.matmul(self._matrix, self._matrix, out=self._out)

    def step(self, monitor: Monitor, number: int) -> None:
        """As a script marks it."""
        monitor.begin(number)
        for phase in PHASES:
            monitor.mark(phase)
            self.do(phase)
        monitor.mark("other")
        monitor.end()


def watched(folder: Path, name: str, *, time_gpu: bool = True) -> tuple[Monitor, RingReader]:
    """A monitor and who reads it."""
    writer = RingWriter.create(folder / name, worker="run/a/0")
    return Monitor(writer, time_gpu=time_gpu), RingReader.open(folder / name)


def accuracy(folder: Path, steps: int) -> Iterator[Row]:
    """Each phase of each step beside the truth."""
    work = Work()
    monitor, reader = watched(folder, "accuracy")
    truth: dict[int, dict[str, tuple[Any, Any]]] = {}
    found: dict[int, Mapping[str, float]] = {}
    for number in range(steps):
        truth[number] = {}
        monitor.begin(number)
        for phase in PHASES:
            monitor.mark(phase)
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            work.do(phase)
            after.record()
            truth[number][phase] = before, after
        monitor.mark("other")
        monitor.end()
        if number % 4 == 3:  # the host of a real step waits at times: a loss is printed
            torch.cuda.synchronize()
        if number % 100 == 50:
            found |= {record.number: record.values for record in reader.steps(-1)}
    torch.cuda.synchronize()
    monitor.begin(steps)
    monitor.end()
    found |= {record.number: record.values for record in reader.steps(-1)}
    reader.close()
    timed = {number: values for number, values in found.items() if "gpu_forward_s" in values and number in truth}
    for phase in PHASES:
        pairs = [(values[f"gpu_{phase}_s"], truth[number][phase][0].elapsed_time(truth[number][phase][1]) / 1e3) for number, values in timed.items()]
        off = sum(ours for ours, _ in pairs) / sum(real for _, real in pairs) - 1.0
        worst = max(abs(ours - real) for ours, real in pairs)
        launched = statistics.fmean(values[f"{phase}_s"] for values in timed.values())
        real = statistics.fmean(real for _, real in pairs)
        yield Row(
            f"{phase}: time on the GPU, {len(pairs)} steps", f"{1e3 * (1 + off) * real:.3f} ms, {100 * off:+.2f}% (one step: at most {1e6 * worst:.0f} µs)",
            f"within {100 * WITHIN:.0f}%", abs(off) <= WITHIN, f"what the host took to hand it over: {1e3 * launched:.3f} ms", f"{launched / real:.2f}",
        )  # fmt: skip
    yield Row("steps with their times", f"{len(timed)} of {steps}", f"≥ {steps - 20}", len(timed) >= steps - 20)
    faults = monitor.status()["faults"]
    yield Row("faults of the probe", str(faults), "0", faults == 0)


def cost(folder: Path, steps: int) -> Iterator[Row]:
    """The time of a step by the clock, in windows in turn."""
    work = Work()
    ours, first = watched(folder, "ours")
    without, second = watched(folder, "without", time_gpu=False)
    nobody = Monitor(None)
    numbers = iter(range(10**9))

    def profiled() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]):
            window(work, nobody, steps, numbers)

    acts: dict[str, Callable[[], None]] = {
        "nobody": lambda: window(work, nobody, steps, numbers),
        "host marks": lambda: window(work, without, steps, numbers),
        "events": lambda: window(work, ours, steps, numbers),
        "torch.profiler": profiled,
    }
    taken: dict[str, list[float]] = {name: [] for name in acts}
    for turn in range(WINDOWS + 1):
        for name, act in acts.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            act()
            torch.cuda.synchronize()
            if turn:  # the first one warms up
                taken[name].append((time.perf_counter() - began) / steps)
    first.close()
    second.close()
    wall = {name: statistics.median(found) for name, found in taken.items()}
    slowed = sorted(after / before - 1.0 for before, after in zip(taken["nobody"], taken["events"], strict=True))
    bound = slowed[int(0.95 * len(slowed))]
    yield Row(
        f"a step of {1e3 * wall['nobody']:.2f} ms with phases by events", f"{100 * (wall['events'] / wall['nobody'] - 1):+.2f}% (95% of windows below {100 * bound:+.2f}%)",
        "≤ 1%", wall["events"] / wall["nobody"] <= 1.01, f"torch.profiler {100 * (wall['torch.profiler'] / wall['nobody'] - 1):+.1f}%",
    )  # fmt: skip
    marks = len(PHASES) + 1
    yield Row(f"the same with the host's marks alone, without events ({marks} marks a step)", f"{100 * (wall['host marks'] / wall['nobody'] - 1):+.2f}%")


def window(work: Work, monitor: Monitor, steps: int, numbers: Iterator[int]) -> None:
    """So many steps; the host waits at every fourth."""
    for count in range(steps):
        work.step(monitor, next(numbers))
        if count % 4 == 3:
            torch.cuda.synchronize()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="of the comparison (300); a window of the cost has an eighth")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU that torch can use: nothing to measure", file=sys.stderr)
        return NO_GPU
    with tempfile.TemporaryDirectory() as folder:
        rows = [*accuracy(Path(folder), options.steps), *cost(Path(folder), options.steps // 8)]
    return report(rows, options.json, f"phases on {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    sys.exit(main())
