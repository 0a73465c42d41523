"""A training job as the performance model sees it: a model, its global batch, and what its framework is able to do."""

from dataclasses import dataclass

import numpy as np

from eagle_eye.errors import ConfigError

from .model_shape import ModelShape
from .parallel_layout import Integers, ParallelLayouts, Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """Raises ConfigError for an impossible batch."""

    shape: ModelShape
    global_batch: int
    """Samples of an iteration."""
    sharded_optimizer: bool = False
    """Optimizer states are divided among data-parallel ranks (ZeRO stage 1)."""
    sequence_parallel: bool = False
    """Norms and dropout are divided among tensor-parallel ranks (Korthikanti et al., 2022)."""
    gradient_bytes: int = 2
    """Of one accumulated gradient: 2, or 4 when they are kept and reduced in fp32."""
    even: bool = False
    """The framework only splits layers and micro-batches without remainder, as Megatron does."""
    recompute: tuple[Recompute, ...] = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    """What may be chosen."""
    interleave: tuple[int, ...] = (1,)
    """Chunks of layers per stage that may be chosen."""
    largest_micro_batch: int = 64

    def __post_init__(self) -> None:
        for field in ("global_batch", "gradient_bytes", "largest_micro_batch"):
            if getattr(self, field) < 1:
                raise ConfigError(f"training: {field} is {getattr(self, field)}; it must be 1 or more")
        if not self.recompute or not self.interleave or min(self.interleave) < 1:
            raise ConfigError("training: recompute and interleave each name at least one choice, and chunks are 1 or more")

    def micro_batches(self, layouts: ParallelLayouts) -> Integers:
        """(layouts,) of the pipeline that has most of them."""
        return -(-self.global_batch // (layouts.data * layouts.micro_batch))

    def stage_layers(self, layouts: ParallelLayouts) -> Integers:
        """(layouts,) of the stage that has most of them."""
        return -(-self.shape.layers // layouts.pipeline)

    def sensible(self, layouts: ParallelLayouts) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """(layouts,) whether it divides what there is to divide; with `even` without remainder."""
        shape, chunks = self.shape, layouts.pipeline * layouts.interleave
        mask = (shape.heads % layouts.tensor == 0) & (chunks <= shape.layers) & (layouts.data * layouts.micro_batch <= self.global_batch)
        mask &= (layouts.interleave == 1) | ((layouts.pipeline > 1) & (self.micro_batches(layouts) % layouts.pipeline == 0))
        if self.even:
            mask &= (shape.layers % chunks == 0) & (self.global_batch % (layouts.data * layouts.micro_batch) == 0)
        return np.asarray(mask)
