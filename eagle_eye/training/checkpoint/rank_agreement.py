"""What all ranks of a job say of a checkpoint that they are about to load: they load the same step, or none.

Every rank calls these in the same order, with torch.distributed initialized; a process that is alone agrees with itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch


class CopyKey(NamedTuple):
    """Which copy in memory it is, on whichever rank: a job may come to the same step again after each start, and parts of two attempts are no state."""

    step: int
    epoch: int
    """Of the job, in which it was made."""


def agreed_step(steps: Sequence[int], most: int) -> int:
    """The newest step that all ranks hold; -1 if there is none. `steps`: ours, newest first; each rank tells `most` of them."""
    if not is_distributed():
        return max(steps, default=-1)
    ours = torch.full((most,), -1, dtype=torch.int64)
    told = list(steps)[:most]
    ours[: len(told)] = torch.tensor(told, dtype=torch.int64)
    held = [set(each.tolist()) for each in _gathered(ours)]
    return max(set.intersection(*held) - {-1}, default=-1)


def agreed_copy(copies: Sequence[CopyKey], most: int) -> CopyKey | None:
    """The newest step that all ranks hold as one and the same attempt made it; None if there is none. `copies`: ours, newest first; each rank tells `most` of them."""
    if not is_distributed():
        return max(copies, default=None)
    ours = torch.full((most, 2), -1, dtype=torch.int64)
    for row, copy in zip(ours, copies, strict=False):
        row[:] = torch.tensor(copy, dtype=torch.int64)
    held = [{CopyKey(*row) for row in each.tolist()} for each in _gathered(ours)]
    return max(set.intersection(*held) - {CopyKey(-1, -1)}, default=None)


def on_all(true_here: bool) -> bool:
    """Whether it is so on all ranks."""
    return true_here if not is_distributed() else all(bool(each.item()) for each in _gathered(torch.tensor([int(true_here)])))


def is_distributed() -> bool:
    """Whether there are other ranks to agree with."""
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


def _gathered(ours: torch.Tensor) -> list[torch.Tensor]:
    if "gloo" not in torch.distributed.get_backend() and torch.cuda.is_available():
        ours = ours.to("cuda")  # NCCL knows no other memory
    theirs = [torch.empty_like(ours) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(theirs, ours)
    return theirs
