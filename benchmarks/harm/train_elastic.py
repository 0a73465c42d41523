"""An elastic training script that follows a plan: a rank does its acts between two steps, or while it makes a batch.

    eagle-eye launch --nproc-per-node 4 -- python -m benchmarks.harm.train_elastic --folder DIR
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import Tensor

import eagle_eye
from benchmarks.elastic.byte_gpt import MICRO_BATCHES, SIZES, batch_of, layers_of, loss_of, optimizer_of
from benchmarks.elastic.commits import Written
from benchmarks.harm.acts import ACTS, PHASES, phase_of, scratch
from benchmarks.harm.faults import FaultRunner
from benchmarks.harm.plan import AT_START, COMMITS, PlanRunner
from benchmarks.harm.train_plain import STEP_S

SIZE = SIZES["small"]
SLOTS, SECOND_NODE = 2, "b"
"""Workers of a node, and how the name of the job's second node ends (deployment.py)."""


class Acts:
    """This worker's part of the plan."""

    def __init__(self, folder: Path) -> None:
        self._runner = PlanRunner(folder, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        self.faults = FaultRunner(folder, _first_rank(), int(os.environ["WORLD_SIZE"]))
        self.steps = self._runner.plan.steps
        self._monitor = eagle_eye.monitor()

    def batch(self, step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        """The input, which stalls when the plan says so."""
        self.do(step, data=True)
        self.faults.strike(step, micro_batch)
        return batch_of(SIZE, step, micro_batch)

    def do(self, step: int, *, data: bool) -> None:
        """Acts of this step."""
        for number, act in self._runner.due(step, lambda kind: (PHASES.get(kind) == "data") is data):
            self._runner.note(number, "began")
            if act.labelled:
                with self._monitor.phase(phase_of(act.kind)):
                    ACTS[act.kind](self._runner.seconds(act))
            else:
                ACTS[act.kind](self._runner.seconds(act))
            self._runner.note(number, "ended")


def _first_rank() -> int:
    """Of this place on its node: a worker that replaces another one gets the next free rank, not that one's."""
    return SLOTS * os.environ["EAGLE_EYE_NODE"].endswith(SECOND_NODE) + int(os.environ["EAGLE_EYE_SLOT"])


def main() -> None:
    """Train to the end of the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    scratch(options.folder)
    acts = Acts(options.folder)
    acts.faults.strike(AT_START)
    worker = eagle_eye.elastic(
        layers=layers_of(SIZE), loss=loss_of, optimizer=optimizer_of, batch=acts.batch, micro_batches=MICRO_BATCHES
    )
    done = Written(os.environ["EAGLE_EYE_WORKER"], options.folder / COMMITS)
    for step in worker.steps(until=acts.steps):
        acts.faults.strike(step.number)
        acts.do(step.number, data=False)
        time.sleep(STEP_S)
        loss = step.run()
        if step.result.micro_batches:  # else the others did it while this worker was fenced out
            done.add(step.number, loss, epoch=step.result.epoch)


if __name__ == "__main__":
    main()
