"""Data that were trained on are left out of the pass that goes on, whose order is the one that was broken off."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from eagle_eye.training.integrations.batch_order import order_of


class Rows(TensorDataset):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__(torch.arange(20))
        self.read = 0

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return super().__getitem__(index)


def batches(loader: Any, count: int = 100) -> list[list[int]]:
    return [batch[0].tolist() for batch, _ in zip(loader, range(count), strict=False)]


def loader_of(**options: Any) -> tuple[Rows, DataLoader[Any]]:
    rows = Rows()
    return rows, DataLoader(rows, batch_size=4, shuffle=True, **options)


def test_a_pass_goes_on_in_the_order_that_it_had_and_reads_nothing_before() -> None:
    torch.manual_seed(1)
    _, loader = loader_of()
    loader, order = order_of(loader)
    batches(loader)
    all_of_it = batches(loader)
    drawn_from = order.drawn_from
    torch.manual_seed(99)
    rows, other = loader_of()
    other, order = order_of(other)
    order.resume(3, drawn_from)
    assert len(other) == 5
    assert batches(other) == all_of_it[3:]
    assert rows.read == 8
    assert len(batches(other)) == 5, "the next pass is a whole one"


def test_a_generator_of_the_loaders_own_goes_on_too() -> None:
    first = order_of(loader_of(generator=torch.Generator().manual_seed(3))[1])
    batches(first[0])
    second_pass = batches(first[0])
    again = order_of(loader_of(generator=torch.Generator().manual_seed(3))[1])
    again[1].resume(2, first[1].drawn_from)
    assert batches(again[0]) == second_pass[2:]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(20)])


def test_data_that_come_in_a_stream_are_read_and_left_out() -> None:
    replaced, order = order_of(DataLoader(Stream(), batch_size=4))
    order.resume(3, None)
    assert batches(replaced) == [[12, 13, 14, 15], [16, 17, 18, 19]]
    assert len(batches(replaced)) == 5
