"""Digests of what a step is given: the same data have the same, others another one, and nothing of it disturbs the loop."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eagle_eye.training import batch_digest
from eagle_eye.training.batch_digest import VALUE, VARIABLE, BatchDigests, is_due
from eagle_eye.training.probe import Monitor
from eagle_eye.training.replica_digest import PRIME
from eagle_eye.training.ring_buffer import RingReader, RingWriter
from fakes.cuda import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def digest_of(*micro_batches: Any) -> float | None:
    digests = BatchDigests(Clock())
    for each in micro_batches:
        digests.add(7, each)
    found: float | None = digests.end(7, 1.0)
    return found


def tokens(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, 50_000, shape or (2, 64), generator=torch.Generator().manual_seed(seed))


def test_the_same_data_have_the_same_digest_and_others_another_one() -> None:
    found = [digest_of(tokens(seed)) for seed in (1, 2, 1, 3)]
    assert found[0] == found[2]
    assert len(set(found)) == 3
    assert all(isinstance(each, float) and 0 < each < PRIME for each in found)


@pytest.mark.parametrize("batch", [
    lambda x: {"input_ids": x, "name": "a"}, lambda x: (x, 3), lambda x: [{"images": [x]}], lambda x: x.to(torch.bfloat16), lambda x: (torch.zeros(3), x), lambda x: x > 25_000,
    lambda x: x.reshape(1, 2, 8, 8).float().to(memory_format=torch.channels_last), str, lambda x: [str(x).encode(), None, 1.5],
])  # fmt: skip
def test_tensors_and_texts_are_found_in_what_loaders_give(batch: Any) -> None:
    assert digest_of(batch(tokens(1))) == digest_of(batch(tokens(1)))
    assert digest_of(batch(tokens(1))) not in (None, digest_of(batch(tokens(2))))


@pytest.mark.parametrize("batch", [3, None, [], {}, torch.empty(0)])
def test_what_holds_no_data_has_none_and_is_passed_over(batch: Any) -> None:
    assert digest_of(batch) is None
    assert digest_of((tokens(1), batch)) == digest_of(tokens(1))


@pytest.mark.parametrize("batch", [
    object(), np.ones(3), torch.ones(3).to_sparse(), torch.ones(2, dtype=torch.complex64), torch.ones(4, 4).t()[:, :2], torch.nn.Parameter(torch.ones(3)),
])  # fmt: skip
def test_twin_of_a_batch_that_is_read_in_part_there_is_none(batch: Any) -> None:
    """Its labels alone may be the same in each step."""
    assert digest_of((tokens(1), batch)) is None
    assert digest_of(tokens(1), batch) is None


def test_of_large_tensors_spread_words_are_read() -> None:
    large = tokens(1, 64, 4096)
    for row in (0, 32, 60):
        other = large.clone()
        other[row] += 1
        assert digest_of(other) != digest_of(large)


@pytest.mark.parametrize("rows", [8, 16, 64, 128])
def test_twin_batches_whose_rows_all_begin_and_end_alike_are_told_apart(rows: int) -> None:
    """A prompt that all share, and padding."""
    def batch(seed: int) -> torch.Tensor:
        made = torch.zeros(rows, 4096, dtype=torch.int64)
        made[:, :512] = 5
        made[:, 2048:2560] = tokens(seed, rows, 512)
        return made

    assert len({digest_of(batch(seed)) for seed in range(8)}) == 8


def test_fewer_steps_are_chosen_by_their_number_and_in_no_rhythm() -> None:
    for every in (2, 8, 64):
        chosen = [number for number in range(20_000) if is_due(number, every)]
        assert len(chosen) == pytest.approx(20_000 / every, rel=0.05)
        assert set(chosen) <= {number for number in range(20_000) if is_due(number, every // 2)}
        assert len({number % 8 for number in chosen}) == 8


def test_micro_batches_are_one_step_in_their_order() -> None:
    one, other = tokens(1), tokens(2)
    assert len({digest_of(one, other), digest_of(other, one), digest_of(one), digest_of(other)}) == 4


def steps_of(folder: Path, clock: Clock, batches: Iterable[Any]) -> tuple[list[tuple[int, float | None]], Monitor]:
    writer = RingWriter.create(folder / "ring", worker="run/a/0", offset_ns=0)
    with RingReader.open(folder / "ring") as reader:
        monitor = Monitor(writer, clock_ns=clock)
        for _ in monitor.steps(batches):
            clock.pass_ms(10)
        return [(step.number, step.values.get(VALUE)) for step in reader.steps(-1)], monitor


def test_each_step_of_a_loop_has_the_digest_of_its_batch(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = steps_of(tmp_path, clock, map(tokens, (1, 2, 2)))
    assert found == [(number, digest_of(tokens(seed))) for number, seed in enumerate((1, 2, 2))]
    assert steps_of(tmp_path, clock, range(2))[0] == [(0, None), (1, None)]
    monkeypatch.setenv(VARIABLE, "0")
    assert steps_of(tmp_path, clock, map(tokens, (1, 2)))[0] == [(0, None), (1, None)]


def test_where_it_takes_long_fewer_steps_have_one(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    checksum, costs = batch_digest._checksum, iter([5.0])

    def slow(flat: torch.Tensor) -> int:
        clock.pass_ms(next(costs, 0.02))  # the first one is held up
        return checksum(flat)

    monkeypatch.setattr(batch_digest, "_checksum", slow)
    found, _ = steps_of(tmp_path, clock, map(tokens, range(60)))
    assert [number for number, digest in found if digest is not None] == [0, 1, 2, *(number for number in range(3, 60) if is_due(number, 16))], "0.02 ms of 10 ms are 0.2 %"


def test_of_an_evaluation_within_a_step_some_batches_are_read(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(batch_digest, "_checksum", lambda flat: read.append(1) or 7)
    digests = BatchDigests(clock)
    for seed in range(1000):
        digests.add(0, tokens(seed))
    assert len(read) == batch_digest.MICRO_BATCHES


def test_an_error_in_it_ends_the_digests_and_nothing_else(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: torch.Tensor) -> int:
        raise RuntimeError("it is gone")

    monkeypatch.setattr(batch_digest, "_checksum", broken)
    found, monitor = steps_of(tmp_path, clock, map(tokens, range(5)))
    assert found == [(number, None) for number in range(5)]
    assert monitor.status()["faults"] == 1


def test_an_error_at_the_end_of_a_step_keeps_its_record(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(BatchDigests, "end", broken)
    found, monitor = steps_of(tmp_path, clock, map(tokens, range(5)))
    assert found == [(number, None) for number in range(5)]
    assert monitor.status()["faults"] == 1
