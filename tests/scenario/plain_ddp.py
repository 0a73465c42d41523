"""A script of DistributedDataParallel as people write it: nothing in it knows of Eagle Eye.

    python plain_ddp.py FILE [STEPS]

Rank 0 writes its steps and the seconds that one took to FILE; all stay until there is a file FILE.go, as one that uploads its model.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WARM_UP = 10


def main() -> None:
    """Train STEPS steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    steps, batch_size = int(sys.argv[2]) if len(sys.argv) > 2 else 80, 16
    data = TensorDataset(torch.randn(steps * batch_size * dist.get_world_size(), 64), torch.randn(steps * batch_size * dist.get_world_size(), 1))
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    began = done = 0.0
    for step, (inputs, targets) in enumerate(DataLoader(data, batch_size=batch_size, sampler=DistributedSampler(data))):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        time.sleep(0.03)  # a larger model
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done = time.monotonic()
        if step + 1 == WARM_UP:
            began = done
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps({"steps": steps, "step_s": (done - began) / (steps - WARM_UP)}))
    while not Path(f"{sys.argv[1]}.go").exists():
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
