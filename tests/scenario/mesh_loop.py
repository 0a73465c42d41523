"""A job whose ranks are a mesh of two pipeline stages with two tensor ranks each, with a collective in each dimension and step.

    python mesh_loop.py FILE

While FILE is there, rank 1 does not begin the collective of all ranks.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import eagle_eye


def main() -> None:
    """For ever."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    late = Path(sys.argv[1])
    sums = torch.ones(4)
    for _ in eagle_eye.monitor().steps(range(1_000_000)):
        time.sleep(0.05)
        dist.all_reduce(sums, group=mesh["tp"].get_group())
        dist.all_reduce(sums, group=mesh["pp"].get_group())
        while dist.get_rank() == 1 and late.exists():
            time.sleep(0.05)
        dist.all_reduce(sums)
        sums.fill_(1.0)


if __name__ == "__main__":
    main()
