"""`SampleOrder`: the samples of a micro-batch are a function of its step and number only."""

from collections.abc import Callable, Iterator
from typing import Any

from eagle_eye.errors import ConfigError


class SampleOrder:
    """Every epoch in another order, in whole steps: the rest at its end is dropped."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], *, size: int, micro_batches: int, seed: int) -> None:
        """size: samples of a micro-batch; micro_batches: of a step. Raises ConfigError if there is not one step's worth."""
        self._dataset, self._collate = dataset, collate
        self._size, self._micro_batches, self._seed = size, micro_batches, seed
        self.steps_per_epoch = len(dataset) // (size * micro_batches)
        if not self.steps_per_epoch:
            raise ConfigError(f"{len(dataset)} samples are less than a step: {micro_batches} micro-batches of {size}; give more, or smaller steps")
        self._order: tuple[int, list[int]] = (-1, [])

    def batch(self, step: int, micro_batch: int) -> Any:
        """Collated, as Trainer's data loader would give it."""
        return self._collate([self._dataset[index] for index in self.samples(step, micro_batch)])

    def samples(self, step: int, micro_batch: int) -> list[int]:
        """Their numbers in the dataset."""
        epoch, at = divmod(step, self.steps_per_epoch)
        first = (at * self._micro_batches + micro_batch) * self._size
        return self._shuffled(epoch)[first : first + self._size]

    def position(self, step: int) -> dict[str, int]:
        """Where the data of a step begin: so many batches of that epoch were trained on, by all workers together."""
        epoch, at = divmod(step, self.steps_per_epoch)
        return {"epoch": epoch, "batch": at * self._micro_batches}

    def _shuffled(self, epoch: int) -> list[int]:
        import torch

        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed + epoch)
            self._order = epoch, torch.randperm(len(self._dataset), generator=generator).tolist()
        return self._order[1]


class PlaceholderLoader:
    """Replaces a data loader: `count` empty batches an epoch, for the trainer's loop to count."""

    def __init__(self, dataset: Any, count: int) -> None:
        self.dataset = dataset
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter([{} for _ in range(self._count)])
