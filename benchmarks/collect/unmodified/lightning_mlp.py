"""A Trainer of Lightning with its ddp strategy."""

import logging
import os
import warnings
from typing import Any

import pytorch_lightning as lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.collect.unmodified.steps_log import StepsLog


class Model(lightning.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1))

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class WriteSteps(lightning.Callback):
    """Logs each step."""

    def __init__(self) -> None:
        self._log = StepsLog()

    def on_train_batch_end(self, *_: Any) -> None:
        self._log.step_done()


def main() -> None:
    """Train until the process is ended."""
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(8192, 256), torch.randn(8192, 1))
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(
        max_steps=-1, max_epochs=-1, accelerator="cpu", strategy="ddp", devices=local, num_nodes=int(os.environ["WORLD_SIZE"]) // local, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[WriteSteps()],
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(data, batch_size=256))


if __name__ == "__main__":
    main()
