"""An elastic worker that trains alone, in this process."""

import pytest
import torch
from torch import nn

from eagle_eye.training import probe
from eagle_eye.training.elastic.api import assemble
from eagle_eye.training.elastic.local_session import LocalSession
from eagle_eye.training.elastic.model import TrainedModel


def test_an_exception_of_the_users_code_says_in_which_micro_batch_it_was_raised() -> None:
    def batch(step: int, micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        if (step, micro_batch) == (1, 2):
            raise ValueError("negative length")
        return torch.ones(1, 2), torch.ones(1, 2)

    trained = TrainedModel([nn.Linear(2, 2)], loss=nn.functional.mse_loss, batch=batch, optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1))
    worker = assemble(trained, LocalSession(), probe.Monitor(None), micro_batches=4, reduction="exact", save_every=0, checkpoints=None)
    steps = worker.steps(until=3)
    next(steps).run()
    second = next(steps)
    with pytest.raises(ValueError, match="negative length") as raised:
        second.run()
    assert raised.value.__notes__ == ["in step 1, micro-batch 2"]
