"""What the probe costs inside a training loop, beside what else one could write there.

    python -m benchmarks.chain.probe [--json]

The peers, on the same work in the same run: a clock read appended to a bounded deque (the cheapest line a user
would write; it tells nobody outside and dies with the process), and torch.profiler.record_function (switched off,
as it is on most days). The rounds of all are interleaved, so that a busy machine slows all of them alike.
"""

import argparse
import collections
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.report import Row, report
from eagle_eye.training.probe import Monitor
from eagle_eye.training.ring_buffer import RingWriter

ROUNDS = 3000
MARKS_A_ROUND = 10
GOAL_MARK_US = 0.5
GOAL_STEP_US = 10.0
_clock = time.perf_counter_ns


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        monitor = Monitor(RingWriter.create(Path(folder) / "ring", worker="run/a/0"))
        return report(rows(monitor), options.json, "the probe inside a training loop")


def rows(monitor: Monitor) -> list[Row]:
    """The figures."""
    seen: collections.deque[object] = collections.deque(maxlen=512)
    nobody = Monitor(None)
    marks = measure([lambda: ours_mark(monitor), lambda: deque_mark(seen), record_function], MARKS_A_ROUND)
    steps = measure([lambda: ours_step(monitor), lambda: deque_step(seen), profiler_step], 1)
    phases, silent = measure([lambda: ours_phase(monitor), lambda: ours_mark(nobody)], MARKS_A_ROUND)
    mark, step = quantile(marks[0], 0.5), quantile(steps[0], 0.5)
    return [
        Row("mark, p50", us(mark), f"≤ {GOAL_MARK_US} µs", mark <= GOAL_MARK_US, *beside(mark, marks, 0.5)),
        Row("mark, p99", us(quantile(marks[0], 0.99)), "", None, *beside(quantile(marks[0], 0.99), marks, 0.99)),
        Row("step with 10 marks and a log, p50", us(step), f"≤ {GOAL_STEP_US:.0f} µs", step <= GOAL_STEP_US, *beside(step, steps, 0.5)),
        Row("step with 10 marks and a log, p99", us(quantile(steps[0], 0.99)), "", None, *beside(quantile(steps[0], 0.99), steps, 0.99)),
        Row("phase as a context (two marks), p50", us(quantile(phases, 0.5))),
        Row("mark without a launcher, p50", us(quantile(silent, 0.5))),
    ]


def measure(acts: list[Callable[[], None]], repeats: int) -> list[list[float]]:
    """Microseconds of one repeat of each act, one value a round, sorted."""
    times: list[list[float]] = [[] for _ in acts]
    for number in range(ROUNDS + ROUNDS // 10):
        for act, found in zip(acts, times, strict=True):
            began = _clock()
            act()
            took = _clock() - began
            if number >= ROUNDS // 10:  # the first tenth warms up
                found.append(took / 1000 / repeats)
    return [sorted(found) for found in times]


def ours_mark(monitor: Monitor) -> None:
    """Ten marks, written out: a loop around them would be measured with them."""
    mark = monitor.mark
    mark("forward"), mark("backward"), mark("forward"), mark("backward"), mark("forward")
    mark("backward"), mark("forward"), mark("backward"), mark("forward"), mark("backward")


def deque_mark(seen: collections.deque[object]) -> None:
    """The same by hand."""
    append, clock = seen.append, time.perf_counter
    append(("forward", clock())), append(("backward", clock())), append(("forward", clock()))
    append(("backward", clock())), append(("forward", clock())), append(("backward", clock()))
    append(("forward", clock())), append(("backward", clock())), append(("forward", clock()))
    append(("backward", clock()))


def record_function() -> None:
    """Ten ranges of torch's profiler."""
    for name in ("forward", "backward") * 5:
        with torch.profiler.record_function(name):
            pass


def ours_phase(monitor: Monitor) -> None:
    """Ten phases as contexts."""
    for name in ("forward", "backward") * 5:
        with monitor.phase(name):
            pass


def ours_step(monitor: Monitor) -> None:
    """A whole step: begin, ten marks, three numbers, the record in the ring."""
    monitor.begin(monitor.step + 1)
    ours_mark(monitor)
    monitor.log(loss=2.5, tokens=4096.0, grad_norm=0.7)
    monitor.end()


def deque_step(seen: collections.deque[object]) -> None:
    """The same by hand."""
    began = time.perf_counter()
    deque_mark(seen)
    seen.append({"step_s": time.perf_counter() - began, "loss": 2.5, "tokens": 4096.0, "grad_norm": 0.7})


def profiler_step() -> None:
    """The same with torch's profiler, which has no place for the numbers."""
    with torch.profiler.record_function("step"):
        record_function()


def quantile(found: list[float], part: float) -> float:
    """Of sorted values."""
    return found[min(len(found) - 1, int(len(found) * part))]


def us(value: float) -> str:
    """Microseconds as text."""
    return f"{value:.2f} µs"


def beside(ours: float, all_of: list[list[float]], part: float) -> tuple[str, str]:
    """The peers' figures, and how many times ours each is."""
    by_hand, profiler = quantile(all_of[1], part), quantile(all_of[2], part)
    return f"deque by hand {us(by_hand)}, record_function {us(profiler)}", f"{by_hand / ours:.2f}, {profiler / ours:.1f}"


if __name__ == "__main__":
    sys.exit(main())
