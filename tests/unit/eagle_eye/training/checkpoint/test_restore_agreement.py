"""Ranks that restore together load one step. Each is a thread here, and what they tell one another goes through a list in place of a collective."""

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_eye.errors import ConfigError
from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint import LocalTensor, Region, RestoredCheckpoint, checkpoint_reader, rank_agreement

RANKS = 2


class Collective:
    """An all_gather of threads: a rank that does not come breaks it, in place of a wait without end."""

    def __init__(self) -> None:
        self._barrier, self._told, self._rank = threading.Barrier(RANKS), [torch.empty(0)] * RANKS, threading.local()
        self.calls = 0

    def gathered(self, ours: torch.Tensor) -> list[torch.Tensor]:
        self.calls += 1
        self._barrier.wait(20)
        self._told[self._rank.number] = ours
        self._barrier.wait(20)
        return list(self._told)

    def on_each(self, work: Callable[[int], Any]) -> list[Any]:
        """What each rank returns, or raises."""

        def as_rank(rank: int) -> Any:
            self._rank.number = rank
            try:
                return work(rank)
            except (ConfigError, OSError) as error:
                return error

        with ThreadPoolExecutor(RANKS) as threads:
            return list(threads.map(as_rank, range(RANKS)))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Collective:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)
    collective = Collective()
    monkeypatch.setattr(rank_agreement, "is_distributed", lambda: True)
    monkeypatch.setattr(rank_agreement, "_gathered", collective.gathered)
    return collective


def half(rank: int, value: float, rows: int = 2) -> dict[str, Any]:
    return {"w": LocalTensor(torch.full((rows,), value), Region((rows * rank,), (rows,)), (rows * RANKS,))}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Steps 10 and 20 of two ranks."""
    for step in (10, 20):
        for rank in range(RANKS):
            checkpoint.save_shard(half(rank, float(step)), step, tmp_path, rank=rank, world_size=RANKS, run="a")
    return tmp_path


def harm(home: Path, step: int, rank: int) -> None:
    entry = next(each for each in checkpoint.entries(home) if each.step == step)
    data = bytearray(entry.shards[rank].read_bytes())
    data[-1] ^= 1
    Path(entry.shards[rank]).write_bytes(data)


def restored(ranks: Collective, home: Path) -> list[Any]:
    return ranks.on_each(lambda rank: checkpoint.restore(half(rank, 0.0), home, rank=rank))


def steps(found: list[RestoredCheckpoint]) -> list[tuple[int, float]]:
    return [(each.step, each.state["w"].tensor[0].item()) for each in found]


def test_where_the_shard_of_one_rank_is_damaged_all_load_the_step_before(ranks: Collective, home: Path) -> None:
    assert steps(restored(ranks, home)) == [(20, 20.0), (20, 20.0)], "twin"
    harm(home, 20, rank=1)
    found = restored(ranks, home)
    assert steps(found) == [(10, 10.0), (10, 10.0)]
    assert [each.reason for each in found[0].skipped] == ["another rank cannot use it"]
    assert ["CRC-32" in each.reason for each in found[1].skipped] == [True]


def test_where_no_step_is_whole_for_all_none_is_loaded_and_nothing_is_changed(ranks: Collective, home: Path) -> None:
    harm(home, 20, rank=1)
    harm(home, 10, rank=0)
    templates = [half(rank, 7.0) for rank in range(RANKS)]
    assert ranks.on_each(lambda rank: checkpoint.restore(templates[rank], home, rank=rank)) == [None, None]
    assert [template["w"].tensor.tolist() for template in templates] == [[7.0, 7.0]] * RANKS


def test_a_step_that_one_rank_does_not_see_is_loaded_by_none(ranks: Collective, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = checkpoint_reader.candidates
    monkeypatch.setattr(
        checkpoint_reader, "candidates",
        lambda *given: (entry for entry in real(*given) if entry.step < 20 or ranks._rank.number == 0),
    )  # fmt: skip
    found = restored(ranks, home)
    assert steps(found) == [(10, 10.0), (10, 10.0)]
    assert [[each.reason for each in one.skipped] for one in found] == [["not all ranks have it"], []]


def test_what_one_rank_raises_no_other_one_waits_for(ranks: Collective, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ranks.on_each(lambda rank: checkpoint.restore(half(rank, 0.0, rows=2 + rank), home, rank=rank))
    assert (type(first), type(second)) == (ConfigError, ConfigError)
    assert ("another rank cannot go on" in str(first), "is of another model" in str(second)) == (True, True)
    real = checkpoint_reader.candidates

    def refused(*given: Any) -> Any:
        if ranks._rank.number == 0:
            raise PermissionError(errno.EACCES, "Permission denied", str(home))
        return real(*given)

    monkeypatch.setattr(checkpoint_reader, "candidates", refused)
    first, second = restored(ranks, home)
    assert (type(first), type(second), second.errno) == (PermissionError, OSError, errno.EIO)


def test_a_rank_that_loads_ordinary_tensors_alone_asks_nobody_unless_it_is_told_to(ranks: Collective, home: Path) -> None:
    template = {"w": torch.zeros(4)}
    found = checkpoint.restore(template, home)
    assert found is not None
    assert (found.step, template["w"].tolist(), ranks.calls) == (20, [20.0] * 4, 0)
    found = checkpoint.restore(half(0, 0.0), home, agree=False)
    assert found is not None
    assert ranks.calls == 0
    together = ranks.on_each(lambda rank: checkpoint.restore({"w": torch.zeros(4)}, home, rank=rank, agree=True))
    assert [each.step for each in together] == [20, 20]
    assert ranks.calls > 0


def test_without_a_process_group_or_alone_in_one_a_part_is_loaded_as_it_is(ranks: Collective, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_agreement, "is_distributed", lambda: False)
    found = checkpoint.restore(half(1, 0.0), home, rank=1)
    assert found is not None
    assert (found.step, ranks.calls) == (20, 0)


def test_nothing_is_filled_where_what_this_rank_alone_had_is_damaged(tmp_path: Path, ranks: Collective) -> None:
    for step in (10, 20):
        for rank in range(RANKS):
            checkpoint.save_shard({"w": torch.full((2,), float(step))}, step, tmp_path, rank=rank, world_size=RANKS, run="a", per_rank={"rng": torch.tensor([rank])})
    harm(tmp_path, 20, rank=1)  # rank 1 wrote nothing but its own
    template = {"w": torch.zeros(2)}
    found = checkpoint.restore(template, tmp_path, rank=1)
    assert found is not None
    assert (found.step, template["w"].tolist(), found.per_rank["rng"].item()) == (10, [10.0, 10.0], 1)
