"""Finish a step that broke after its reduction: all segments of the mean are there, but not everybody has all."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .gradients import Gradients

if TYPE_CHECKING:
    from eagle_eye.training.elastic.process_group.process_group import ProcessGroup, Work


def resume_reduction(
    group: "ProcessGroup", gradients: Gradients, givers: Sequence[int], reduced: list[Tensor | None], *, needs_none: bool = False
) -> int:
    """Fill the gaps in `reduced`; returns the bytes that this member received.

    `givers`: the rank that has each segment. `needs_none`: this member has applied the step already, or takes its
    state from elsewhere. Every member of the group calls this. Raises Broken; what is there stays then.
    """
    wanted = _who_wants_what(group, [not needs_none and segment is None for segment in reduced])
    output = gradients.open_output()
    works: list[Work] = []
    arriving: list[int] = []
    for index, span in enumerate(gradients.segments):
        for taker in range(group.world):
            if not wanted[taker][index]:
                continue
            if taker == group.rank:
                works.append(group.receive(output[span], givers[index], index))
                arriving.append(index)
            elif givers[index] == group.rank:
                works.append(_give(group, reduced[index], taker, index))
    for work in works:
        work.wait()
    gradients.close_output()
    for index in arriving:
        reduced[index] = output[gradients.segments[index]]
    return sum(4 * (gradients.segments[index].stop - gradients.segments[index].start) for index in arriving)


def _who_wants_what(group: "ProcessGroup", wanted: Sequence[bool]) -> list[list[bool]]:
    """By rank, for each segment."""
    ours = torch.tensor(wanted, dtype=torch.uint8, device=group.device)
    theirs = [torch.empty_like(ours) for _ in range(group.world)]
    group.all_gather(theirs, ours)
    return [[bool(each) for each in of_rank.tolist()] for of_rank in theirs]


def _give(group: "ProcessGroup", segment: Tensor | None, taker: int, index: int) -> "Work":
    if segment is None:
        raise ValueError(f"rank {group.rank} is to give segment {index} of the mean gradient, which it does not have")
    return group.send(segment, taker, index)
