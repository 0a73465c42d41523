"""Errors after which a manifest may be there: no shard that a visible one names is deleted."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from eagle_eye.app import checkpoint_files
from eagle_eye.errors import EagleEyeError
from eagle_eye.training import atomic_file, checkpoint, object_path
from eagle_eye.training.checkpoint import LocalTensor, Region, checkpoint_writer
from eagle_eye.training.object_path import ObjectPath


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_DIR", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(checkpoint_writer._retry, "_begin", lambda: None)  # nothing is tried again in the background
    monkeypatch.setattr(MemoryFileSystem, "store", {})


def state(value: float) -> dict[str, Any]:
    return {"w": torch.full((4,), value)}


def refuse_directories(monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """The directory cannot be synced after a file of this suffix was renamed."""
    renamed: list[str] = []
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        renamed.append(target.suffix)
        return real(self, target)

    def refused(_: Path) -> None:
        if renamed[-1] == suffix:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(atomic_file, "_fsync_directory", refused)


def loaded(home: Any) -> tuple[int, float]:
    found = checkpoint.load(home, at_most=-1)
    assert found is not None
    return found[1], found[0]["w"][0].item()


def test_a_directory_that_cannot_be_synced_takes_no_shard_from_a_visible_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(state(1.0), 10, tmp_path)
    with monkeypatch.context() as failing:
        refuse_directories(failing, ".json")
        assert checkpoint.save(state(2.0), 10, tmp_path) is None, "a save again of the same step"
    assert loaded(tmp_path) == (10, 2.0)
    assert [entry.missing for entry in checkpoint.entries(tmp_path)] == [""]
    checkpoint.save(state(3.0), 10, tmp_path)
    assert loaded(tmp_path) == (10, 3.0)
    assert len(list(tmp_path.iterdir())) == 2, "the shards of the first two are swept"


def test_twin_a_manifest_that_was_never_renamed_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(state(1.0), 10, tmp_path)
    before = sorted(tmp_path.iterdir())

    def full(path: Any, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", os.fspath(path))

    with monkeypatch.context() as failing:
        failing.setattr(object_path, "put", full)
        assert checkpoint.save(state(2.0), 10, tmp_path) is None
    assert sorted(tmp_path.iterdir()) == before
    with monkeypatch.context() as failing:
        refuse_directories(failing, ".safetensors")
        assert checkpoint.save(state(2.0), 20, tmp_path) is None
    assert sorted(tmp_path.iterdir()) == before, "no manifest was tried"
    assert loaded(tmp_path) == (10, 1.0)


def test_a_part_that_was_put_together_with_the_others_before_the_error_keeps_its_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [{"w": LocalTensor(torch.full((2,), float(rank)), Region((2 * rank,), (2,)), (4,))} for rank in range(2)]
    checkpoint.save_shard(parts[0], 10, tmp_path, rank=0, world_size=2, run="a")
    real = object_path.put

    def put(path: Any, data: bytes) -> None:
        real(path, data)
        if path.suffix == ".part":
            prepared = checkpoint_writer.publish(tmp_path, sorted(tmp_path.glob("*.part")))  # as rank 0, which looks again
            assert prepared is not None
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(object_path, "put", put)
        assert checkpoint.save_shard(parts[1], 10, tmp_path, rank=1, world_size=2, run="a") is None
    assert [entry.missing for entry in checkpoint.entries(tmp_path)] == [""]


def test_a_store_whose_answer_is_lost_keeps_what_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    home = ObjectPath("memory://models/late")
    real = MemoryFileSystem.pipe_file

    def late(self: MemoryFileSystem, path: str, value: bytes, **options: Any) -> None:
        real(self, path, value, **options)
        if path.endswith(".json"):
            raise TimeoutError("timed out")

    with monkeypatch.context() as failing:
        failing.setattr(MemoryFileSystem, "pipe_file", late)
        assert checkpoint.save(state(1.0), 10, home) is None
    assert loaded(home) == (10, 1.0)
    checkpoint.save(state(2.0), 10, home)
    assert (loaded(home), len(MemoryFileSystem.store)) == ((10, 2.0), 2)


@pytest.mark.parametrize("target", ["disk", "memory://models/copies"])
def test_a_copy_whose_manifest_is_there_in_spite_of_the_error_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    checkpoint.save(state(1.0), 10, tmp_path / "ours")
    entry = checkpoint.entries(tmp_path / "ours")[0]
    home: Any = ObjectPath(target) if "://" in target else tmp_path / target
    real = object_path.put

    def put(path: Any, data: bytes) -> None:
        real(path, data)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(object_path, "put", put)
        with pytest.raises(EagleEyeError, match=r"may be there or not: .*; verify it"):
            checkpoint_files.copy(entry, home, lambda _: None)
    assert loaded(home) == (10, 1.0)


def test_so_many_are_kept_as_the_script_says(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40, 50):
        checkpoint.save(state(1.0), step, tmp_path, keep=4)
    assert [entry.step for entry in checkpoint.entries(tmp_path)] == [20, 30, 40, 50]
    for rank in range(2):
        part = {"w": LocalTensor(torch.full((2,), float(rank)), Region((2 * rank,), (2,)), (4,))}
        checkpoint.save_shard(part, 60, tmp_path, rank=rank, world_size=2, run="a", keep=3)
    assert [entry.step for entry in checkpoint.entries(tmp_path)] == [40, 50, 60]
    checkpoint.save(state(1.0), 70, tmp_path)
    assert [entry.step for entry in checkpoint.entries(tmp_path)] == [60, 70]
    for keep in (0, -1, True, "2"):
        with pytest.raises(ValueError, match="give how many of the newest checkpoints stay"):
            checkpoint.save(state(1.0), 80, tmp_path, keep=keep)  # type: ignore[arg-type]
