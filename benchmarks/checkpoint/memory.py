"""What a checkpoint in memory costs the training, and how fast it is loaded, beside torch.save and torch.distributed.checkpoint.

    python -m benchmarks.checkpoint.memory                    states of 1 and 4 GiB
    python -m benchmarks.checkpoint.memory --gib 1            less memory: it takes four times the state, in RAM and in /dev/shm

A state of 96 tensors belongs to an optimizer whose step does nothing, so that only the wait for the copy is measured; between save and step the
training thread multiplies matrices (a step longer than the copy) or does nothing (a step shorter than it). Blocked is the time in `save`
and in `optimizer.step`. Each figure is a median, the copy of the same bytes (`Tensor.copy_` between prefaulted memory, one thread) is measured
in turn with it. Last, two workers train with a checkpoint after each step and without, in turn, in the same processes.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed

from benchmarks.checkpoint.each_step import EachStep, each_step
from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from eagle_eye import MemoryCheckpoints

TENSORS = 96
TRIES = 5
BLOCKED_MS, LONG_RATIO, LOAD_RATIO, SLOWED = 10.0, 1.15, 1.2, 0.03
"""Goals."""
MEMORY = Path("/dev/shm")


class Costs(NamedTuple):
    """Seconds, each for a state of one size."""

    copied: float
    within: list[float]
    """Blocked by saves that are copied within a step."""
    longer: float
    load: float
    load_again: float
    """By a process that has loaded before."""
    torch_save: float
    dcp_async: float
    torch_load: float
    dcp_load: float


class Training:
    """A state of so many bytes, and the optimizer that owns it."""

    def __init__(self, size: int, device: str = "cpu") -> None:
        count = size // TENSORS // 4
        parameters = [torch.nn.Parameter(torch.rand(count, device=device)) for _ in range(TENSORS // 3)]
        self.optimizer = torch.optim.AdamW(parameters)
        for parameter in parameters:
            self.optimizer.state[parameter] = {name: torch.rand(count, device=device) for name in ("exp_avg", "exp_avg_sq")}
        self.parameters = parameters
        self.bytes = count * 4 * TENSORS

    def kinds(self) -> list[list[torch.Tensor]]:
        """Parameters, and the two moments of the optimizer."""
        state = self.optimizer.state
        return [[each.detach() for each in self.parameters], *([state[each][name] for each in self.parameters] for name in ("exp_avg", "exp_avg_sq"))]

    def state(self) -> dict[str, Any]:
        return {"model": {str(index): each.detach() for index, each in enumerate(self.parameters)}, "optimizer": self.optimizer.state_dict(), "step": 5}


def seconds(act: Callable[[], object]) -> float:
    """Of one call."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def compute(least_s: float) -> None:
    """What a training thread does: it multiplies matrices."""
    matrix, began = torch.rand(384, 384), time.perf_counter()
    while time.perf_counter() - began < least_s:
        matrix = torch.tanh(matrix @ matrix)


@contextmanager
def segment(name: str) -> Iterator[Path]:
    """A place for the checkpoints in memory."""
    path = MEMORY / f"eagle-eye-benchmark-{name}.memory"
    path.unlink(missing_ok=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def measure(size: int, folder: Path) -> Costs:
    """All of one size."""
    training = Training(size)
    copied: list[float] = []
    kinds = training.kinds()
    targets = [torch.ones_like(each) for each in kinds[0]]  # a third of the state, which is more than the caches hold

    def copy() -> None:
        """All tensors of the state."""
        copied.append(seconds(lambda: [target.copy_(each) for kind in kinds for target, each in zip(targets, kind, strict=True)]))

    copy()
    copied.clear()
    with segment("one") as path:
        memory = MemoryCheckpoints([training.optimizer], path)
        if not memory.prepare(training.state()):
            raise MemoryError(f"{path} cannot be reserved: see the log")
        within, longer = blocked_by_saves(training, memory, copy, copied)
        memory.save(training.state(), 1)
        memory.close()
        loads = load_times(training, path, copy)
    peers = peer_costs(training, folder)
    return Costs(statistics.median(copied), within, longer, *loads, *peers)


def blocked_by_saves(training: Training, memory: MemoryCheckpoints, copy: Callable[[], None], copied: list[float]) -> tuple[list[float], float]:
    """(blocked where a step is longer than the copy, each; where it is shorter, median)"""
    within, longer = [], []
    for step in range(TRIES):
        copy()
        saving = save(training, memory, step)
        compute(8 * statistics.median(copied))
        within.append(saving + seconds(training.optimizer.step))
        memory.finish()
        copy()
        longer.append(save(training, memory, step) + seconds(training.optimizer.step))
        memory.finish()
    return within, statistics.median(longer)


def save(training: Training, memory: MemoryCheckpoints, step: int) -> float:
    """Seconds until it returns."""
    return seconds(lambda: must(memory.save(training.state(), step)))


def load(memory: MemoryCheckpoints, template: dict[str, Any]) -> float:
    """Seconds."""
    return seconds(lambda: must(memory.load(template)))


def load_times(training: Training, path: Path, copy: Callable[[], None]) -> tuple[float, float]:
    """(the first load of a process, later ones: medians)"""
    first, later = [], []
    for _ in range(TRIES):
        memory, template = MemoryCheckpoints([training.optimizer], path), training.state()
        copy()
        first.append(load(memory, template))
        copy()
        later.append(load(memory, template))
        memory.close()
    return statistics.median(first), statistics.median(later)


def peer_costs(training: Training, folder: Path) -> tuple[float, float, float, float]:
    """(torch.save, blocked by dcp.async_save, torch.load, dcp.load), each the better of two, on the disk's page cache."""
    state, file = training.state(), folder / "state.pt"
    saved = min(seconds(lambda: torch.save(state, file)) for _ in range(2))
    loaded = min(seconds(lambda: torch.load(file)) for _ in range(2))
    file.unlink()
    blocked = []
    for number in range(2):
        began = time.perf_counter()
        pending = dcp.async_save(state, checkpoint_id=str(folder / f"dcp-{number}"))
        blocked.append(time.perf_counter() - began)
        pending.result()
    restored = min(seconds(lambda: dcp.load(state, checkpoint_id=str(folder / "dcp-1"))) for _ in range(2))
    return saved, min(blocked), loaded, restored


def must(done: object) -> None:
    """A save that was left out, or a load of nothing, is no figure."""
    if not done:
        raise RuntimeError("nothing was saved or loaded: see the log")


def rows_of(gib: float, costs: Costs) -> list[Row]:
    """Of one size."""
    worst, long_ratio, load_ratio = max(costs.within) * 1000, costs.longer / costs.copied, costs.load / costs.copied
    typical = statistics.median(costs.within) * 1000
    return [
        Row(
            f"{gib:g} GiB: blocked by a save that is copied within a step, median and slowest of {TRIES}", f"{typical:.1f} ms, {worst:.1f} ms", f"≤ {BLOCKED_MS:g} ms", typical <= BLOCKED_MS,
            f"torch.save {costs.torch_save:.2f} s; dcp.async_save {costs.dcp_async:.2f} s", f"{costs.torch_save / typical * 1000:.0f}× and {costs.dcp_async / typical * 1000:.0f}×",
        ),
        Row(
            f"{gib:g} GiB: blocked where the step is over at once", f"{costs.longer:.3f} s", f"≤ {LONG_RATIO} × memcpy", long_ratio <= LONG_RATIO,
            f"memcpy {costs.copied:.3f} s; torch.save {costs.torch_save:.2f} s; dcp.async_save {costs.dcp_async:.2f} s", f"{long_ratio:.2f} × memcpy",
        ),
        Row(
            f"{gib:g} GiB: load from own memory, verified, by a new process", f"{costs.load:.3f} s", f"≤ {LOAD_RATIO} × memcpy", load_ratio <= LOAD_RATIO,
            f"memcpy {costs.copied:.3f} s; torch.load {costs.torch_load:.2f} s; dcp.load {costs.dcp_load:.2f} s", f"{load_ratio:.2f} × memcpy",
        ),
        Row(f"{gib:g} GiB: the same again, its pages are mapped", f"{costs.load_again:.3f} s", ratio=f"{costs.load_again / costs.copied:.2f} × memcpy"),
    ]  # fmt: skip


def each_step_rows(found: EachStep) -> list[Row]:
    """Of the two workers."""
    what = f"a checkpoint in memory after each step, 2 workers, {found.pairs} pairs of {found.steps} steps of {found.step_s * 1000:.0f} ms, state of {found.state_mb:.0f} MB"
    return [
        Row(f"{what}: slowed", f"{found.slowed:+.2%}, 95 % bound {found.bound:+.2%}", f"≤ {SLOWED:.0%}", found.bound <= SLOWED, "Checkmate claims none", f"{1 + found.slowed:.4f}"),
        Row("the same: blocked, a step", f"{found.blocked_s * 1000:.2f} ms, {found.blocked_s / found.step_s:.2%} of a step; {found.left_out} saves left out"),
    ]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, nargs="*", default=[1.0, 4.0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as the launcher sets it for each worker
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    steal, load, rows = neighbours(), os.getloadavg()[0], []
    for gib in options.gib:
        print(f"{gib:g} GiB ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="eagle-eye-checkpoint-") as folder:
            rows += rows_of(gib, measure(int(gib * (1 << 30)), Path(folder)))
    distributed.destroy_process_group()
    if options.pairs:
        print("two workers ...", file=sys.stderr, flush=True)
        rows += each_step_rows(each_step(options.pairs))
    waiting = Row("processes that wanted the processors, before and at the end", f"{load:.1f}, {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", peer="above 2 the times above say little")
    return report([*rows, steal(), waiting], options.json, "checkpoints in memory")


if __name__ == "__main__":
    sys.exit(main())
