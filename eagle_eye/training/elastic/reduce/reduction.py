"""`Reduction`, and the choice between its two implementations, "exact" and "fast", each with its accumulator."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from eagle_eye.errors import ConfigError

from .accumulator import Accumulator, TreeAccumulator
from .exact import ExactReduction
from .fast import FastReduction
from .gradients import Gradients

if TYPE_CHECKING:
    from eagle_eye.training.elastic.process_group.process_group import ProcessGroup

NAMES = ("exact", "fast")


class Reduction(Protocol):
    """Computes the mean gradient over all micro-batches from what the workers have accumulated."""

    def overlap(self, group: "ProcessGroup", gradients: Any) -> AbstractContextManager[None]:
        """Context of begin, run and finish of the worker's last micro-batch of the step; `reduce` must follow."""

    def reduce(self, group: "ProcessGroup", gradients: Any, current: Sequence[Sequence[int]], reduced: list[Tensor | None]) -> None:
        """Fill `reduced`, one entry per segment, each set once it is whole.

        `current`: the micro-batches that each rank contributes. The accumulated gradients are only read. Raises Broken
        after it has aborted the group.
        """


def make_reduction(name: str, parameters: Sequence[Tensor], total: int) -> tuple[Gradients, Reduction]:
    """"exact": same bits for any number of workers. "fast": overlaps the backward, equal within float tolerance.

    `total`: micro-batches of a step over all workers. Raises ConfigError for another name.
    """
    if name == "exact":
        return TreeAccumulator(parameters, total), ExactReduction()
    if name == "fast":
        return Accumulator(parameters, total), FastReduction()
    raise ConfigError(f"reduction={name!r} is none of {', '.join(NAMES)}")
