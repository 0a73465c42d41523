"""A script of FullyShardedDataParallel that asks for steps to be run again.

    python replayed_fsdp.py FILE STEPS flat|original|inner

flat, original: its parameters are the flat ones or those of the modules. inner: the module that was wrapped later is the one that was given. Each rank writes its losses to FILE.RANK.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

import eagle_eye
from eagle_eye.training import step_replay


def main() -> None:
    """Train."""
    file, steps, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    step_replay.LEAST = 4
    vars(step_replay)["SHARE"] = 1e6
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    monitor, batch, runs = eagle_eye.monitor(), [torch.zeros(0)], [0]
    network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

    def loss() -> Tensor:
        output: Tensor = model(batch[0])
        return output.square().mean()

    def again() -> Tensor:
        runs[0] += 1
        return loss()

    if kind == "inner":
        monitor.replicas(network, replay=again)
    model = FullyShardedDataParallel(network, use_orig_params=kind != "flat", device_id=torch.device("cpu"))
    if kind != "inner":
        monitor.replicas(model, replay=again)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in monitor.steps(range(steps)):
        torch.manual_seed(step * 2 + dist.get_rank())
        batch[0] = torch.randn(4, 8)
        optimizer.zero_grad()
        found = loss()
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    Path(f"{file}.{dist.get_rank()}").write_text(json.dumps({"losses": losses, "runs": runs[0], "faults": monitor.status()["faults"]}))
    dist.barrier()
    time.sleep(0.5)
    os._exit(0)  # where a process group of gloo ends while its last collective is being put away, torch waits for itself


if __name__ == "__main__":
    main()
