"""What a checkpoint in memory costs a training on a GPU, and how fast it is loaded, beside torch.save and torch.distributed.checkpoint. Needs a GPU: without one it ends with 2.

    python -m benchmarks.gpu.checkpoints [--gib 1 4] [--pairs 12] [--json]

As `benchmarks.checkpoint.memory`, with the state on the GPU: the copy of the same bytes is one into pinned memory, a step is a kernel that counts
cycles. What the host is held up by is measured by its clock, what the GPU is held up by with CUDA events: the optimizer's kernels wait for the copy
on the GPU alone. Then a transformer of 340 million parameters trains in bfloat16 with a checkpoint after each step and without, in turn. Before it all,
what a copy may not spoil and must not be spoiled by: checkpoint_cases.py. For kills: `benchmarks.checkpoint.kills --device cuda`.
"""

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed

from benchmarks.checkpoint.each_step import slowed
from benchmarks.checkpoint.memory import (
    BLOCKED_MS,
    LOAD_RATIO,
    LONG_RATIO,
    SLOWED,
    TRIES,
    Training,
    load,
    peer_costs,
    save,
    seconds,
    segment,
)
from benchmarks.gpu.checkpoint_cases import cases
from benchmarks.gpu.kernels import spin
from benchmarks.report import Row, report
from eagle_eye import MemoryCheckpoints
from eagle_eye.training.checkpoint.cuda_sums import row_kernel

NO_GPU = 2
STEP_OF_COPIES = 8
"""A step that is longer than the copy takes so many times as long."""
WIDTH, LAYERS, BATCH, LENGTH = 1536, 12, 16, 1024
SUMMED = 500
"""Tensors: a transformer of 12 layers has so many, with the optimizer's."""
STEPS = 6
"""Of a part with or without checkpoints."""


class Costs(NamedTuple):
    """Seconds, each for a state of one size."""

    copied: float
    """Into pinned memory."""
    within: list[float]
    """The host, blocked by saves that are copied within a step."""
    held_up: list[float]
    """The GPU, by the same."""
    longer: float
    safe: float
    """From the save until it would be loaded."""
    back: float
    """The same bytes from pinned memory to the GPU."""
    load: float
    torch_save: float
    dcp_async: float
    torch_load: float
    dcp_load: float


class PinnedCopy:
    """The bytes of a state, to the host and back."""

    def __init__(self, training: Training) -> None:
        kinds = training.kinds()
        self._kinds = kinds
        self._pinned = [[torch.empty(each.shape, pin_memory=True) for each in kind] for kind in kinds]

    def to_host(self) -> None:
        for ours, theirs in zip(self._pinned, self._kinds, strict=True):
            for target, source in zip(ours, theirs, strict=True):
                target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    def back(self) -> None:
        for ours, theirs in zip(self._pinned, self._kinds, strict=True):
            for source, target in zip(ours, theirs, strict=True):
                target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()


def on_gpu(act: Callable[[], object]) -> float:
    """Seconds of the GPU until what the act queues is done."""
    torch.cuda.synchronize()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    act()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) / 1e3


def measure(size: int, folder: Path) -> Costs:
    """All of one size."""
    training = Training(size, "cuda")
    pinned = PinnedCopy(training)
    pinned.to_host()
    copied = [seconds(pinned.to_host) for _ in range(TRIES)]
    back = [seconds(pinned.back) for _ in range(TRIES)]
    del pinned
    with segment("gpu") as path:
        memory = MemoryCheckpoints([training.optimizer], path)
        if not memory.prepare(training.state()):
            raise MemoryError(f"{path} cannot be reserved: see the log")
        within, held_up = blocked_within(training, memory, STEP_OF_COPIES * statistics.median(copied))
        longer, safe = [], []
        for step in range(TRIES):
            torch.cuda.synchronize()
            began = time.perf_counter()
            at_once(training, memory, step)
            longer.append(time.perf_counter() - began)
            memory.finish()
            safe.append(time.perf_counter() - began)
        memory.close()
        loads = []
        for _ in range(TRIES):
            memory, template = MemoryCheckpoints([training.optimizer], path), training.state()
            loads.append(load(memory, template))
            memory.close()
    peers = peer_costs(training, folder)
    return Costs(statistics.median(copied), within, held_up, statistics.median(longer), statistics.median(safe), statistics.median(back), statistics.median(loads), *peers)


def at_once(training: Training, memory: MemoryCheckpoints, step: int) -> None:
    """A save, and an optimizer's step that comes at once, until the GPU is through."""
    save(training, memory, step)
    training.optimizer.step()
    torch.cuda.current_stream().synchronize()


def blocked_within(training: Training, memory: MemoryCheckpoints, step_s: float) -> tuple[list[float], list[float]]:
    """Saves behind which a step follows that is longer than the copy: (the host, the GPU), seconds of each."""
    host, gpu = [], []
    for step in range(TRIES + 1):
        alone = on_gpu(lambda: spin(step_s))
        taken: list[float] = []

        def one(step: int = step, taken: list[float] = taken) -> None:
            taken.append(save(training, memory, step))
            spin(step_s)
            taken.append(seconds(training.optimizer.step))

        beside = on_gpu(one)
        memory.finish()
        if step:  # the first one warms up
            host.append(sum(taken))
            gpu.append(beside - alone)
    return host, gpu


def sum_rows(size: int) -> Iterator[Row]:
    """What the kernel that sums a state costs: to make it, the host, and the GPU."""
    device, began = torch.device("cuda", torch.cuda.current_device()), time.perf_counter()
    kernel = row_kernel(device)
    made_s = time.perf_counter() - began
    if kernel is None:
        yield Row("the kernel that sums a state", "cannot be used: see the log", "used", met=False)
        return
    tensors = [torch.randn(size // 4 // SUMMED, device="cuda") for _ in range(SUMMED)]
    kernel.queue(tensors)
    gpu_s = statistics.median(on_gpu(lambda: kernel.queue(tensors)) for _ in range(TRIES))
    host_s = statistics.median(seconds(lambda: kernel.queue(tensors)) for _ in range(TRIES))
    yield Row(f"the sums of {size / (1 << 30):g} GiB in {SUMMED} tensors: the GPU, the host; the kernel is made in", f"{gpu_s * 1000:.2f} ms ({size / gpu_s / 1e9:.0f} GB/s), {host_s * 1000:.2f} ms; {made_s:.2f} s")


def rows_of(gib: float, costs: Costs) -> Iterator[Row]:
    """Of one size."""
    host, gpu = statistics.median(costs.within) * 1000, statistics.median(costs.held_up) * 1000
    yield Row(
        f"{gib:g} GiB on the GPU: host blocked by a save that is copied within a step, median and slowest of {TRIES}", f"{host:.1f} ms, {max(costs.within) * 1000:.1f} ms", f"≤ {BLOCKED_MS:g} ms", host <= BLOCKED_MS,
        f"torch.save {costs.torch_save:.2f} s; dcp.async_save {costs.dcp_async:.2f} s", f"{costs.torch_save / host * 1000:.0f}× and {costs.dcp_async / host * 1000:.0f}×",
    )  # fmt: skip
    yield Row("the same: the GPU's step is longer by, median and most", f"{gpu:.1f} ms, {max(costs.held_up) * 1000:.1f} ms", f"≤ {BLOCKED_MS:g} ms", gpu <= BLOCKED_MS)
    yield Row(
        f"{gib:g} GiB: blocked where the step is over at once", f"{costs.longer:.3f} s", f"≤ {LONG_RATIO} × copy", costs.longer <= LONG_RATIO * costs.copied,
        f"copy into pinned memory {costs.copied:.3f} s", f"{costs.longer / costs.copied:.2f} × copy",
    )  # fmt: skip
    yield Row(f"{gib:g} GiB: from the save until the copy would be loaded", f"{costs.safe:.3f} s", ratio=f"{costs.safe / costs.copied:.2f} × copy")
    yield Row(
        f"{gib:g} GiB: load to the GPU, verified, by a new client", f"{costs.load:.3f} s", f"≤ {LOAD_RATIO} × copy", costs.load <= LOAD_RATIO * costs.back,
        f"copy from pinned memory {costs.back:.3f} s; torch.load {costs.torch_load:.2f} s; dcp.load {costs.dcp_load:.2f} s", f"{costs.load / costs.back:.2f} × copy",
    )  # fmt: skip


class Transformer:
    """A model that trains on the GPU."""

    def __init__(self) -> None:
        layer = torch.nn.TransformerEncoderLayer(WIDTH, WIDTH // 128, 4 * WIDTH, dropout=0.0, batch_first=True, device="cuda")
        self._model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.optimizer = torch.optim.AdamW(self._model.parameters(), fused=True)
        self._tokens = torch.randn(BATCH, LENGTH, WIDTH, device="cuda")

    @property
    def bytes(self) -> int:
        """Of the state."""
        return sum(each.nbytes for each in self._model.parameters()) * 3

    def state(self) -> dict[str, Any]:
        return {"model": self._model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def steps(self, after: Callable[[int], None]) -> None:
        """STEPS of them, until the GPU is through; the host waits for each loss, as scripts do that print it."""
        for number in range(STEPS):
            with torch.autocast("cuda", torch.bfloat16):
                loss = self._model(self._tokens).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            after(number)
            loss.item()
        torch.cuda.synchronize()


def each_step_rows(pairs: int) -> Iterator[Row]:
    """A checkpoint after each step, and none, in turn."""
    training = Transformer()
    with segment("gpu-steps") as path:
        memory = MemoryCheckpoints([training.optimizer], path)
        training.steps(lambda _: None)
        if not memory.prepare(training.state()):
            raise MemoryError(f"{path} cannot be reserved: see the log")
        in_save: list[float] = []
        kept: list[bool] = []

        def keep(number: int) -> None:
            in_save.append(seconds(lambda: kept.append(memory.save(training.state(), number))))

        training.steps(keep)
        memory.finish()
        in_save.clear()
        kept.clear()
        memory.waited_s = 0.0
        taken: dict[bool, list[float]] = {True: [], False: []}
        for pair in range(pairs):
            for saving in (True, False) if pair % 2 else (False, True):
                began = time.perf_counter()
                training.steps(keep if saving else lambda _: None)
                taken[saving].append(time.perf_counter() - began)
                memory.finish()
        memory.close()
    mean, bound = slowed(taken[True], taken[False])
    step_s, blocked = statistics.median(taken[False]) / STEPS, (sum(in_save) + memory.waited_s) / len(in_save)
    what = f"a checkpoint in memory after each step, {pairs} pairs of {STEPS} steps of {step_s * 1000:.0f} ms, state of {training.bytes / 1e9:.1f} GB"
    yield Row(f"{what}: slowed", f"{mean:+.2%}, 95 % bound {bound:+.2%}", f"≤ {SLOWED:.0%}", bound <= SLOWED, "Checkmate claims none", f"{1 + mean:.4f}")
    yield Row("the same: host blocked, a step", f"{blocked * 1000:.2f} ms, {blocked / step_s:.2%} of a step; {kept.count(False)} of {len(kept)} saves left out: the one before was not done")


def report_of(gibs: Sequence[float], pairs: int) -> Iterator[Row]:
    """All rows, one after another."""
    yield from cases()
    yield from sum_rows(4 << 30)
    for gib in gibs:
        print(f"{gib:g} GiB ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="eagle-eye-checkpoint-") as folder:
            yield from rows_of(gib, measure(int(gib * (1 << 30)), Path(folder)))
        gc.collect()
        torch.cuda.empty_cache()
    if pairs:
        print("a transformer ...", file=sys.stderr, flush=True)
        yield from each_step_rows(pairs)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, nargs="*", default=[1.0, 4.0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU that torch can use: nothing to measure", file=sys.stderr)
        return NO_GPU
    torch.set_num_threads(1)  # as the launcher sets it for each worker
    distributed.init_process_group("cpu:gloo,cuda:nccl", store=distributed.HashStore(), rank=0, world_size=1)
    rows = []
    for row in report_of(options.gib, options.pairs):
        print(f"{row.what}: {row.figure} ({row.goal})", file=sys.stderr, flush=True)
        rows.append(row)
    distributed.destroy_process_group()
    return report(rows, options.json, f"checkpoints in memory from {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    sys.exit(main())
