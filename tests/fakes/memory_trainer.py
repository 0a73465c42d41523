"""A training loop whose state is kept in memory, in this process."""

import time
from pathlib import Path
from typing import Any

import torch

from eagle_eye.training.checkpoint import state_copy
from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints


class Trainer:
    """A model of 1.5 MiB whose optimizer adds one to each parameter."""

    def __init__(self, path: Path, **options: Any) -> None:
        torch.manual_seed(0)
        self.parameters = [torch.nn.Parameter(torch.randn(count)) for count in (300_000, 7, 90_000)]
        self.statistics = torch.zeros(3)
        self.optimizer = torch.optim.SGD(self.parameters, lr=1.0, momentum=0.5)
        self.memory = MemoryCheckpoints([self.optimizer], path, **options)
        self.position = 0

    def state(self) -> dict[str, Any]:
        model = {f"p{index}": parameter.detach() for index, parameter in enumerate(self.parameters)}
        return {"model": {**model, "statistics": self.statistics}, "optimizer": self.optimizer.state_dict(), "position": self.position, "names": ("a", None)}

    def step(self) -> None:
        for parameter in self.parameters:
            parameter.grad = -torch.ones_like(parameter)
        self.optimizer.step()
        self.statistics += 1
        self.position += 1

    def values(self) -> list[torch.Tensor]:
        return [each.detach().clone() for each in (*self.parameters, self.statistics)]

    def saved(self, step: int) -> list[torch.Tensor]:
        """Do a step, save it, and wait until it is whole."""
        self.step()
        values = self.values()
        assert self.memory.save(self.state(), step)
        self.memory.finish()
        return values


def begun(trainer: Trainer) -> state_copy.StateCopy:
    """The copy under way, of which the thread has a piece in its hands."""
    copy = trainer.memory._copy
    assert copy is not None
    while not any(queue and queue[0].given for queue in copy._queues.values()):
        time.sleep(0.001)
    return copy
