import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_eye.training import checkpoint


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
    harm(checkpoint.entries(tmp_path)[-1].data)
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


def test_a_manifest_names_no_file_outside(tmp_path: Path) -> None:
    path = checkpoint.save(state(), 10, tmp_path)
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "data": "../../etc/passwd"}))
    assert checkpoint.entries(tmp_path)[0].data == tmp_path / "passwd"
    assert checkpoint.load(tmp_path) is None


def test_without_its_manifest_there_is_no_checkpoint(tmp_path: Path) -> None:
    """A kill between the two renames leaves the tensors alone; the next save sweeps them away."""
    path = checkpoint.save(state(), 10, tmp_path)
    path.unlink()
    assert checkpoint.load(tmp_path) is None
    checkpoint.save(state(), 20, tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_what_a_killed_writer_left_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / f".step-000000000010.json.{2**22 + 1}.new").write_text("half")
    checkpoint.save(state(), 20, tmp_path)
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


def test_no_room_leaves_the_older_ones_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(state(), 10, tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(state(), 20, tmp_path)
    assert steps(tmp_path) == [10]
    assert not list(tmp_path.glob(".step*"))
