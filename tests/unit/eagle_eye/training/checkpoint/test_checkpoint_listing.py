"""What counts as "there is no checkpoint": a training that begins anew because of it loses all that it had."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_eye import DcpReader
from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint import checkpoint_directory, checkpoint_reader


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_DIR", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "EAGLE_EYE_RUN", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)


def save(home: Path, *steps: int) -> None:
    for step in steps:
        assert checkpoint.save({"x": torch.full((4,), float(step))}, step, home) is not None


def load(home: Path) -> int | None:
    found = checkpoint.load(home)
    return None if found is None else found[1]


def restore(home: Path) -> int | None:
    template = {"x": torch.zeros(4)}
    found = checkpoint.restore(template, home)
    assert found is None or template["x"].tolist() == [float(found.step)] * 4
    return None if found is None else found.step


def read_metadata(home: Path) -> int | None:
    reader = DcpReader(home)
    try:
        reader.read_metadata()
    except FileNotFoundError:
        return None
    return reader.step


LOADS = pytest.mark.parametrize("how", [load, restore, read_metadata])
Load = Callable[[Path], int | None]


# --- a directory that does not say what is in it -------------------------------------------------------------------------------


def _refusing(real: Callable[..., Any], refused: Path, code: int) -> Callable[..., Any]:
    """root may read everything: the kernel's answer to anybody else."""

    def call(path: Any = ".", *arguments: Any, **named: Any) -> Any:
        if isinstance(path, str | os.PathLike) and Path(path) == refused:
            raise OSError(code, os.strerror(code), os.fspath(path))
        return real(path, *arguments, **named)

    return call


@LOADS
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE, errno.EPERM])
def test_a_directory_that_cannot_be_listed_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Load, code: int) -> None:
    save(tmp_path, 10)
    with monkeypatch.context() as away:
        for name in ("listdir", "scandir"):
            away.setattr(os, name, _refusing(getattr(os, name), tmp_path, code))
        for call in (how, checkpoint.entries, checkpoint_directory.prune, lambda home: checkpoint.discard_after(home, 1)):
            with pytest.raises(OSError, match=str(tmp_path)) as raised:
                call(tmp_path)
            assert raised.value.errno == code
    assert how(tmp_path) == 10


@LOADS
def test_a_file_in_its_place_raises(tmp_path: Path, how: Load) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError):
            how(path)


@LOADS
def test_twin_where_there_is_no_directory_or_nothing_in_it_there_is_no_checkpoint(tmp_path: Path, how: Load) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "missing", tmp_path / "missing" / "below", tmp_path, tmp_path / "link"):
        assert how(path) is None


@LOADS
def test_manifests_that_may_not_be_opened_are_none_only_beside_one_that_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Load) -> None:
    """A directory that may be listed, and not be entered."""
    save(tmp_path, 10, 20)
    newer, older = (tmp_path / checkpoint_directory.manifest_name(step) for step in (20, 10))
    monkeypatch.setattr(os, "open", _refusing(os.open, newer, errno.EACCES))
    assert how(tmp_path) == 10, "twin: the older one is whole"
    monkeypatch.setattr(os, "open", _refusing(os.open, older, errno.EACCES))
    with pytest.raises(PermissionError, match=str(newer.name)[:5]):
        how(tmp_path)


# --- what is no file ---------------------------------------------------------------------------------------------------------------


@LOADS
def test_a_fifo_that_is_named_as_a_manifest_holds_nobody_up(tmp_path: Path, how: Load) -> None:
    done: list[int | None] = []

    def work() -> None:
        save(tmp_path, 10)
        for name in ("step-000000000020.json", "step-000000000030.a.0-of-2.part", "step-000000000040.json.discarded"):
            os.mkfifo(tmp_path / name)
        done.append(how(tmp_path))
        save(tmp_path, 11)
        done.append(how(tmp_path))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert done == [10, 11]


@LOADS
def test_a_fifo_or_a_directory_alone_is_no_checkpoint(tmp_path: Path, how: Load) -> None:
    (tmp_path / "step-000000000010.json").mkdir()
    assert how(tmp_path) is None
    assert [each.path.name for each in checkpoint_directory.contents(tmp_path)[1]] == ["step-000000000010.json"]


# --- another process saves meanwhile --------------------------------------------------------------------------------------------


def _saving_meanwhile(monkeypatch: pytest.MonkeyPatch, times: int, change: Callable[[int], None]) -> list[int]:
    """After a listing another process does this, so many times. Which of them it has done."""
    done: list[int] = []
    real = checkpoint_directory.contents

    def contents(home: Any) -> Any:
        found = real(home)
        if len(done) < times:
            done.append(len(done))
            change(done[-1])
        return found

    monkeypatch.setattr(checkpoint_reader, "contents", contents)
    return done


@LOADS
@pytest.mark.parametrize("times", [1, 2])
def test_what_was_listed_and_deleted_meanwhile_is_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Load, times: int) -> None:
    save(tmp_path, 10, 20)
    done = _saving_meanwhile(monkeypatch, times, lambda number: save(tmp_path, *(30 + 30 * number + each for each in (0, 10, 20))))
    assert how(tmp_path) == 50 + 30 * (times - 1)
    assert len(done) == times


@LOADS
def test_a_step_that_was_saved_again_meanwhile_is_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Load) -> None:
    """Its manifest has the same name, and other shards."""
    save(tmp_path, 10)
    _saving_meanwhile(monkeypatch, 1, lambda _: save(tmp_path, 10))
    assert how(tmp_path) == 10


@LOADS
def test_it_is_listed_three_times_at_most_and_once_where_nothing_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Load) -> None:
    save(tmp_path, 10)
    for entry in checkpoint.entries(tmp_path):
        os.truncate(entry.shards[0], 10)

    def come(number: int) -> None:
        (tmp_path / f"step-{number:012d}-0-0-0-0-0.safetensors").write_bytes(b"")

    with monkeypatch.context() as busy:
        assert how(tmp_path) is None
        done = _saving_meanwhile(busy, 9, come)
        assert how(tmp_path) is None
        assert len(done) == 3
    done = _saving_meanwhile(monkeypatch, 9, lambda _: None)
    assert how(tmp_path) is None
    assert len(done) == 1, "twin"


def test_what_was_passed_over_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 10)
    os.truncate(checkpoint.entries(tmp_path)[0].shards[0], 10)
    _saving_meanwhile(monkeypatch, 1, lambda _: save(tmp_path, 20) or os.truncate(checkpoint.entries(tmp_path)[-1].shards[0], 10) or save(tmp_path, 5))  # type: ignore[func-returns-value]
    found = checkpoint.restore({"x": torch.zeros(4)}, tmp_path)
    assert found is not None
    assert (found.step, [each.path.name for each in found.skipped]) == (5, [])
