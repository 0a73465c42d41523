"""`eagle-eye checkpoint memory`: what lies in the memory of a node, as people see it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from eagle_eye.app.cli import main
from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints


def typed(folder: Path, *words: object) -> str:
    result = CliRunner().invoke(main, ["checkpoint", "memory", str(folder), *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), "a bug shows its traceback"
    return result.output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A worker that is running has steps 4 and 5, that of the other slot the same, and step 5 is not finite; a copy of rank 3 is kept for another node."""
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("EAGLE_EYE_SOCKET", "EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_COPIES"):
        monkeypatch.delenv(name, raising=False)
    running: list[MemoryCheckpoints] = []
    for file, worker, rank, saves in (("ee-r-n0-0", "r/n0/0", 0, {4: 1.0, 5: 1.0}), ("ee-r-n0-1", "r/n0/1", 1, {4: 1.0, 5: float("nan")}), ("ee-r-n0-backup-3of4", "r/n0/3of4", 3, {4: 1.0})):
        for name, value in {"EAGLE_EYE_WORKER": worker, "RANK": rank, "WORLD_SIZE": 4, "EAGLE_EYE_EPOCH": 2}.items():
            monkeypatch.setenv(name, str(value))
        memory = MemoryCheckpoints([], tmp_path / f"{file}.memory")
        for step, value in saves.items():
            state = {"model": {"w": torch.full((4, 2), value)}}
            assert memory.prepare(state)
            assert memory.save(state, step, data_position={"batch": 7})
            memory.finish()
        running.append(memory)
    (tmp_path / "other.memory").write_bytes(b"x" * 10_000)
    yield tmp_path
    for memory in running:
        memory.close()


def test_copies_are_listed_with_what_can_be_gone_on_from(folder: Path) -> None:
    shown = [json.loads(line) for line in typed(folder, "--json").splitlines()]
    assert [(each["worker"], each.get("step"), each.get("finite"), each["backup"]) for each in shown] == [
        ("r/n0", 4, True, True), ("r/n0", None, None, True), ("r/n0/0", 4, True, False), ("r/n0/0", 5, True, False), ("r/n0/1", 4, True, False), ("r/n0/1", 5, False, False),
    ]  # fmt: skip
    assert {(each["epoch"], each["ranks"], each["bytes"]) for each in shown if "step" in each} == {(2, 4, 32)}
    text = typed(folder)
    for words in ("kept for another node by r/n0", "whole, but holds values that are not finite: it is not loaded", "nothing whole is there", "3 of 4"):
        assert words in text, words
    assert len(text.splitlines()) == 1 + len(shown)


def test_one_copy_shows_its_tensors_and_where_it_reads_on(folder: Path) -> None:
    text = typed(folder, "--worker", "r/n0/0", "--step", 5)
    assert "step 5, epoch 2" in text
    assert 'data position {"batch": 7}' in text
    assert "model.w" in text
    assert "4x2" in text
    shown = json.loads(typed(folder, "--worker", "r/n0/0", "--step", 5, "--json"))
    assert (shown["data_position"], shown["tensors"]["state.model.w"]["shape"], shown["rank"]) == ({"batch": 7}, [4, 2], 0)
    for worker, kept in (("r/n0/1", False), ("r/n0", True)):
        assert json.loads(typed(folder, "--worker", worker, "--step", 4, "--json"))["backup"] == kept


def test_what_is_not_there_is_said_with_what_is(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert "there: 4, 5" in typed(folder, "--step", 9)
    assert "name one with --worker: r/n0/0, r/n0/1" in typed(folder, "--step", 5)
    assert "no checkpoint of this user and of r/n9/0 is in" in typed(folder, "--worker", "r/n9/0")
    assert "no checkpoint of this user is in" in typed(tmp_path_factory.mktemp("empty"))


def test_nothing_is_changed_by_who_looks(folder: Path) -> None:
    path = folder / "ee-r-n0-0.memory"
    before, content = path.stat(), path.read_bytes()
    typed(folder)
    typed(folder, "--worker", "r/n0/0", "--step", 5)
    assert (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes() == content) == (before.st_mtime_ns, before.st_ino, True)


def test_a_copy_with_numbers_that_json_has_no_word_for_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    memory = MemoryCheckpoints([], tmp_path / "ee-r-n0-0.memory")
    state = {"best": float("inf"), "caf\udce9": torch.ones(2), "file": "caf\udce9"}
    assert memory.prepare(state)
    assert memory.save(state, 4, data_position={"loss": float("nan"), "file": "caf\udce9"})
    memory.close()
    assert "state.caf" in typed(tmp_path, "--step", 4)
    shown = json.loads(typed(tmp_path, "--step", 4, "--json"), parse_constant=pytest.fail)
    assert (shown["step"], shown["state"], shown["data_position"]["loss"]) == (4, "whole", {"$float": "nan"})
