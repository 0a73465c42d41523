"""A small data-parallel training on torch.distributed that does what it is ordered to; with `--marks` it makes eagle_eye's, else it knows nothing of it and prints its loss.

    eagle-eye launch --nproc-per-node 4 -- python -m benchmarks.watch.live.train --folder DIR [--marks]

A step computes for some milliseconds and waits for the rest of its time, as a host waits for its GPU: four workers, two agents and a server share a small machine.
"""

import argparse
import contextlib
import gc
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.elastic.commits import Written
from benchmarks.harm.acts import ACTS, phase_of, scratch
from benchmarks.harm.faults import FAULTS, MIB, SMALL_DISK, FaultSite
from benchmarks.harm.hanging import hang
from benchmarks.harm.plan import COMMITS, STRUCK, Note, Plan, write_note
from benchmarks.watch.live.orders import DAMAGES, ERRORS, HANGS, PAUSES, SAVE, Orders

WIDTH, BATCH = 320, 32
FORWARD_S, BACKWARD_S = 0.04, 0.06
BUSY = 0.2
"""Share of these that a processor works."""
PRINTED = 10
"""Steps between two lines."""
SEED = 7


class Training:
    """Model, data and loop of one rank."""

    def __init__(self, folder: Path, monitor: Any) -> None:
        self._folder, self._monitor = folder, monitor
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._orders = Orders(folder, self._rank)
        self._others = dist.new_group()
        self._done = Written(os.environ.get("EAGLE_EYE_WORKER", f"rank-{self._rank}"), folder / COMMITS)
        torch.manual_seed(SEED)
        self._teacher = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
        self._model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
        self._model[0].register_full_backward_pre_hook(self._damage_gradient)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.05)
        if monitor is not None:
            monitor.replicas(self._model.parameters())
        self._number = -1
        """Of the step under way."""
        self._draws = torch.Generator().manual_seed(SEED + self._rank)

    def batches(self, steps: int) -> Iterator[tuple[int, Tensor]]:
        """The input, which is slow, or stands still, where that is ordered."""
        batch = torch.empty(0)
        for step in range(steps):
            time.sleep(self._orders.amount("slow_data", step))
            self._pause(step, ("data_poll",))
            if not self._orders.amount("same_data", step):
                batch = torch.randn(BATCH, WIDTH, generator=self._draws)
            yield step, batch

    def run(self) -> None:
        """To the end of the plan."""
        batches = self.batches(Plan.read(self._folder).steps)
        for step, batch in self._monitor.steps(batches) if self._monitor is not None else batches:
            self._obey(step)
            loss = self._step(step, batch)
            self._tell(step, loss, batch)

    def _step(self, step: int, batch: Tensor) -> float:
        self._number = step
        slower = self._orders.amount("slower", step) or 1.0
        with self._phase("forward"):
            loss = torch.nn.functional.mse_loss(self._model(batch), torch.tanh(batch @ self._teacher))
            _work(FORWARD_S * slower)
        with self._phase("backward"):
            loss.backward()
            _work(BACKWARD_S * slower)
        self._norm = float(torch.nn.utils.get_total_norm([each.grad for each in self._model.parameters() if each.grad is not None]))
        with self._phase("communication"):
            for parameter in self._model.parameters():
                dist.all_reduce(parameter.grad)
        with self._phase("optimizer"):
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= self._world
            self._optimizer.step()
            self._optimizer.zero_grad()
        self._turn_bit(step)
        return float(loss)

    def _tell(self, step: int, loss: float, batch: Tensor) -> None:
        self._done.add(step, loss)
        if self._monitor is not None:
            self._monitor.log(loss=loss, grad_norm=self._norm, tokens=float(batch.numel()))
        elif step % PRINTED == 0:
            print(f"step {step} loss {loss:.5f}", flush=True)

    def _phase(self, name: str) -> AbstractContextManager[Any]:
        return self._monitor.phase(name) if self._monitor is not None else contextlib.nullcontext()

    # --- what is ordered ---------------------------------------------------------------------------------------------

    def _obey(self, step: int) -> None:
        objects = self._orders.amount("garbage", step)
        if objects:
            _collect(int(objects))
        self._pause(step, tuple(each for each in PAUSES if each != "data_poll"))
        if self._orders.once(SAVE, step):
            from eagle_eye.training import checkpoint

            checkpoint.save({"model": self._model.state_dict(), "momentum": torch.zeros(MIB)}, step + 1, self._folder / SMALL_DISK)
        for order in ERRORS:
            if self._orders.once(order, step):
                self._strike()
                FAULTS[order](FaultSite(self._folder, step, -1))
        for order in HANGS:
            if self._orders.once(order, step):
                self._strike()
                hang(order, self._others)

    def _pause(self, step: int, kinds: tuple[str, ...]) -> None:
        for kind in kinds:
            if seconds := self._orders.once(kind, step):
                with self._phase(phase_of(kind)) if kind != "data_poll" else contextlib.nullcontext():
                    ACTS[kind](seconds)

    def _damage_gradient(self, _module: torch.nn.Module, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One number that flows back into the first layer is none: as a device makes it that computes wrongly."""
        if not self._orders.once(DAMAGES[0], self._number):
            return gradients
        self._strike()
        damaged = gradients[0].clone()
        damaged.view(-1)[WIDTH + 1] = float("nan")
        return (damaged, *gradients[1:])

    def _turn_bit(self, step: int) -> None:
        if bit := self._orders.once(DAMAGES[1], step):
            self._strike()
            weights = next(self._model.parameters()).data.view(torch.int32).view(-1)
            weights[WIDTH + 1] ^= 1 << int(bit)

    def _strike(self) -> None:
        write_note(self._folder, Note(0, self._rank, STRUCK, time.time()))


def _work(seconds: float) -> None:
    """A processor works for a part of it; the rest is waiting."""
    end = time.thread_time() + BUSY * seconds
    while time.thread_time() < end:
        sum(range(1_000))
    time.sleep((1.0 - BUSY) * seconds)


class _Cycle:
    """What only the garbage collector frees."""

    def __init__(self) -> None:
        self.myself: Any = self
        self.values = list(range(8))


def _collect(objects: int) -> None:
    """A storm: so many objects that refer to themselves, and a full collection."""
    kept = [_Cycle() for _ in range(objects)]
    gc.collect()
    del kept
    gc.collect()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--marks", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scratch(options.folder)
    dist.init_process_group("gloo")
    monitor = None
    if options.marks:
        import eagle_eye

        monitor = eagle_eye.monitor()
    Training(options.folder, monitor).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
