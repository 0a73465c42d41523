"""One training step: `TrainStep` and `StepResult` for the user's loop, and `commit`, by which workers agree on it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from eagle_eye.errors import Broken

if TYPE_CHECKING:
    from .process_group.process_group import ProcessGroup


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a committed step."""

    loss: float
    """Mean over all micro-batches of all workers; the same bits on every worker."""
    tokens: int
    """Of all micro-batches."""
    own_tokens: int
    """Of those that this worker contributed; rank 0 counts those of workers that are gone since, too."""
    epoch: int
    """The epoch in which it was applied."""
    micro_batches: dict[str, tuple[int, ...]]
    """Worker → the micro-batches whose gradients it contributed. Empty for a step that the other workers did while this one
    was fenced out: then `loss` is that of the last step it took part in, and both `tokens` are 0."""


class TrainStep:
    """A step that the user's loop gets from `ElasticWorker.steps`: `run` does it; the rest is known afterwards."""

    def __init__(self, number: int, train: Callable[[int], StepResult]) -> None:
        self.number = number
        self._train = train
        self._result: StepResult | None = None

    def run(self) -> float:
        """Do the step, once; returns the mean loss of its micro-batches."""
        return self.result.loss

    @property
    def result(self) -> StepResult:
        """Its result; runs the step if that was not done yet."""
        if self._result is None:
            self._result = self._train(self.number)
        return self._result

    @property
    def tokens(self) -> int:
        """Of the micro-batches that this worker contributed: the sum over all workers is that of the step. `result.tokens` is
        the number of all."""
        return self.result.own_tokens


def commit(group: "ProcessGroup", step: int, soft_epoch: int) -> int:
    """Agree to apply `step`: when this returns, every worker of the group holds the whole reduced gradient.

    `soft_epoch`: the newest epoch whose soft fence this worker has received. Returns the newest that any worker has: all
    see the same number, and stop after this step if it is above their group's epoch. Raises Broken when a worker is gone,
    or is at another step.
    """
    ours = torch.tensor([step, soft_epoch], dtype=torch.float64, device=group.device)
    theirs = [torch.empty_like(ours) for _ in range(group.world)]
    group.all_gather(theirs, ours)
    gathered = [each.tolist() for each in theirs]
    steps = [int(each[0]) for each in gathered]
    if set(steps) != {step}:
        raise Broken(f"the workers of epoch {group.epoch} commit different steps: {steps} by rank")
    return max(int(each[1]) for each in gathered)
