"""An elastic job whose micro-batches are waits, so that workers make it faster however few cores there are.

    python waiting_job.py STEPS SECONDS_A_MICRO_BATCH
"""

import sys
import time

import torch
from torch import Tensor, nn

import eagle_eye

MICRO_BATCHES = 12


def main(steps: int, seconds: float) -> None:
    torch.manual_seed(3)
    torch.set_num_threads(1)

    def batch(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 * step + micro_batch)
        return torch.randn(4, 8, generator=generator), torch.randn(4, 2, generator=generator)

    def loss(given: Tensor, wanted: Tensor) -> Tensor:
        time.sleep(seconds)
        return nn.functional.mse_loss(given, wanted)

    monitor = eagle_eye.monitor()
    worker = eagle_eye.elastic(
        [nn.Linear(8, 16), nn.Linear(16, 2)], loss=loss, batch=batch, micro_batches=MICRO_BATCHES,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3), save_every=0,
    )  # fmt: skip
    for step in worker.steps(until=steps):
        monitor.log(loss=step.run(), tokens=step.tokens)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
