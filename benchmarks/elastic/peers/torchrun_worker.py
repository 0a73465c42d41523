"""A worker of plain DDP as people write it for torchrun: resumes from the newest checkpoint, writes one after each step.

    torchrun --nproc-per-node 4 -m benchmarks.elastic.peers.torchrun_worker --checkpoints DIR --timeout 1800
"""

import argparse
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.elastic.byte_gpt import MICRO_BATCHES, SIZES, batch_of, layers_of, loss_of, optimizer_of, share_of
from benchmarks.elastic.commits import Written, hang_when_told


def step_of(network: nn.Module, size: str, step: int, rank: int, world: int) -> float:
    """Accumulate a step's gradients, reduced with the last of them. Returns the sum of my losses."""
    total = 0.0
    *early, last = share_of(rank, world)
    for micro in (*early, last):
        network.require_backward_grad_sync = micro == last
        given, targets = batch_of(SIZES[size], step, micro)
        loss = loss_of(network(given), targets)
        (loss * world / MICRO_BATCHES).backward()  # DDP divides by the number of ranks
        total += loss.item()
    return total


def main() -> None:
    """Train until somebody ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=Path)
    parser.add_argument("--timeout", type=float, default=1800.0, help="of a collective, in seconds")
    parser.add_argument("--size", choices=SIZES, default="full")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hang_when_told()
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
    rank, world = dist.get_rank(), dist.get_world_size()
    network = nn.parallel.DistributedDataParallel(nn.Sequential(*layers_of(SIZES[options.size])))
    optimizer = optimizer_of(network.parameters())
    newest = options.checkpoints / "newest.pt"
    step = 0
    if newest.exists():
        found = torch.load(newest, mmap=True)
        network.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        step = found["step"]
    written = Written(str(rank))
    while True:
        loss = step_of(network, options.size, step, rank, world)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0:
            save = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(save, newest.with_suffix(".new"))
            os.replace(newest.with_suffix(".new"), newest)  # noqa: PTH105
        written.add(step - 1, loss)


if __name__ == "__main__":
    main()
