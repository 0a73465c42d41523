"""How fast a fresh worker gets a replica's state on the same node, beside what copying and gloo reach.

    python -m benchmarks.elastic.state_rate [--mib 256 --mib 1024] [--rounds 7] [--small-pages] [--json]

Two processes; the one that gives holds a model and AdamW's state of it, 12 layers. A transfer is all of it: both say
what they have, the bytes arrive, are digested on both sides and compared. Both do before what elastic workers do: the
sender's state is on huge pages, and the receiver has allocated memory. Beside it in the same rounds: a copy of as many bytes
within one process with one and with two threads, which is the limit of this machine; one gloo message of as many
bytes, which verifies nothing; and our other two transports.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.report import Row, report
from eagle_eye.training.elastic.train_state import huge_pages
from eagle_eye.training.elastic.train_state.train_state import TrainState
from eagle_eye.training.elastic.transfer import transports
from eagle_eye.training.elastic.transfer.state_transfer import transfer_state

LAYERS = 12
MIB = 1 << 20
STATE_PER_PARAMETER = 3
"""AdamW: the parameter and two moments."""
GOAL = 0.8
_PATIENCE = timedelta(seconds=60)
_clock = time.perf_counter


class Quiet:
    """A session in which nothing happens."""

    def check(self, epoch: int) -> None:
        """No newer epoch."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, action="append", help="size of the state; default 256 and 1024")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small-pages", action="store_true", help="as on a machine without huge pages, and without room made before")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    found = [row for mib in options.mib or [256, 1024] for row in rows(mib, options.rounds, ready=not options.small_pages)]
    return report(found, options.json, "state from a replica on the same node")


def rows(mib: int, rounds: int, *, ready: bool) -> list[Row]:
    """The figures of one size."""
    times = measure(mib * MIB, rounds, ready=ready)
    rate = {name: mib * MIB / statistics.median(seconds) / 1e9 for name, seconds in times.items()}
    limit = max(rate["copy 1"], rate["copy 2"])
    share = rate["remote_memory"] / limit
    beside = f"copy {rate['copy 1']:.1f} with 1 thread, {rate['copy 2']:.1f} with 2"
    first = times["remote_memory, first"][0]
    return [
        Row(f"{mib} MiB, read from the replica's memory", f"{rate['remote_memory']:.1f} GB/s", f"≥ {GOAL:.0%} of the copy limit", share >= GOAL, beside, f"{share:.0%}"),
        Row(f"{mib} MiB, the first time{'' if ready else ': pages have to be made'}", f"{mib * MIB / first / 1e9:.1f} GB/s", "", None, f"gloo {rate['gloo']:.1f} (pages there)", f"{first * 1e3:.0f} ms"),
        Row(f"{mib} MiB, through shared memory", f"{rate['shared_memory']:.1f} GB/s", "", None, f"gloo {rate['gloo']:.1f}", f"{rate['shared_memory'] / rate['gloo']:.1f} ×"),
        Row(f"{mib} MiB, over the group", f"{rate['group']:.1f} GB/s", "", None, f"gloo {rate['gloo']:.1f}", f"{rate['group'] / rate['gloo']:.1f} ×"),
    ]


def measure(size: int, rounds: int, *, ready: bool) -> dict[str, list[float]]:
    """Seconds of each round, by what was done, as the receiver sees it."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = context.Pipe()
        workers = [context.Process(target=work, args=(rank, size, rounds, ready, str(Path(folder) / "store"), theirs)) for rank in (0, 1)]
        for worker in workers:
            worker.start()
        theirs.close()
        try:
            return ours.recv()
        finally:
            for worker in workers:
                worker.join(_PATIENCE.total_seconds())


def work(rank: int, size: int, rounds: int, ready: bool, store: str, result: Connection) -> None:
    """One of the two processes: 0 gives, 1 takes."""
    torch.set_num_threads(1)
    pair = Pair(rank, size, store)
    if ready:
        room = pair.train_state.preallocate() if rank == 1 else []
        huge_pages.collapse([*(entry.tensor for layer in pair.train_state.layers for entry in layer.entries), *room])
    acts = pair.acts()
    times: dict[str, list[float]] = {"remote_memory, first": [pair.timed(acts["remote_memory"])]}
    for name in acts:
        pair.timed(acts[name])  # every page is there from now on
    for _ in range(rounds):
        for name, act in acts.items():
            times.setdefault(name, []).append(pair.timed(act))
    pair.meet()
    if rank == 1:
        result.send(times)
    result.close()


class Pair:
    """One process of the two."""

    def __init__(self, rank: int, size: int, store: str) -> None:
        from torch.distributed import FileStore, ProcessGroupGloo

        from eagle_eye.training.elastic.process_group.torch_group import TorchGroup

        class Group(TorchGroup):
            def _complete(self, issued: Any) -> None:
                issued.wait(_PATIENCE)

        self.rank = rank
        self.group = Group(ProcessGroupGloo(FileStore(store, 2), rank, 2, _PATIENCE), epoch=1, rank=rank, world=2, device="cpu")
        self.train_state = state(size, filled=rank == 0)
        self.flat = torch.ones(size, dtype=torch.uint8)
        self.other = torch.ones(size, dtype=torch.uint8)

    def acts(self) -> dict[str, Callable[[], None]]:
        """What is measured, by name; both processes do all of it at the same time, a copy is made by the receiver alone."""
        return {
            "copy 1": lambda: self.copy(1),
            "remote_memory": lambda: self.move("remote_memory"),
            "copy 2": lambda: self.copy(2),
            "gloo": self.message,
            "shared_memory": lambda: self.move("shared_memory"),
            "group": lambda: self.move("group"),
        }

    def timed(self, act: Callable[[], None]) -> float:
        self.meet()
        began = _clock()
        act()
        return _clock() - began

    def meet(self) -> None:
        self.group.all_reduce(torch.zeros(1))

    def copy(self, threads: int) -> None:
        if self.rank == 1:
            parts = list(zip(self.other.chunk(threads), self.flat.chunk(threads), strict=True))
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda pair: pair[0].copy_(pair[1]), parts))

    def message(self) -> None:
        if self.rank == 0:
            self.group.send(self.flat, 1, 1).wait()
        else:
            self.group.receive(self.other, 0, 1).wait()

    def move(self, way: str) -> None:
        moves = [[0, 1, layer] for layer in range(LAYERS)]
        moved = transfer_state(self.group, Quiet(), self.train_state, moves, self.rank, allowed=[way])
        if moved.bytes and moved.sources.keys() != {way}:
            raise SystemExit(f"{way} is not possible here, of {transports.NAMES} it was {[*moved.sources]}")


def state(size: int, *, filled: bool) -> TrainState:
    """A model with AdamW's state of `size` bytes together; a fresh worker has no optimizer state yet."""
    numbers = size // (4 * STATE_PER_PARAMETER * LAYERS)
    width = 1024
    layers = [nn.Linear(width, numbers // width, bias=False) for _ in range(LAYERS)]
    parameters: list[Tensor] = [layer.weight for layer in layers]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    if filled:
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    return TrainState(layers, optimizer)


if __name__ == "__main__":
    sys.exit(main())
