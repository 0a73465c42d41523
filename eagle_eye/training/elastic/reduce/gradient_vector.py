"""A step's gradients as one flat fp32 vector, the same on every worker.

    0                 loss of each micro-batch: its worker fills the slot, all others hold zero there,
    total             tokens of each, likewise: in a sum over workers every slot is one number plus zeros, hence exact
    (zeros up to a multiple of 64)
    head              gradients of the parameters, in the order given

The losses are in the vector so that every worker that holds the sum knows the step's loss, also when a worker that
computed a part of it has died since. The vector is divided into segments of equal length, at most 8 MiB, that depend on
the model alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_eye.training.elastic.train_state import huge_pages

SEGMENT_BYTES = 8 << 20
_ALIGNED = 64
"""Elements: parts of the vector begin at multiples of it, for caches and vector units."""


@dataclass(frozen=True, slots=True)
class MicroBatchStats:
    """Loss and tokens of each micro-batch of a step."""

    losses: tuple[float, ...]
    """By micro-batch, as their fp32 values."""
    counts: tuple[int, ...]
    """Tokens, by micro-batch."""

    @property
    def tokens(self) -> int:
        """Of all of them."""
        return sum(self.counts)

    @property
    def loss(self) -> float:
        """Mean over the micro-batches, correctly rounded, so that it has the same bits everywhere."""
        if not all(map(math.isfinite, self.losses)):
            return sum(self.losses) / len(self.losses)
        return math.fsum(self.losses) / len(self.losses)


class GradientVector:
    """The layout of the vector: the position of each parameter's gradient, and the segments."""

    def __init__(self, parameters: Sequence[Tensor], total: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.total = total
        self.head = _round_up(2 * total)
        """Number of elements before the first gradient."""
        self.spans = _spans(parameters, self.head)
        """Elements of each parameter."""
        self.size = self.spans[-1].stop if self.spans else self.head
        self.segments = _segments(self.size, segment_bytes // 4)
        self._shapes = [parameter.shape for parameter in parameters]
        self._device = parameters[0].device if parameters else torch.device("cpu")

    @property
    def bytes(self) -> int:
        """Of one vector."""
        return 4 * self.size

    def new(self) -> Tensor:
        """A vector of zeros, shape (size,)."""
        made = torch.empty(self.size, dtype=torch.float32, device=self._device)
        huge_pages.advise(made)  # one page fault in place of 512
        return made.zero_()

    def views(self, flat: Tensor) -> list[Tensor]:
        """Its gradients in the shapes of their parameters; they share its memory."""
        return [flat[span].view(shape) for span, shape in zip(self.spans, self._shapes, strict=True)]

    def mean(self, total: Tensor, into: Tensor, first: int) -> None:
        """Put a part of the mean over all micro-batches into `into`, given the same part of the sum.

        `first`: position of its first element in the vector. The head holds no means and is copied as it is.
        """
        head = min(max(0, self.head - first), total.numel())
        if head:
            into[:head].copy_(total[:head])
        torch.div(total[head:], self.total, out=into[head:])

    def write_stats(self, flat: Tensor, micro_batch: int, loss: float, tokens: int) -> None:
        """Write loss and tokens of a micro-batch into its slots."""
        flat[micro_batch] = loss
        flat[self.total + micro_batch] = tokens

    def stats(self, flat: Tensor) -> MicroBatchStats:
        """Read the slots of a complete sum."""
        numbers: list[Any] = flat[: 2 * self.total].tolist()
        return MicroBatchStats(tuple(numbers[: self.total]), tuple(map(int, numbers[self.total :])))


def _spans(parameters: Sequence[Tensor], first: int) -> list[slice]:
    spans = []
    for parameter in parameters:
        spans.append(slice(first, first + parameter.numel()))
        first = spans[-1].stop
    return spans


def _segments(size: int, longest: int) -> list[slice]:
    count = -(-size // max(_ALIGNED, longest))
    length = _round_up(-(-size // count))
    return [slice(first, min(first + length, size)) for first in range(0, size, length)]


def _round_up(elements: int) -> int:
    return -(-elements // _ALIGNED) * _ALIGNED
