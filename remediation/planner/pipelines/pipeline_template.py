"""A pipeline template, and what an iteration of it takes.

Synchronous 1F1B with micro-batches m, stages 0..S-1, latency w_i = forward + backward of one micro-batch, k the last
slowest stage (Oobleck 4.1.2, equations 1 to 4):

    T = sum_i w_i + (m - S + k - 1) w_k + sum_{i >= k} w_i
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

TIE = 1e-9
"""Latencies closer than this are equal; of equal ones the last stage counts as the slowest."""


class PipelineStage(NamedTuple):
    """Layers [first, end) on `gpus` GPUs of one node."""

    first: int
    end: int
    gpus: int


@dataclass(frozen=True, slots=True)
class PipelineTemplate:
    """How a pipeline of so many nodes is cut into stages."""

    nodes: int
    stages: tuple[PipelineStage, ...]
    latencies: tuple[float, ...]
    """Of one micro-batch, per stage."""
    micro_batches: int
    """For which the cut was chosen."""
    time: float
    """Of an iteration with that many micro-batches."""

    @property
    def slowest(self) -> int:
        """The stage that sets the pace."""
        return slowest_stage(self.latencies)

    @property
    def pace(self) -> float:
        """What every further micro-batch adds to the iteration."""
        return self.latencies[self.slowest]

    @property
    def fill(self) -> float:
        """Time of the iteration beyond pace × micro-batches."""
        return iteration_time(self.latencies, 0)


MicroBatchRule = Callable[[int], int]
"""Micro-batches for a number of stages."""


def four_per_stage(stages: int) -> int:
    """The number of micro-batches at which Oobleck compares its templates."""
    return 4 * stages


def slowest_stage(latencies: Sequence[float]) -> int:
    """Index of the last slowest stage."""
    limit = max(latencies) - TIE
    return max(index for index, latency in enumerate(latencies) if latency >= limit)


def iteration_time(latencies: Sequence[float], micro_batches: int) -> float:
    """The formula above."""
    slowest = slowest_stage(latencies)
    rounds = micro_batches - len(latencies) + slowest - 1
    return sum(latencies) + rounds * latencies[slowest] + sum(latencies[slowest:])


def template(nodes: int, stages: Sequence[PipelineStage], latencies: Sequence[float], micro_batches: int) -> PipelineTemplate:
    """With its time."""
    return PipelineTemplate(nodes, tuple(stages), tuple(latencies), micro_batches, iteration_time(latencies, micro_batches))
