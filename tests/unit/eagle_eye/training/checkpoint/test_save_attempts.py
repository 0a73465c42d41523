"""A step that is saved twice in one start of a job: parts of two attempts are never put together. Ranks are calls one after the other."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint import LocalTensor, Region, checkpoint_writer, save_attempts
from eagle_eye.training.checkpoint.checkpoint_writer import PreparedCheckpoint
from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints

STEP = 5


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_DIR", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "EAGLE_EYE_RUN", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)


def half(rank: int, value: float) -> dict[str, Any]:
    """Rank 0 has the first two elements, rank 1 the others."""
    return {"w": LocalTensor(torch.full((2,), value), Region((2 * rank,), (2,)), (4,))}


def save(home: Path, rank: int, value: float, step: int = STEP) -> Path | None:
    found = checkpoint.save_shard(half(rank, value), step, home, rank=rank, world_size=2, run="a")
    assert found is None or isinstance(found, Path)
    return found


def visible(home: Path) -> list[float] | None:
    found = checkpoint.load(home)
    return None if found is None else found[0]["w"].tolist()


def orders(*of_ranks: Sequence[Any]) -> Iterator[list[Any]]:
    """Each order of what two ranks do in which each keeps its own."""
    first, second = of_ranks
    for places in itertools.combinations(range(len(first) + len(second)), len(first)):
        ours, theirs = iter(first), iter(second)
        yield [next(ours) if place in places else next(theirs) for place in range(len(first) + len(second))]


def prepared(home: Path, rank: int, attempt: int) -> PreparedCheckpoint:
    """As `save_shard` has it: its value is the attempt's number."""
    run = checkpoint_writer._run_of_attempt("a", STEP, home, rank)
    part = checkpoint_writer.prepare(half(rank, attempt), STEP, home, rank=rank, world_size=2)
    return PreparedCheckpoint(part.home, part.shards, part.manifest, rank, run)


LEFT_OUT = list(itertools.product((False, True), repeat=4))
"""Which of the saves are left out: rank 0's first and second, rank 1's first and second."""


@pytest.mark.parametrize("left_out", LEFT_OUT, ids=lambda each: "".join("x" if left else "." for left in each))
def test_in_no_order_are_two_attempts_mixed_and_the_last_whole_one_is_visible(tmp_path: Path, left_out: tuple[bool, ...]) -> None:
    """Each call is taken apart: its beginning, the writing of the part, and the making of the manifest come in any order with those of the other rank."""
    done = [rank_attempt for rank_attempt, left in zip(itertools.product((0, 1), (1, 2)), left_out, strict=True) if not left]
    whole = [attempt for attempt in (1, 2) if (0, attempt) in done and (1, attempt) in done]
    steps = [[(rank, attempt, what) for attempt in (1, 2) for what in ("put", "publish")] for rank in (0, 1)]
    for number, order in enumerate(orders(*steps)):
        home = tmp_path / str(number)
        begun: dict[tuple[int, int], PreparedCheckpoint] = {}
        for rank, attempt, what in order:
            if what == "put":
                begun[rank, attempt] = prepared(home, rank, attempt)
            if (rank, attempt) not in done:
                continue
            if what == "put":
                checkpoint_writer.put(begun[rank, attempt])
            else:
                checkpoint_writer.publish(home, [home / name for name in checkpoint_writer._part_names(begun[rank, attempt])])
        found = visible(home)
        assert found is None or len(set(found)) == 1, order
        assert found is not None or not whole or _was_overtaken(order, done), order
        assert found in (None, *([float(attempt)] * 4 for attempt in whole)), order
        if 2 in whole:
            assert found == [2.0] * 4, order


def _was_overtaken(order: Sequence[tuple[int, int, str]], done: Sequence[tuple[int, int]]) -> bool:
    """Whether a rank began the second attempt before the first was made a checkpoint: its parts are deleted then."""
    return any((rank, 2) in done and order.index((rank, 2, "put")) < order.index((1 - rank, 1, "publish")) for rank in (0, 1))


@pytest.mark.parametrize("why", ["no answer", "refused", "no state for it"])
def test_a_save_that_one_rank_leaves_out_is_not_completed_by_its_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    save(tmp_path, 0, 1.0)
    with monkeypatch.context() as broken:
        if why == "no answer":
            broken.setattr("eagle_eye.training.checkpoint.checkpoint_writer.WAIT_S", 0.0)
            broken.setattr(checkpoint_writer._retry, "_turn", _Busy())
            assert save(tmp_path, 1, 1.0) is None
        elif why == "refused":
            broken.setattr(checkpoint_writer, "put", _refuse)
            broken.setattr(checkpoint_writer._retry, "_begin", lambda: None)
            assert save(tmp_path, 1, 1.0) is None
        else:
            with pytest.raises(TypeError):
                checkpoint.save_shard({"w": object()}, STEP, tmp_path, rank=1, world_size=2, run="a")
    save(tmp_path, 1, 2.0)
    assert visible(tmp_path) is None, "rank 0 has written what it had at the first attempt"
    save(tmp_path, 0, 2.0)
    assert visible(tmp_path) == [2.0] * 4
    assert not list(tmp_path.glob("*.part"))


class _Busy:
    def acquire(self, timeout: float) -> bool:
        return False


def _refuse(_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_rank_that_went_back_takes_back_what_it_had_written_of_newer_steps(tmp_path: Path) -> None:
    """Rank 1 has raised before its call: it never made it, and no number tells."""
    for rank in range(2):
        save(tmp_path, rank, 0.5, step=4)
    save(tmp_path, 0, 1.0)
    for rank in range(2):
        found = checkpoint.restore(half(rank, 0.0), tmp_path, rank=rank)
        assert found is not None
        assert found.step == 4
    save(tmp_path, 1, 2.0)
    assert visible(tmp_path) == [0.5] * 4
    save(tmp_path, 0, 2.0)
    assert visible(tmp_path) == [0.5] * 4, "they have made different numbers of calls: this step becomes no checkpoint"
    for rank in (1, 0):
        save(tmp_path, rank, 3.0, step=6)
    assert visible(tmp_path) == [3.0] * 4, "twin: the next step does"


def test_a_rank_that_memory_has_taken_back_takes_back_what_it_had_written_behind_that_step(tmp_path: Path) -> None:
    """Rank 1 has not made the first call."""
    memory, state = MemoryCheckpoints([], tmp_path / "0.memory"), {"w": torch.ones(3)}
    assert memory.prepare(state)
    assert memory.save(state, 4)
    memory.finish()
    home = tmp_path / "kept"
    for rank in (0, 1):
        save(home, rank, 0.25, step=3)
        save(home, rank, 0.5, step=4)
    save(home, 0, 1.0)
    found = memory.load(state)
    memory.close()
    assert found is not None
    assert found.step == 4
    save(home, 1, 2.0)
    assert visible(home) == [0.5] * 4, "a part of each of two attempts is none"
    for rank in (1, 0):
        save(home, rank, 3.0, step=6)
    assert visible(home) == [3.0] * 4


def test_twin_a_rank_that_was_late_completes_what_the_other_has_written(tmp_path: Path) -> None:
    for rank in (0, 1):
        save(tmp_path, rank, 0.5, step=4)
    save(tmp_path, 0, 1.0)
    found = checkpoint.restore(half(1, 0.0), tmp_path, rank=1)
    assert found is not None
    save(tmp_path, 0, 1.5, step=6)
    save(tmp_path, 1, 1.0)
    assert visible(tmp_path) == [1.0] * 4
    save(tmp_path, 1, 1.5, step=6)
    assert visible(tmp_path) == [1.5] * 4


def test_steps_that_are_long_gone_are_not_counted_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_attempts, "REMEMBERED", 3)
    monkeypatch.setattr(save_attempts, "_calls", type(save_attempts._calls)())
    assert [save_attempts.begin(tmp_path, "a", 0, step) for step in (1, 1, 2, 1, 3, 4, 2, 1)] == [1, 2, 1, 3, 1, 1, 1, 1]
