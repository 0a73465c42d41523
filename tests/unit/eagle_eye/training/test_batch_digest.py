"""Digests of what a step is given: the same data have the same, others another one, and nothing of it disturbs the loop."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_eye.training import batch_digest
from eagle_eye.training.batch_digest import VALUE, VARIABLE, BatchDigests
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
])  # fmt: skip
def test_tensors_are_found_in_what_loaders_give(batch: Any) -> None:
    assert digest_of(batch(tokens(1))) == digest_of(batch(tokens(1)))
    assert digest_of(batch(tokens(1))) not in (None, digest_of(batch(tokens(2))))


@pytest.mark.parametrize("batch", [3, "text", None, [], {}, b"abc", ["a", "b"], [[[[[1]]]]], torch.empty(0), torch.ones(3).to_sparse(), torch.ones(2, dtype=torch.complex64), torch.ones(4, 4).t()[:, :2]])
def test_what_cannot_be_read_has_none(batch: Any) -> None:
    assert digest_of(batch) is None
    assert digest_of((tokens(1), batch)) == digest_of(tokens(1))


def test_of_large_tensors_spread_pieces_are_read() -> None:
    """A batch that differs in its last part alone is another one, and so is one in its first."""
    large = tokens(1, 64, 4096)
    for row in (0, 32, 60):
        other = large.clone()
        other[row] += 1
        assert digest_of(other) != digest_of(large)


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
    checksum = batch_digest._checksum

    def slow(tensor: torch.Tensor) -> int:
        clock.pass_ms(0.02)
        return checksum(tensor)

    monkeypatch.setattr(batch_digest, "_checksum", slow)
    found, _ = steps_of(tmp_path, clock, map(tokens, range(33)))
    assert [number for number, digest in found if digest is not None] == [0, 16, 32], "0.02 ms of 10 ms are 0.2 %"


def test_an_error_in_it_ends_the_digests_and_nothing_else(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: torch.Tensor) -> int:
        raise RuntimeError("it is gone")

    monkeypatch.setattr(batch_digest, "_checksum", broken)
    found, monitor = steps_of(tmp_path, clock, map(tokens, range(5)))
    assert found == [(number, None) for number in range(5)]
    assert monitor.status()["faults"] == 1
