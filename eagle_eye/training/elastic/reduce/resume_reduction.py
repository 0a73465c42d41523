"""Resume a reduction that broke: every segment of the mean is on some worker, but not every worker has all."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .gradients import Gradients

if TYPE_CHECKING:
    from eagle_eye.training.elastic.process_group.process_group import ProcessGroup, Work


def resume_reduction(
    group: "ProcessGroup", gradients: Gradients, senders: Sequence[int], reduced: list[Tensor | None], *, needs_none: bool = False
) -> int:
    """Fill the gaps in `reduced`; returns the bytes that this worker received.

    `senders`: the rank that has each segment. `needs_none`: this worker has applied the step already, or gets its state
    from another one. Every worker of the group calls this. Raises Broken; the segments that are there stay valid then.
    """
    missing = _missing_by_rank(group, [not needs_none and segment is None for segment in reduced])
    output = gradients.open_output()
    works: list[Work] = []
    arriving: list[int] = []
    for index, span in enumerate(gradients.segments):
        for receiver in range(group.world):
            if not missing[receiver][index]:
                continue
            if receiver == group.rank:
                works.append(group.receive(output[span], senders[index], index))
                arriving.append(index)
            elif senders[index] == group.rank:
                works.append(_send(group, reduced[index], receiver, index))
    for work in works:
        work.wait()
    gradients.close_output()
    for index in arriving:
        reduced[index] = output[gradients.segments[index]]
    return sum(4 * (gradients.segments[index].stop - gradients.segments[index].start) for index in arriving)


def _missing_by_rank(group: "ProcessGroup", missing: Sequence[bool]) -> list[list[bool]]:
    """By rank, for each segment."""
    ours = torch.tensor(missing, dtype=torch.uint8, device=group.device)
    theirs = [torch.empty_like(ours) for _ in range(group.world)]
    group.all_gather(theirs, ours)
    return [[bool(each) for each in of_rank.tolist()] for of_rank in theirs]


def _send(group: "ProcessGroup", segment: Tensor | None, receiver: int, index: int) -> "Work":
    if segment is None:
        raise ValueError(f"rank {group.rank} is to send segment {index} of the mean gradient, which it does not have")
    return group.send(segment, receiver, index)
