"""The checkpoints of an elastic job: training waits for none for long, and the last one is written as soon as there is room."""

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from eagle_eye.training import checkpoint
from eagle_eye.training.elastic import checkpointing
from eagle_eye.training.elastic.checkpointing import Checkpointing
from eagle_eye.training.object_path import ObjectPath
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
    assert "whether there is an older checkpoint is unknown" in next(filter(None, said)), "what may not be read, or is no directory, does not say"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set: the storage answers; until then whoever makes a file durable there hangs."""
    event, fsync = threading.Event(), os.fsync

    def hangs(file: int) -> None:
        event.wait(60)
        fsync(file)

    monkeypatch.setattr(os, "fsync", hangs)
    yield event
    event.set()


def saved(folder: Path) -> list[int]:
    return [entry.step for entry in checkpoint.entries(folder)]


def test_training_goes_on_while_the_storage_does_not_answer(tmp_path: Path, answers: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(checkpointing, "WAIT_S", 0.001)
    ours, checkpoints = train_state(0, steps=1), Checkpointing(1, tmp_path)
    for step in (1, 2, 3):
        ours.step = step
        checkpoints.after_step(ours, 0)
    assert "no checkpoint of step 3" in caplog.text
    assert "an earlier checkpoint is still being written there; training goes on" in caplog.text
    assert saved(tmp_path) == []
    answers.set()
    ours.step = 4
    said: list[str] = []
    checkpoints.save_last(ours, 0, lambda why, _: said.append(why))
    assert saved(tmp_path) == [1, 4], "what was left out is not saved later: the newest is"


def test_the_last_checkpoint_waits_for_an_earlier_one_and_says_so(tmp_path: Path, answers: threading.Event) -> None:
    ours, checkpoints = train_state(0, steps=1), Checkpointing(1, tmp_path)
    checkpoints.after_step(ours, 0)
    said: list[str] = []

    def say(why: str, _: str) -> None:
        said.append(why)
        answers.set()

    checkpoints.save_last(ours, 0, say)
    assert said[0] == "an earlier checkpoint is still being written"
    assert said[-1] == ""


def test_twin_a_slow_disk_is_waited_for(tmp_path: Path, answers: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "WAIT_S", 60.0)
    ours, checkpoints = train_state(0, steps=1), Checkpointing(1, tmp_path)
    checkpoints.after_step(ours, 0)
    threading.Timer(0.05, answers.set).start()
    ours.step = 2
    checkpoints.after_step(ours, 0)
    checkpoints.save_last(ours, 0, lambda *_: None)
    assert saved(tmp_path) == [1, 2]


def test_where_no_thread_may_be_started_training_waits_for_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's limit of processes counts threads, too; it is no error of the training."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    ours, checkpoints = train_state(0, steps=1), Checkpointing(1, tmp_path)
    checkpoints.after_step(ours, 0)
    assert saved(tmp_path) == [1]
    ours.step = 2
    said: list[str] = []
    checkpoints.save_last(ours, 0, lambda why, _: said.append(why))
    assert (saved(tmp_path), said) == ([1, 2], [""])


def test_the_last_checkpoint_waits_for_an_object_store_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(checkpointing, "RETRY_S", 0.01)
    home, is_gone, said = ObjectPath("memory://gpt"), threading.Event(), list[str]()
    is_gone.set()

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            if is_gone.is_set():
                raise RuntimeError("Could not connect to the endpoint URL")
            return real(*words, **options)

        return call

    for name in ("pipe_file", "ls"):
        monkeypatch.setattr(MemoryFileSystem, name, refusing(getattr(MemoryFileSystem, name)))

    def say(why: str, _: str) -> None:
        said.append(why)
        if "cannot be saved" in why:
            is_gone.clear()

    ours = train_state(0, steps=1)
    assert Checkpointing(1, home).save_now(ours, say) == home / "step-000000000001.json"
    assert any("cannot be saved to memory://gpt: Could not connect" in why and "whether there is an older checkpoint is unknown" in why for why in said)
