"""DistributedDataParallel with a sampler and a scheduler."""

import itertools

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from benchmarks.collect.unmodified.steps_log import StepsLog


def main() -> None:
    """Train until the process is ended."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(8192, 256), torch.randn(8192, 1))
    sampler = DistributedSampler(data)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    log = StepsLog()
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_size=256, sampler=sampler):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()
            log.step_done()


if __name__ == "__main__":
    main()
