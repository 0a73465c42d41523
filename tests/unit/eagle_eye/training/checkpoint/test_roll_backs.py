"""A job that has gone back: no later start goes on from what was abandoned, and what lies at or before the step of the roll-back stays."""

from contextlib import closing
from pathlib import Path

import pytest

from eagle_eye.training.checkpoint.memory_segment import MemorySegment
from eagle_eye.training.checkpoint.roll_backs import (
    VARIABLE,
    RollBacks,
    abandoned,
    given,
    text_of,
    with_roll_back,
)
from fakes.memory_trainer import Trainer

from .test_memory_checkpoints import same, successor
from .test_restore_agreement import Collective, ranks  # noqa: F401 - a fixture


def epoch(monkeypatch: pytest.MonkeyPatch, number: int, rolled_back: RollBacks = (), resume_step: int = -1) -> None:
    """The next start of the worker belongs to it."""
    for name, value in {"EAGLE_EYE_EPOCH": number, VARIABLE: text_of(rolled_back), "EAGLE_EYE_RESUME_STEP": resume_step}.items():
        monkeypatch.setenv(name, str(value))


def trained(path: Path, *steps: int) -> list:
    """A worker that saves these steps, and dies. The values of each."""
    trainer = Trainer(path)
    trainer.step()
    assert trainer.memory.prepare(trainer.state())
    values = [trainer.saved(step) for step in steps]
    trainer.memory.close()
    return values


def test_a_death_before_the_first_save_behind_a_roll_back_does_not_bring_back_what_was_abandoned(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch(monkeypatch, 1)
    kept, _ = trained(path, 100, 110)
    for number, resume_step in ((2, 105), (3, -1), (4, -1)):
        epoch(monkeypatch, number, ((2, 105),), resume_step)
        other = successor(path)
        found = other.memory.load(other.state())
        assert found is not None
        assert (found.step, other.memory.safe_step, same(other.values()[:3], kept[:3])) == (100, 100, True), number
        other.memory.close()


def test_a_worker_that_loads_nothing_does_not_take_what_was_abandoned_for_its_newest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first save goes there, and not over what is left from before the roll-back."""
    epoch(monkeypatch, 1)
    trained(path, 100, 110)
    epoch(monkeypatch, 3, ((2, 105),))
    trained(path, 112)
    with closing(MemorySegment.open(path)) as segment:
        assert sorted(segment.read(slot).step for slot in range(segment.slots)) == [100, 112]


def test_one_that_was_cut_off_and_saves_late_does_not_undo_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch(monkeypatch, 1)
    trained(path, 100, 110, 115)
    epoch(monkeypatch, 2, ((2, 105),))
    other = successor(path)
    assert other.memory.load(other.state()) is None, "the old worker has written over step 100; what it has is of no use"
    other.memory.close()


def test_twins_what_the_training_saves_behind_its_roll_back_is_loaded_and_so_is_all_of_a_run_without_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch(monkeypatch, 1)
    trained(path, 100, 110)
    epoch(monkeypatch, 3)
    other = successor(path)
    found = other.memory.load(other.state())
    assert found is not None
    assert found.step == 110, "a death alone is no roll-back"
    other.memory.close()
    epoch(monkeypatch, 4, ((4, 105),), 105)
    _, new = trained(path, 106, 110)
    epoch(monkeypatch, 5, ((4, 105),))
    other = successor(path)
    found = other.memory.load(other.state())
    assert found is not None
    assert (found.step, same(other.values()[:3], new[:3])) == (110, True)
    other.memory.close()


def test_ranks_load_no_step_of_which_one_has_the_abandoned_attempt_and_another_the_new_one(
    tmp_path: Path, ranks: Collective, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    """The first start came to step 7 on rank 0 alone; the second one has saved it on rank 1 alone. Together they would be a state that never was."""
    paths = [tmp_path / f"{rank}.memory" for rank in range(2)]
    epoch(monkeypatch, 1)
    for path, steps in zip(paths, ((6, 7), (6,)), strict=True):
        trained(path, *steps)
    epoch(monkeypatch, 2)
    trained(paths[1], 7)
    epoch(monkeypatch, 3)
    others = [successor(path) for path in paths]
    found = ranks.on_each(lambda rank: others[rank].memory.load(others[rank].state()))
    assert [each.step for each in found] == [6, 6]
    for other in others:
        other.memory.close()


def test_what_reaches_less_far_back_than_a_later_roll_back_is_forgotten() -> None:
    found = with_roll_back(with_roll_back(with_roll_back((), 2, 100), 3, -1), 5, 300)
    assert found == ((2, 100), (5, 300))
    assert with_roll_back(found, 7, 200) == ((2, 100), (7, 200))
    assert with_roll_back(found, 7, 100) == ((7, 100),)
    for before, made, step, gone in ((found, 1, 101, True), (found, 1, 100, False), (found, 2, 101, False), (found, 4, 301, True), (found, 5, 301, False), (found, 0, 101, True), ((), 0, 9, False)):
        assert bool(abandoned(before, made, step)) == gone, (before, made, step)
    assert given({VARIABLE: text_of(found)}) == found
    assert given({}) == given({VARIABLE: ""}) == ()
