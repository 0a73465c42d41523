import errno
import json
import logging
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_eye.training import checkpoint, messages


def state(value: float = 1.0) -> dict[str, Any]:
    return {
        "model": {"layer.weight": torch.full((2, 3), value), "layer": {"weight": torch.zeros(1)}},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "betas": (0.9, 0.999), "lr": 1e-3},
        "names": ["a", None, True],
        "$odd": 1,
    }


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_DIR", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH"):
        monkeypatch.delenv(name, raising=False)


def steps(home: Path) -> list[int]:
    return [entry.step for entry in checkpoint.entries(home)]


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    checkpoint.save(state(), 20, tmp_path)
    found = checkpoint.load(tmp_path)
    assert found is not None
    loaded, step = found
    assert step == 20
    assert torch.equal(loaded["model"]["layer.weight"], torch.ones(2, 3))
    assert torch.equal(loaded["model"]["layer"]["weight"], torch.zeros(1))
    assert loaded["optimizer"]["state"][0]["step"].item() == 3.0
    assert loaded["optimizer"]["betas"] == (0.9, 0.999)
    assert (loaded["names"], loaded["$odd"]) == (["a", None, True], 1)


def test_where_there_is_none_none_is_loaded(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path / "missing") is None


def test_the_directory_comes_from_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_EYE_CHECKPOINT_DIR", str(tmp_path / "here"))
    checkpoint.save(state(), 1)
    assert steps(tmp_path / "here") == [1]


def test_shared_tensors_are_saved(tmp_path: Path) -> None:
    tied = torch.ones(3)
    checkpoint.save({"input": tied, "output": tied, "view": tied[1:]}, 1, tmp_path)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert torch.equal(found[0]["view"], torch.ones(2))


def test_what_would_need_pickle_is_refused_by_its_place(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"object at 'state\.model\.x'"):
        checkpoint.save({"model": {"x": object()}}, 1, tmp_path)
    assert steps(tmp_path) == []


def test_two_are_kept_and_nothing_else(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        checkpoint.save(state(), step, tmp_path)
    assert steps(tmp_path) == [30, 40]
    assert len(list(tmp_path.iterdir())) == 4


def test_the_newest_finite_one_is_kept_and_loaded(tmp_path: Path) -> None:
    checkpoint.save(state(), 10, tmp_path)
    for step in (20, 30, 40):
        checkpoint.save(state(math.nan), step, tmp_path)
    assert [(entry.step, entry.finite) for entry in checkpoint.entries(tmp_path)] == [
        (10, True),
        (30, False),
        (40, False),
    ]
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found[1] == 10


def test_a_resume_step_is_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(state(), 10, tmp_path)
    checkpoint.save(state(), 20, tmp_path)
    for limit, expected in (("19", 10), ("20", 20), ("-1", 20)):
        monkeypatch.setenv("EAGLE_EYE_RESUME_STEP", limit)
        found = checkpoint.load(tmp_path)
        assert found is not None
        assert found[1] == expected
    assert checkpoint.load(tmp_path, at_most=9) is None


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [_cut, _flip, Path.unlink])
def test_a_torn_one_is_named_and_the_older_is_taken(tmp_path: Path, harm: Any, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint.save(state(), 10, tmp_path)
    checkpoint.save(state(), 20, tmp_path)
    harm(checkpoint.entries(tmp_path)[-1].shards[0])
    with caplog.at_level(logging.WARNING):
        found = checkpoint.load(tmp_path)
    assert found is not None
    assert found[1] == 10
    assert "step-000000000020" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99}'])
def test_a_manifest_that_cannot_be_read_is_passed_over(tmp_path: Path, text: str) -> None:
    checkpoint.save(state(), 10, tmp_path)
    (tmp_path / "step-000000000020.json").write_text(text)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found[1] == 10


@pytest.mark.parametrize(("before", "after"), [('"step": 20', '"step": 28'), ('"lr": 0.001', '"lr": 0.901'), ('"finite": true', '"finite": 1   ')])
def test_a_manifest_in_which_a_digit_was_lost_is_passed_over(tmp_path: Path, before: str, after: str) -> None:
    """It holds the step, and what of the state is no tensor: training would go on with another learning rate."""
    checkpoint.save(state(), 10, tmp_path)
    path = checkpoint.save_or_raise({"lr": 0.001, "schedule": {1: 2, 10: 3, 9: float("nan")}}, 20, tmp_path)
    whole = path.read_text()
    assert before in whole
    path.write_text(whole.replace(before, after))
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found[1] == 10
    path.write_text(whole)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert (found[0]["lr"], found[1]) == (0.001, 20), "twin: as it was written"


@pytest.mark.parametrize("text", ["[]", "7", '"x"', '{"data": ' + "[" * 100_000, '{"step": "9", "version": 1, "bytes": Infinity}'])
def test_a_manifest_of_any_kind_beside_it_fails_no_save(tmp_path: Path, text: str) -> None:
    (tmp_path / "step-000000000005.json").write_text(text)
    checkpoint.save_or_raise(state(), 10, tmp_path)
    assert [entry.step for entry in checkpoint.entries(tmp_path)] == [10]


def test_a_manifest_names_no_file_outside(tmp_path: Path) -> None:
    manifest = {"version": 1, "step": 10, "data": "../../etc/passwd", "bytes": 1, "crc32": 0, "finite": True, "epoch": 1, "rest": {}}
    (tmp_path / "step-000000000010.json").write_text(json.dumps(manifest))
    assert checkpoint.entries(tmp_path)[0].shards == [tmp_path / "passwd"]
    assert checkpoint.load(tmp_path) is None


def test_without_its_manifest_there_is_no_checkpoint(tmp_path: Path) -> None:
    """A kill between the two renames leaves the tensors alone; the next save sweeps them away."""
    path = checkpoint.save_or_raise(state(), 10, tmp_path)
    path.unlink()
    assert checkpoint.load(tmp_path) is None
    checkpoint.save(state(), 20, tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_what_a_killed_writer_left_is_swept_away(tmp_path: Path) -> None:
    checkpoint.save(state(), 10, tmp_path)
    shard = checkpoint.entries(tmp_path)[0].shards[0].name
    killed, elsewhere = (tmp_path / f".{name}.7.{2**22 + 1}.new" for name in (shard, shard.replace(shard.split("-")[-3], "another")))
    for path in (killed, elsewhere):
        path.write_text("half")
    checkpoint.save(state(), 20, tmp_path)
    assert list(tmp_path.glob(".step*")) == [elsewhere], "what another machine calls by that number may be alive"
    long_ago = time.time() - 2 * checkpoint.LEFT_S
    os.utime(elsewhere, (long_ago, long_ago))
    checkpoint.save(state(), 30, tmp_path)
    assert not list(tmp_path.glob(".step*"))


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    checkpoint.save(state(1.0), 10, tmp_path)
    checkpoint.save(state(2.0), 10, tmp_path)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found[0]["model"]["layer.weight"][0, 0].item() == 2.0


def test_a_roll_back_puts_newer_ones_aside_for_good(tmp_path: Path) -> None:
    checkpoint.save(state(), 10, tmp_path)
    checkpoint.save(state(), 20, tmp_path)
    assert checkpoint.discard_after(tmp_path, 15) == [20]
    assert steps(tmp_path) == [10]
    checkpoint.save(state(), 18, tmp_path)
    assert steps(tmp_path) == [10, 18]


# --- storage that refuses ---------------------------------------------------------------------------------------------


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> list[messages.ProbeMessage]:
    """What a launcher is told."""
    told: list[messages.ProbeMessage] = []
    monkeypatch.setenv("EAGLE_EYE_SOCKET", "launcher.sock")
    monkeypatch.setenv("EAGLE_EYE_WORKER", "r/n0/0")
    monkeypatch.setattr(messages, "send", lambda _path, line: told.append(messages.decode(line)))
    return told


def refuse(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC) -> None:
    def full(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.fsync", full)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_refused_save_is_told_and_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: list[messages.ProbeMessage], code: int) -> None:
    checkpoint.save(state(), 10, tmp_path)
    with monkeypatch.context() as away:
        refuse(away, code)
        assert checkpoint.save(state(), 20, tmp_path) is None
    assert steps(tmp_path) == [10]
    assert not list(tmp_path.glob(".step*"))
    assert [message["kind"] for message in launcher] == ["checkpoint", "checkpoint_failed"]
    failed = launcher[-1]
    assert (failed["worker"], failed["step"], failed["path"], failed["errno"]) == ("r/n0/0", 20, str(tmp_path), errno.errorcode[code])
    assert failed["free_bytes"] > 0
    assert failed["needed_bytes"] > 0
    checkpoint.save(state(), 30, tmp_path)
    assert (launcher[-1]["kind"], launcher[-1]["step"]) == ("checkpoint", 30)


def test_twin_what_is_wrong_with_the_state_raises_and_is_no_failed_save(tmp_path: Path, launcher: list[messages.ProbeMessage]) -> None:
    with pytest.raises(TypeError, match="a checkpoint cannot hold object"):
        checkpoint.save({"x": object()}, 1, tmp_path)
    assert launcher == []


def test_twin_older_ones_that_cannot_be_deleted_are_no_failed_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: list[messages.ProbeMessage]) -> None:
    for step in (10, 20):
        checkpoint.save(state(), step, tmp_path)

    def stuck(_: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "unlink", stuck)
    assert checkpoint.save(state(), 30, tmp_path) is not None
    assert {message["kind"] for message in launcher} == {"checkpoint"}
    assert steps(tmp_path) == [10, 20, 30]


def test_a_caller_that_waits_for_room_itself_is_told_by_an_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: list[messages.ProbeMessage]) -> None:
    refuse(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save_or_raise(state(), 20, tmp_path)
    assert [message["kind"] for message in launcher] == ["checkpoint_failed"]


def test_data_that_another_process_is_about_to_name_are_not_swept_away(tmp_path: Path) -> None:
    other = tmp_path / f"step-000000000030-1-{os.getpid() + 1}-5.safetensors"
    other.write_bytes(b"half of a save")
    checkpoint.save(state(), 20, tmp_path)
    assert other.exists()
    long_ago = time.time() - 2 * checkpoint.LEFT_S
    os.utime(other, (long_ago, long_ago))
    checkpoint.save(state(), 30, tmp_path)
    assert not other.exists()
