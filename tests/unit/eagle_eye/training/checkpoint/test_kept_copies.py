"""Which copies outlive what: a new segment, a second client of the process, damage to one of two, a template of another model."""

import errno
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_eye.training.checkpoint import memory_checkpoints, memory_segment
from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints
from eagle_eye.training.checkpoint.memory_segment import MemorySegment, SegmentFile
from fakes.memory_trainer import Trainer

from .test_memory_checkpoints import flip, same, successor


def steps_in(path: Path) -> list[int]:
    """What the slots say they hold."""
    with closing(SegmentFile(path)) as file:
        return sorted(stamp.step for stamp in map(file.stamp, range(file.slots)) if stamp is not None)


def spoil(trainer: Trainer, value: float = float("nan")) -> None:
    with torch.no_grad():
        trainer.parameters[2][5] = value


# --- a segment that has grown -----------------------------------------------------------------------------------------


def grown(trainer: Trainer, count: int = 2_000_000) -> dict[str, Any]:
    return {**trainer.state(), "more": torch.zeros(count)}


def save(trainer: Trainer, state: dict[str, Any], step: int) -> None:
    """Reserve what it needs first."""
    assert trainer.memory.prepare(state)
    assert trainer.memory.save(state, step)
    trainer.memory.finish()


def test_copies_that_are_not_finite_do_not_take_the_place_of_the_last_good_one(trainer: Trainer, path: Path) -> None:
    values = trainer.saved(1)
    spoil(trainer)
    for step in (2, 3):
        save(trainer, grown(trainer), step)
        assert (trainer.memory.safe_step, steps_in(path)) == (1, [1])
    trainer.memory.close()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    other = successor(path)
    found = other.memory.load(other.state())
    other.memory.close()
    assert found is not None
    assert (found.step, same(other.values(), values)) == (1, True)


def test_the_first_finite_copy_in_a_grown_segment_takes_the_name(trainer: Trainer, path: Path) -> None:
    trainer.saved(1)
    spoil(trainer)
    save(trainer, grown(trainer), 2)
    spoil(trainer, 1.0)
    trainer.optimizer.state.clear()
    save(trainer, grown(trainer), 3)
    assert (trainer.memory.safe_step, 3 in steps_in(path)) == (3, True)


def test_a_segment_that_grows_again_before_it_has_its_name_is_used(trainer: Trainer, path: Path) -> None:
    trainer.saved(1)
    spoil(trainer)
    save(trainer, grown(trainer), 2)
    spoil(trainer, 1.0)
    trainer.optimizer.state.clear()
    save(trainer, grown(trainer, 4_000_000), 3)
    assert (trainer.memory.safe_step, steps_in(path)) == (3, [3])


def test_a_predecessor_s_copy_that_is_not_finite_is_not_said_to_be_safe_nor_kept_before_a_finite_one(trainer: Trainer, path: Path) -> None:
    trainer.saved(1)
    spoil(trainer)
    trainer.saved(2)
    trainer.memory.close()
    other = successor(path)
    other.step()
    assert other.memory.prepare(other.state())
    assert other.memory.safe_step == 1
    spoil(other)
    other.saved(3)
    assert steps_in(path) == [1, 3]
    other.memory.close()


# --- two clients of one process ------------------------------------------------------------------------------------------


def test_a_second_client_of_the_process_is_refused_until_the_first_is_closed(trainer: Trainer, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = trainer.saved(1)
    link = path.parent / "linked"
    link.symlink_to(path.parent)
    second = Trainer(link / path.name)
    times = [0.0]
    second.memory._report._clock = lambda: times[0]
    second.step()
    for times[0] in (0.0, 100.0):
        assert not second.memory.save(second.state(), 9)
        second.memory.finish()
    assert second.memory.load(second.state()) is None
    assert caplog.text.count("no checkpoint in memory") == 1
    assert "close() that one first" in caplog.text
    assert (steps_in(path), trainer.memory.safe_step) == ([1], 1)
    trainer.memory.close()
    found = second.memory.load(second.state())
    assert found is not None
    assert same(second.values(), values)
    times[0] = 1000.0
    assert second.memory.prepare(second.state())
    second.saved(9)
    second.memory.close()


def test_a_second_client_takes_no_lock_from_the_first(trainer: Trainer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(MemorySegment, "open", lambda path, **_: opened.append(path))
    second = MemoryCheckpoints([], path)
    assert second.load(trainer.state()) is None
    assert not second.prepare(trainer.state())
    second.close()
    assert not opened


def test_a_client_that_found_nothing_and_one_that_got_no_memory_are_in_nobody_s_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Trainer(path)
    assert first.memory.load(first.state()) is None
    with monkeypatch.context() as full:
        full.setattr(memory_segment, "free_memory", lambda: 1000)
        assert not first.memory.prepare(first.state())
    second = Trainer(path)
    assert second.memory.prepare(second.state())
    second.memory.close()


def test_a_forked_child_has_no_owners(trainer: Trainer) -> None:
    assert memory_checkpoints._owners
    memory_checkpoints._forget_all()
    assert not memory_checkpoints._owners


# --- two copies of one step ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flipped", "step"), [((2,), 5), ((1,), 5), ((1, 2), None)])
def test_of_two_copies_of_one_step_one_may_be_damaged(trainer: Trainer, path: Path, flipped: tuple[int, ...], step: int | None) -> None:
    trainer.saved(5)
    values = trainer.saved(5)
    trainer.memory.close()
    segment = MemorySegment.open(path)
    for content in [found for found in map(segment.read, range(2)) if found.sequence in flipped]:
        segment.memory[content.payload_at + content.payload_bytes // 2] ^= 4
    segment.close()
    other = successor(path)
    before = other.values()
    found = other.memory.load(other.state())
    assert (found.step if found is not None else None) == step
    assert same(other.values(), values) == (flipped == (1,))
    assert same(other.values(), before) == (step is None)
    other.memory.close()


# --- another model ---------------------------------------------------------------------------------------------------------


def other_state(value: float) -> dict[str, Any]:
    return {"model": {"p0": torch.full((40,), value)}}


@pytest.fixture
def mistaken(trainer: Trainer, path: Path) -> Callable[[], MemoryCheckpoints]:
    """Clients whose template is another model than that of steps 8 and 9, which are there."""

    def make() -> MemoryCheckpoints:
        memory = MemoryCheckpoints([], path)
        assert memory.load(other_state(0.0)) is None
        assert memory.safe_step == -1
        return memory

    for step in (8, 9):
        trainer.saved(step)
    trainer.memory.close()
    return make


def test_copies_of_another_model_stay_until_there_are_two_of_this_one(
    trainer: Trainer, path: Path, mistaken: Callable[[], MemoryCheckpoints], caplog: pytest.LogCaptureFixture
) -> None:
    values = trainer.values()
    memory = mistaken()
    assert "'state.model.p0' is torch.float32 [300000]" in caplog.text
    assert memory.prepare(other_state(1.0))
    assert memory.save(other_state(1.0), 1)
    memory.finish()
    assert (memory.safe_step, steps_in(path)) == (-1, [8, 9])
    memory.close()
    right = successor(path)
    found = right.memory.load(right.state())
    right.memory.close()
    assert found is not None
    assert (found.step, same(right.values(), values)) == (9, True)
    memory = mistaken()
    assert memory.prepare(other_state(1.0))
    for step in (1, 2):
        assert memory.save(other_state(float(step)), step)
        memory.finish()
    assert (memory.safe_step, steps_in(path)) == (2, [1, 2])
    memory.close()


def test_they_stay_where_the_state_of_this_one_grows_before_it_is_saved(path: Path, mistaken: Callable[[], MemoryCheckpoints]) -> None:
    memory, state = mistaken(), {"more": torch.zeros(2_000_000), **other_state(1.0)}
    assert memory.prepare(other_state(1.0))
    assert memory.prepare(state)
    assert memory.save(state, 1)
    memory.finish()
    assert steps_in(path) == [8, 9]
    memory.close()
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("count", [40, 2_000_000])
def test_where_there_is_no_memory_beside_them_they_are_written_over(
    path: Path, mistaken: Callable[[], MemoryCheckpoints], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    memory, state, create = mistaken(), {"model": {"p0": torch.ones(count)}}, MemorySegment.create

    def create_if_alone(place: Path, *given: Any, **named: Any) -> MemorySegment:
        if place.exists():
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return create(place, *given, **named)

    monkeypatch.setattr(MemorySegment, "create", create_if_alone)
    assert memory.prepare(state)
    assert memory.save(state, 1)
    memory.finish()
    assert (memory.safe_step, steps_in(path)) == (1, [1])
    assert "are written over" in caplog.text
    memory.close()


@pytest.mark.parametrize("limits", [{"at_most": 3}, {"at_least": 20}])
def test_copies_that_are_not_wanted_anyway_are_not_kept(trainer: Trainer, path: Path, limits: dict[str, int]) -> None:
    trainer.saved(9)
    trainer.memory.close()
    memory = MemoryCheckpoints([], path)
    assert memory.load(other_state(0.0), **limits) is None
    assert memory.prepare(other_state(1.0))
    assert memory.save(other_state(1.0), 1)
    memory.finish()
    assert (memory.safe_step, steps_in(path)) == (1, [1])
    memory.close()


def test_a_damaged_copy_of_this_model_is_not_another_model(trainer: Trainer, path: Path) -> None:
    trainer.saved(1)
    trainer.memory.close()
    flip(path, 1)
    other = successor(path)
    assert other.memory.load(other.state()) is None
    assert not other.memory._foreign
    other.memory.close()
