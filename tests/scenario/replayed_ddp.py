"""A script of DistributedDataParallel that runs steps again, with all that a forward pass changes beside its result: dropout, running statistics, random numbers.

    python replayed_ddp.py FILE STEPS PAUSE_S EVERY [broken]

EVERY: steps between two replays, whatever they cost. Each rank writes what is left of its training to FILE.RANK. broken: rank 1 computes wrongly in one of its replays' two runs, from the fifth replay on; all
train on until there is a file FILE.go.
"""

import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import eagle_eye
from eagle_eye.training import step_replay

LEARNING = 1 + 2 * step_replay.LEARNED
"""Runs before the first replay that is told of."""


class Training:
    """Of one rank."""

    def __init__(self, broken: bool) -> None:
        torch.manual_seed(1)
        self.broken, self.runs = broken and dist.get_rank() == 1, 0
        self.model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 1))
        self.parallel = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        torch.manual_seed(2 + dist.get_rank())
        random.seed(2 + dist.get_rank())
        self.batch = torch.zeros(0)

    def loss(self) -> Tensor:
        output: Tensor = self.parallel(self.batch + random.random())
        return output.square().mean()

    def again(self) -> Tensor:
        self.runs += 1
        wrong = self.broken and self.runs > LEARNING and self.runs % 2 == 0
        return self.loss() * (1.001 if wrong else 1.0)

    def step(self) -> None:
        self.batch = torch.randn(16, 64)
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def left(self) -> str:
        """A digest of all that the next steps would follow from."""
        tensors = [*self.model.state_dict().values(), *(each.grad for each in self.model.parameters())]
        tensors += [each for state in self.optimizer.state_dict()["state"].values() for each in state.values()]
        bits = b"".join(each.numpy().tobytes() for each in [*tensors, torch.get_rng_state()])
        return hashlib.sha256(bits + repr(random.getstate()).encode()).hexdigest()


def main() -> None:
    """Train."""
    file, steps, pause_s, step_replay.LEAST = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])  # type: ignore[misc]
    step_replay.SHARE = 1e6  # type: ignore[misc]
    dist.init_process_group("gloo")
    training, monitor = Training("broken" in sys.argv), eagle_eye.monitor()
    monitor.replicas(training.parallel, replay=training.again)
    end = torch.zeros(1)
    for step in monitor.steps(range(steps)):
        time.sleep(pause_s)  # a larger model
        training.step()
        if "broken" in sys.argv and step % 10 == 0:
            end[0] = float(Path(f"{file}.go").exists())
            dist.all_reduce(end, dist.ReduceOp.MAX)
        if end.item():
            break
    Path(f"{file}.{dist.get_rank()}").write_text(json.dumps({"left": training.left(), "runs": training.runs, "faults": monitor.status()["faults"]}))
    dist.barrier()
    time.sleep(0.5)
    os._exit(0)  # where a process group of gloo ends while its last collective is being put away, torch waits for itself


if __name__ == "__main__":
    main()
