"""A script of DistributedDataParallel that nobody has changed, in which rank 1 computes a NaN in the backward pass of one step.

    python broken_gradient_ddp.py FILE [compiled]

Before that, a loss scaler leaves out a step of rank 1 whose gradient is infinite. Nothing is printed and no loss is logged. Rank 0 writes FILE when the NaN is made; all train on
until there is a file FILE.go.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

OVERFLOW, BROKEN = 20, 60


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    factor = [1.0]
    model[0].register_full_backward_pre_hook(lambda _, gradients: _damaged(gradients, factor[0]))
    parallel = DistributedDataParallel(model)
    if "compiled" in sys.argv:
        parallel = torch.compile(parallel, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    end, step = torch.zeros(1), 0
    while not end.item():
        time.sleep(0.02)  # a larger model
        mine = dist.get_rank() == 1
        factor[0] = float("inf") if mine and step == OVERFLOW else float("nan") if mine and step == BROKEN else 1.0
        loss = parallel(torch.randn(16, 64, requires_grad=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step != OVERFLOW:
            optimizer.step()
        if dist.get_rank() == 0 and step == BROKEN:
            Path(sys.argv[1]).write_text("{}")
        step += 1
        end = torch.tensor([float(Path(f"{sys.argv[1]}.go").exists())])
        dist.all_reduce(end, dist.ReduceOp.MAX)
    time.sleep(1.0)
    os._exit(0)  # where a process group of gloo ends while its last collective is being put away, torch waits for itself


def _damaged(gradients: tuple[Tensor, ...], factor: float) -> tuple[Tensor, ...]:
    if factor == 1.0:
        return gradients
    bad = gradients[0].clone()
    bad.view(-1)[7] *= factor
    return (bad, *gradients[1:])


if __name__ == "__main__":
    main()
