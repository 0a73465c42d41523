"""Where in its data a training is: how the generators stood when an epoch's order was drawn, and how many batches of it were trained on."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from eagle_eye.training.checkpoint.random_state import random_state, restore_random_state


class BatchOrder:
    """In the place of what a loader draws its batches from, or of the loader where their data have to be read to leave them out."""

    def __init__(self, batches: Any, generators: tuple[torch.Generator, ...]) -> None:
        self._batches, self._generators = batches, generators
        self._left_out = 0
        self.drawn_from: dict[str, Any] | None = None
        """The generators, those of the process and the loader's own, when the pass that is under way drew its order."""

    def resume(self, count: int, drawn_from: dict[str, Any] | None) -> None:
        """The next pass is one that was broken off behind `count` batches."""
        self._left_out, self.drawn_from = count, drawn_from
        self._resumes = True

    _resumes = False

    def __iter__(self) -> Iterator[Any]:
        """The order is drawn when the first batch is asked for."""
        if self._resumes and self.drawn_from is not None:
            restore_random_state(self.drawn_from["process"])
            for generator, state in zip(self._generators, self.drawn_from["own"], strict=True):
                generator.set_state(state)
        elif not self._resumes:
            self.drawn_from = {"process": random_state(), "own": [each.get_state() for each in self._generators]}
        count, self._left_out, self._resumes = self._left_out, 0, False
        yield from itertools.islice(self._batches, count, None)

    def __len__(self) -> int:
        """Of a whole pass."""
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._batches, name)


def order_of(loader: Any) -> tuple[Any, BatchOrder]:
    """A loader to be used in its place, mostly itself, and the order of its batches."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        order = BatchOrder(loader, ())
        return order, order
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    holders = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    own = {id(generator): generator for holder in holders if isinstance(generator := getattr(holder, "generator", None), torch.Generator)}
    order = BatchOrder(getattr(loader, name), tuple(own.values()))
    vars(loader)[name] = order  # a DataLoader refuses the assignment; what it has there is drawn from whenever a pass begins
    return loader, order
