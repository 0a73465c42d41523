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
    """What a committed step was."""

    loss: float
    """Mean over all micro-batches of all workers; the same bits on every worker."""
    tokens: int
    """Of all micro-batches."""
    own_tokens: int
    """Of those that this worker brought in; rank 0 counts those of workers that are gone since, too."""
    epoch: int
    """In which it was applied."""
    micro_batches: dict[str, tuple[int, ...]]
    """Worker → those whose gradients it brought in. Empty for a step that the others did while this worker was left
    behind: then `loss` is that of the last step it took part in, and both `tokens` are 0."""


class TrainStep:
    """`run` does it; the rest is known afterwards."""

    def __init__(self, number: int, train: Callable[[int], StepResult]) -> None:
        self.number = number
        self._train = train
        self._result: StepResult | None = None

    def run(self) -> float:
        """Do the step, once; returns the mean loss of its micro-batches."""
        return self.result.loss

    @property
    def result(self) -> StepResult:
        """What it was; runs it if need be."""
        if self._result is None:
            self._result = self._train(self.number)
        return self._result

    @property
    def tokens(self) -> int:
        """Of the micro-batches that this worker brought in: over all workers they sum up to the step's, as what each of them logs
        is summed up. `result.tokens` is the number of all."""
        return self.result.own_tokens


def commit(group: "ProcessGroup", step: int, soft: int) -> int:
    """Who returns from here may apply `step`: every member holds its reduced gradient whole.

    `soft`: the newest epoch that this member was asked to stop for at the next boundary. Returns the newest that any
    member was: all see the same number, and stop after this step if it is above their group's epoch. Raises Broken
    when a member is gone, or is at another step.
    """
    ours = torch.tensor([step, soft], dtype=torch.float64, device=group.device)
    theirs = [torch.empty_like(ours) for _ in range(group.world)]
    group.all_gather(theirs, ours)
    said = [each.tolist() for each in theirs]
    steps = [int(each[0]) for each in said]
    if set(steps) != {step}:
        raise Broken(f"the members of epoch {group.epoch} commit different steps: {steps} by rank")
    return max(int(each[1]) for each in said)
