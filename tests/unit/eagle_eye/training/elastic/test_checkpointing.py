"""The last checkpoint of a job: written as soon as there is room, and until then its state is kept."""

import contextlib
import resource
from pathlib import Path

import pytest
import torch

from eagle_eye.training import checkpoint
from eagle_eye.training.elastic import checkpointing
from eagle_eye.training.elastic.checkpointing import Checkpointing
from fakes.full_disk import file_size_limit
from fakes.transfer_processes import train_state


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "RETRY_S", 0.001)


def test_it_waits_for_room_and_says_what_it_needs(tmp_path: Path) -> None:
    checkpoint.save({"weight": torch.ones(3)}, 1, tmp_path)
    ours = train_state(0, steps=2, width=60)
    said: list[tuple[str, str]] = []

    def say(why: str, path: str) -> None:
        first = not any(words for words, _ in said)
        said.append((why, path))
        if why and first:
            assert (checkpoint.load(tmp_path) or ({}, -1))[1] == 1, "the one before is untouched"
            resource.setrlimit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1:] * 2)

    with file_size_limit(4096):
        path = Checkpointing(0, tmp_path).save_now(ours, say)
    why = next(why for why, _ in said if why)
    assert f"the state of step 2 cannot be saved to {tmp_path}: File too large; it needs 117 kB, " in why
    assert " are free. " in why
    assert "the newest checkpoint is that of step 1" in why
    assert said[-1] == ("", str(path))
    found = train_state(1, width=60)
    Checkpointing(0, tmp_path).load(found)
    assert (found.step, found.digest()) == (2, ours.digest())


def test_a_folder_that_cannot_be_made_is_named_too(tmp_path: Path) -> None:
    wall = tmp_path / "wall"
    wall.touch()
    said: list[str] = []

    def say(why: str, _: str) -> None:
        said.append(why)
        if why and wall.is_file():
            with contextlib.suppress(OSError):  # the thread that repeats the words does the same
                wall.unlink()

    assert Checkpointing(0, wall / "kept").save_now(train_state(0, steps=1), say).exists()
    assert f"cannot be saved to {wall / 'kept'}: Not a directory" in next(filter(None, said))
    assert "there is no older checkpoint" in next(filter(None, said))
