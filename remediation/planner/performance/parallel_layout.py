"""How a job's GPUs are divided: tensor × pipeline × data parallel, and how each works through its micro-batches."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Recompute(IntEnum):
    """What the backward pass works out again instead of remembering it (Korthikanti et al., 2022)."""

    NONE = 0
    SELECTIVE = 1
    """The attention scores."""
    FULL = 2
    """Everything but each layer's input."""


@dataclass(frozen=True, slots=True, order=True)
class ParallelLayout:
    """One way to run a job."""

    tensor: int
    pipeline: int
    data: int
    micro_batch: int
    """Samples of one micro-batch."""
    recompute: Recompute = Recompute.NONE
    interleave: int = 1
    """Chunks of layers that each stage holds (virtual pipeline stages)."""

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        chunks = f", {self.interleave} chunks a stage" if self.interleave > 1 else ""
        return f"tp {self.tensor} × pp {self.pipeline} × dp {self.data}, micro-batch {self.micro_batch}, recompute {self.recompute.name.lower()}{chunks}"


@dataclass(frozen=True, slots=True)
class ParallelLayouts:
    """Many layouts as columns, (layouts,) each: the model works on all at once."""

    tensor: Integers
    pipeline: Integers
    data: Integers
    micro_batch: Integers
    recompute: Integers
    interleave: Integers

    @classmethod
    def of(cls, layouts: Iterable[ParallelLayout]) -> Self:
        chosen = list(layouts)
        return cls(*(np.array([int(getattr(one, field.name)) for one in chosen], dtype=np.int64) for field in fields(cls)))

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, index: int) -> ParallelLayout:
        tensor, pipeline, data, micro_batch, recompute, interleave = (int(getattr(self, field.name)[index]) for field in fields(self))
        return ParallelLayout(tensor, pipeline, data, micro_batch, Recompute(recompute), interleave)

    def where(self, mask: NDArray[np.bool_]) -> "ParallelLayouts":
        """Those for which it is true."""
        return ParallelLayouts(*(getattr(self, field.name)[mask] for field in fields(self)))

    @property
    def gpus(self) -> Integers:
        return self.tensor * self.pipeline * self.data
