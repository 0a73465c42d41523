"""The commit of a step: members agree that all of them hold the whole mean gradient, before anybody applies it."""

from typing import TYPE_CHECKING

import torch

from eagle_eye.errors import Broken

if TYPE_CHECKING:
    from .process_group.process_group import ProcessGroup


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
