"""Steps of ours and of plain DDP by turns, in the same processes, each timed; or steps of one kind, for its memory.

Run by benchmarks.elastic.steady. Both do the same micro-batches with the same model; before each of them the workers
wait for one another.
"""

import argparse
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import eagle_eye
from benchmarks.elastic.byte_gpt import MICRO_BATCHES, SIZES, batch_of, layers_of, loss_of, optimizer_of, share_of
from benchmarks.elastic.commits import Written

SIZE = SIZES["full"]


class Plain:
    """DDP as its documentation has it: accumulated without synchronization, reduced with the last micro-batch."""

    def __init__(self, meet: str = "") -> None:
        self.network: nn.Module = nn.Sequential(*layers_of(SIZE))
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if meet:
            dist.init_process_group("gloo", init_method=f"file://{meet}", rank=self.rank, world_size=self.world)
            self.network = nn.parallel.DistributedDataParallel(self.network)
        self.optimizer = optimizer_of(self.network.parameters())
        self._step = 0

    def run(self) -> float:
        """One step. Returns the sum of the worker's losses."""
        total = 0.0
        mine = share_of(self.rank, self.world)
        for micro in mine:
            self.network.require_backward_grad_sync = micro == mine[-1]
            given, targets = batch_of(SIZE, self._step, micro)
            loss = loss_of(self.network(given), targets)
            (loss * self.world / MICRO_BATCHES).backward()
            total += loss.item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._step += 1
        return total


def ours(reduction: str, steps: int) -> Iterator[Any]:
    """The steps of an elastic worker."""
    worker = eagle_eye.elastic(
        layers=layers_of(SIZE), loss=loss_of, optimizer=optimizer_of, batch=partial(batch_of, SIZE),
        micro_batches=MICRO_BATCHES, reduction=reduction,
    )  # fmt: skip
    return worker.steps(until=steps)


def by_turns(reduction: str, steps: int, meet: str, written: Written) -> None:
    """First the one, then the other; in the next step the other way round."""
    plain, loop = Plain(meet), ours(reduction, steps)
    ended = began = 0.0
    for number in range(steps):
        plain_s = timed(plain) if number % 2 else 0.0
        dist.barrier()
        began = time.perf_counter()
        step = next(loop)  # what the loop does between two steps counts, too
        loss = step.run()
        ended = time.perf_counter()
        plain_s = plain_s or timed(plain)
        written.add(number, loss, ours_s=ended - began, plain_s=plain_s)
    for _ in loop:
        raise RuntimeError("the loop has more steps than it was asked for")


def timed(plain: Plain) -> float:
    """Seconds of one step."""
    dist.barrier()
    began = time.perf_counter()
    plain.run()
    return time.perf_counter() - began


def alone(kind: str, steps: int, meet: str, written: Written) -> None:
    """Steps of one kind, and the most memory that the process ever had."""
    if kind in {"fast", "exact"}:
        for step in ours(kind, steps):
            written.add(step.number, step.run(), peak_bytes=peak_bytes())
        return
    plain = Plain(meet if kind == "ddp" else "")
    for number in range(steps):
        written.add(number, plain.run(), peak_bytes=peak_bytes())


def peak_bytes() -> int:
    """Of this process, resident and not of a file."""
    words = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return (int(words["VmHWM"].split()[0]) - int(words["RssFile"].split()[0])) * 1024


def main() -> None:
    """Do what the benchmark asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--reduction", choices=("exact", "fast"), default="exact")
    parser.add_argument("--alone", choices=("exact", "fast", "ddp", "none"), help="one kind only; none: no reduction at all")
    parser.add_argument("--meet", default="", help="file at which the ranks of DDP meet")
    options = parser.parse_args()
    torch.set_num_threads(1)
    written = Written(os.environ["EAGLE_EYE_WORKER"])
    if options.alone:
        alone(options.alone, options.steps, options.meet, written)
    else:
        by_turns(options.reduction, options.steps, options.meet, written)


if __name__ == "__main__":
    main()
