"""An elastic worker that trains alone, in this process; its warm-up, after which nothing that it holds is another thing than before."""

from typing import Any

import pytest
import torch
from torch import nn

from eagle_eye.training import probe
from eagle_eye.training.elastic.api import assemble, warm_up
from eagle_eye.training.elastic.local_session import LocalSession
from eagle_eye.training.elastic.model import TrainedModel
from eagle_eye.training.elastic.reduce.reduction import make_reduction
from eagle_eye.training.elastic.train_state.train_state import TrainState


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


# --- warm-up


class Counting(nn.Module):
    """Keeps count of how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("asked", torch.zeros(()))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.asked += 1
        return self.linear(given)


def parts(reduction: str, batch: Any) -> tuple[Any, Any, TrainState]:
    torch.manual_seed(0)
    trained = TrainedModel(
        [Counting(), nn.Dropout(0.5)], loss=nn.functional.mse_loss, batch=batch,
        optimizer=lambda these: torch.optim.AdamW(these, lr=0.1),
    )  # fmt: skip
    gradients, _ = make_reduction(reduction, trained.parameters, 4)
    return trained, gradients, TrainState(trained.layers, trained.optimizer)


def batch(step: int, micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    asked.append((step, micro_batch))
    return torch.ones(2, 4), torch.zeros(2, 4)


asked: list[tuple[int, int]] = []


@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_a_micro_batch_is_rehearsed_and_leaves_nothing(reduction: str) -> None:
    asked.clear()
    trained, gradients, train_state = parts(reduction, batch)
    before = train_state.digest()
    warm_up(trained, gradients, train_state)
    assert asked == [(0, 0)]
    assert (train_state.digest(), gradients.done, len(trained.optimizer.state)) == (before, frozenset(), 0)
    untouched = parts(reduction, batch)
    for one, these in ((trained, gradients), untouched[:2]):
        these.begin(1)
        these.finish(1, *one.run(0, 1))
    sums = [each.sum if reduction == "fast" else each.sums[1, 2] for each in (gradients, untouched[1])]
    assert torch.equal(*sums)
    assert train_state.digest() == untouched[2].digest()


@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_what_the_users_code_raises_is_not_heard_of_before_it_counts(reduction: str) -> None:
    def failing(step: int, micro_batch: int) -> Any:
        if step == 0:
            raise LookupError("no data of step 0 any more")
        return batch(step, micro_batch)

    trained, gradients, train_state = parts(reduction, failing)
    warm_up(trained, gradients, train_state)
    gradients.begin(0)
    gradients.finish(0, *trained.run(1, 0))
    assert gradients.done == {0}
