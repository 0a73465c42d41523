"""Steps that go back: what was just saved stays, and the training does not end up again where it went away from."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint import LocalTensor, Region, checkpoint_directory, checkpoint_writer


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_DIR", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "EAGLE_EYE_RUN", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)


def save(home: Path, *steps: int, value: float | None = None) -> None:
    """What is returned is there."""
    for step in steps:
        path = checkpoint.save({"x": torch.full((4,), float(step) if value is None else value)}, step, home)
        assert path is not None
        assert path.exists(), step


def steps(home: Path) -> list[int]:
    return [entry.step for entry in checkpoint.entries(home)]


def loaded(home: Path, at_most: int | None = None) -> int | None:
    found = checkpoint.load(home, at_most)
    return None if found is None else found[1]


def damage(home: Path, *which: int) -> None:
    """A bit, so that the size is right."""
    for entry in checkpoint.entries(home):
        if entry.step in which:
            data = bytearray(entry.shards[0].read_bytes())
            data[-1] ^= 1
            Path(entry.shards[0]).write_bytes(data)


def test_a_training_that_begins_anew_keeps_what_it_saves_though_damaged_ones_are_newer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 20, 30)
    damage(tmp_path, 20, 30)
    assert loaded(tmp_path) is None
    save(tmp_path, 5, 10, 15)
    assert (steps(tmp_path), loaded(tmp_path)) == ([10, 15], 15)
    assert "step-000000000030.json is put aside: step 5 was saved after it" in caplog.text


def test_a_save_of_an_older_step_is_there_when_it_returns(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, 5)
    assert (steps(tmp_path), loaded(tmp_path)) == ([5], 5)
    assert len(list(tmp_path.glob("*.discarded"))) == 2, "twin: nothing is deleted"


def test_what_the_training_went_back_from_is_not_loaded_again(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    assert loaded(tmp_path, 10) == 10
    save(tmp_path, 11)
    assert loaded(tmp_path) == 11
    save(tmp_path, 12, 13)
    assert (steps(tmp_path), loaded(tmp_path)) == ([12, 13], 13)


def test_twin_a_slower_save_of_an_older_step_that_is_done_late_puts_nothing_aside(tmp_path: Path) -> None:
    """Another thread, or another process: its state was there before that of the newer step."""
    save(tmp_path, 3)
    slow = checkpoint_writer.prepare({"x": torch.ones(4)}, 5, tmp_path)
    save(tmp_path, 10)
    assert checkpoint_writer._write(slow) == tmp_path / "step-000000000005.json"
    assert steps(tmp_path) == [5, 10]
    save(tmp_path, 15)
    assert steps(tmp_path) == [10, 15]
    slow = checkpoint_writer.prepare({"x": torch.ones(4)}, 11, tmp_path)
    save(tmp_path, 20, 25)
    assert checkpoint_writer._write(slow).exists(), "though two newer ones are kept"
    assert steps(tmp_path) == [11, 20, 25]


def test_twin_a_worker_of_an_older_epoch_that_wakes_up_puts_nothing_of_a_newer_one_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_EYE_EPOCH", "3")
    save(tmp_path, 10, 20)
    monkeypatch.setenv("EAGLE_EYE_EPOCH", "2")
    save(tmp_path, 5)
    assert steps(tmp_path) == [5, 10, 20]
    monkeypatch.setattr(checkpoint_directory, "_STARTED", time.time())
    save(tmp_path, 6)
    assert steps(tmp_path) == [5, 6], "what was there when this process began is that of a job before it, whose epochs are its own"


def test_twin_values_that_are_not_finite_put_nothing_aside(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    save(tmp_path, 5, value=float("nan"))
    assert (steps(tmp_path), loaded(tmp_path)) == ([5, 10, 20], 20)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_twin_ranks_that_save_at_slightly_different_times(tmp_path: Path, order: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of rank 1 is ten seconds behind."""
    real = time.time
    for step in (5, 10, 15):
        for rank in order:
            monkeypatch.setattr(time, "time", lambda rank=rank: real() - 10 * rank)
            state = {"x": LocalTensor(torch.full((2,), float(step)), Region((2 * rank,), (2,)), (4,))}
            checkpoint.save_shard(state, step, tmp_path, rank=rank, world_size=2, run="a")
    assert steps(tmp_path) == [10, 15]
    assert not list(tmp_path.glob("*.discarded"))


def test_twin_what_was_copied_in_is_loaded_and_gone_on_from(tmp_path: Path) -> None:
    archive, home = tmp_path / "archive", tmp_path / "home"
    save(archive, 1000)
    save(home, 10)
    for path in archive.iterdir():
        (home / path.name).write_bytes(path.read_bytes())
    assert loaded(home) == 1000
    save(home, 1001)
    assert steps(home) == [1000, 1001]
    save(archive, 1005)
    for path in home.glob("*1000*"):
        (archive / path.name).write_bytes(path.read_bytes())
    assert steps(archive) == [1000, 1005], "an older one beside a newer one"


@pytest.mark.parametrize("harm", [os.truncate, lambda path, _: path.unlink()])
def test_twin_one_that_is_cut_off_right_after_it_was_saved_puts_nothing_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path, int], None]) -> None:
    save(tmp_path, 10, 20)
    real = checkpoint_writer.put

    def harmed(prepared: checkpoint_writer.PreparedCheckpoint) -> object:
        path, manifest = real(prepared)
        harm(Path(path.parent / manifest.shards[0].name), 10)
        return path, manifest

    monkeypatch.setattr(checkpoint_writer, "put", harmed)
    save(tmp_path, 5)
    assert (steps(tmp_path), loaded(tmp_path)) == ([5, 10, 20], 20)
