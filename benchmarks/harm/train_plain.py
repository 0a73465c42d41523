"""A plain data-parallel training script that follows a plan; with `--marks` it makes eagle_eye's, else it knows nothing of it.

    eagle-eye launch --nproc-per-node 4 -- python -m benchmarks.harm.train_plain --folder DIR [--marks]
"""

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.elastic.commits import Written
from benchmarks.harm.acts import ACTS, PHASES, phase_of, scratch
from benchmarks.harm.faults import FaultRunner
from benchmarks.harm.hanging import KINDS, hang
from benchmarks.harm.plan import AT_START, COMMITS, PlannedAct, PlanRunner

STEP_S = 0.05
"""Most of a step is waiting, so that several jobs share a small machine."""
WIDTH = 64


class Training:
    """Model, data and loop of one rank."""

    def __init__(self, folder: Path, faults: FaultRunner, monitor: Any, *, width: int = WIDTH, compute_s: float = 0.0) -> None:
        self._monitor, self._width, self._compute_s = monitor, width, compute_s
        self._faults = faults
        self._runner = PlanRunner(folder, dist.get_rank(), dist.get_world_size())
        self._done = Written(os.environ.get("EAGLE_EYE_WORKER", f"rank-{dist.get_rank()}"), folder / COMMITS)
        self._others = dist.new_group()
        self._model = torch.nn.Linear(width, width)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)

    def batches(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The input, which stalls when the plan says so."""
        for step in range(self._runner.plan.steps):
            self._act(step, data=True)
            yield step, torch.randn(8, self._width)

    def run(self) -> None:
        """All steps."""
        batches = self._monitor.steps(self.batches()) if self._monitor is not None else self.batches()
        for step, batch in batches:
            with self._phase("forward"):
                self._faults.strike(step)
                self._act(step, data=False)
                loss = self._model(batch).square().mean()
                time.sleep(STEP_S - self._compute_s)
                self._compute()
            loss.backward()
            with self._phase("communication"):
                self._reduce()
            with self._phase("optimizer"):
                self._optimizer.step()
                self._optimizer.zero_grad()
            self._done.add(step, float(loss))
            if self._monitor is not None:
                self._monitor.log(loss=float(loss), tokens=float(batch.numel()))

    def _compute(self) -> None:
        """So many seconds of a processor, however long that takes."""
        end = time.thread_time() + self._compute_s
        while time.thread_time() < end:
            sum(range(1_000))

    def _reduce(self) -> None:
        for parameter in self._model.parameters():
            dist.all_reduce(parameter.grad)

    def _phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return self._monitor.phase(name) if self._monitor is not None else contextlib.nullcontext()

    def _act(self, step: int, *, data: bool) -> None:
        for number, act in self._runner.due(step, lambda kind: (PHASES.get(kind) == "data") is data):
            self._runner.note(number, "began")
            self._do(act)
            self._runner.note(number, "ended")

    def _do(self, act: PlannedAct) -> None:
        if act.kind in KINDS:
            hang(act.kind, self._others)
            return
        with self._phase(phase_of(act.kind)) if act.labelled else contextlib.nullcontext():
            ACTS[act.kind](self._runner.seconds(act))


def main() -> None:
    """Train to the end of the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--marks", action="store_true")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model's only layer (default: %(default)s)")
    parser.add_argument("--compute-s", type=float, default=0.0, help=f"processor time of a step's {STEP_S} s (default: next to none)")
    parser.add_argument("--timeout-s", type=float, default=1800.0, help="of a collective: torch's own remedy for a hang")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scratch(options.folder)
    faults = FaultRunner(options.folder, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout_s))
    monitor = None
    if options.marks:
        import eagle_eye

        monitor = eagle_eye.monitor()
    faults.strike(AT_START)
    try:
        Training(options.folder, faults, monitor, width=options.width, compute_s=options.compute_s).run()
    except RuntimeError as error:
        print(f"{time.time()!r} rank {dist.get_rank()} raised: {str(error).splitlines()[0]}", flush=True)
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
