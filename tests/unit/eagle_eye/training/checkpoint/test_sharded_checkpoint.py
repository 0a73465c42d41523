"""Saves of several ranks, and loads by another number of them. Ranks are calls one after the other: nothing but the directory connects them."""

import errno
import json
import logging
import os
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from eagle_eye.errors import ConfigError
from eagle_eye.training import atomic_file, checkpoint, messages
from eagle_eye.training.checkpoint import LocalTensor, LocalTensors, Region, RestoredCheckpoint, checkpoint_writer
from eagle_eye.training.checkpoint.manifest import ShardFile


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_DIR", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "EAGLE_EYE_RUN", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)  # a hundred files, on a disk that others use


def bits(rows: int, salt: int = 0) -> torch.Tensor:
    """Rows of numbers that need all their bits."""
    return (torch.arange(rows * 3, dtype=torch.float64) + salt).sin().float().reshape(rows, 3)


def part(tensor: torch.Tensor, rows: Sequence[int], rank: int) -> LocalTensor:
    """Of a tensor that is cut into so many rows per rank."""
    begin = sum(rows[:rank])
    return LocalTensor(tensor[begin : begin + rows[rank]].clone(), Region((begin, 0), (rows[rank], 3)), tuple(tensor.shape))


def cut(rows: Sequence[int], rank: int, salt: int = 0, fill: float | None = None) -> dict[str, Any]:
    """The state of one rank: a weight and its moment in two precisions, and what all ranks have."""
    total = sum(rows)
    full = bits(total, salt), bits(total, salt + 1).bfloat16()
    if fill is not None:
        full = torch.full_like(full[0], fill), torch.full_like(full[1], fill)
    return {"model": {"w": part(full[0], rows, rank)}, "moments": {0: part(full[1], rows, rank)}, "steps": torch.tensor(float(salt if fill is None else fill)), "lr": 0.1 + salt}


def save_all(home: Path, rows: Sequence[int], step: int = 10, salt: int = 0, ranks: Sequence[int] | None = None, run: str = "a") -> list[Path | None]:
    each = range(len(rows)) if ranks is None else ranks
    return [
        checkpoint.save_shard(cut(rows, rank, salt), step, home, rank=rank, world_size=len(rows), run=run, per_rank={"rng": torch.tensor([rank])}, layout={"dp": len(rows)}, data_position={"sample": step * 8})
        for rank in each
    ]


def restore(home: Path, rows: Sequence[int], rank: int, salt: int = 0) -> RestoredCheckpoint:
    """Restored, and compared with what was saved bit by bit."""
    found = checkpoint.restore(cut(rows, rank, fill=7.0), home, rank=rank)
    assert found is not None
    expected = cut(rows, rank, salt)
    assert torch.equal(found.state["model"]["w"].tensor, expected["model"]["w"].tensor)
    assert torch.equal(found.state["moments"][0].tensor, expected["moments"][0].tensor)
    assert (found.state["steps"].item(), found.state["lr"]) == (float(salt), 0.1 + salt)
    return found


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [([3, 3, 3, 3], [4, 4, 4]), ([2] * 8, [3, 3, 3, 3, 3, 1]), ([3, 3, 2], [8]), ([8], [3, 3, 2]), ([3, 3, 2], [1] * 8), ([4, 4, 0], [2, 6]), ([4], [4])],
    ids=lambda rows: "+".join(map(str, rows)),
)
def test_what_some_ranks_saved_another_number_of_them_loads(tmp_path: Path, saved: list[int], loaded: list[int]) -> None:
    paths = save_all(tmp_path, saved)
    assert paths[-1] == tmp_path / "step-000000000010.json"
    for rank in range(len(loaded)):
        found = restore(tmp_path, loaded, rank)
        assert (found.step, found.data_position, found.skipped) == (10, {"sample": 80}, ())
        assert "$tensor" not in str(found.state)
    whole = checkpoint.load(tmp_path)
    assert whole is not None
    assert torch.equal(whole[0]["model"]["w"], bits(sum(saved)))
    assert whole[0]["lr"] == 0.1


def test_each_order_of_the_ranks_makes_the_same_checkpoint(tmp_path: Path) -> None:
    save_all(tmp_path, [3, 3, 2], ranks=[2, 0, 1])
    manifest = checkpoint.entries(tmp_path)[0].manifest
    assert [shard.rank for shard in manifest.shards] == [0, 1, 2]
    assert (manifest.layout, manifest.world_size) == ({"dp": 3}, 3)
    assert not list(tmp_path.glob("*.part"))
    restore(tmp_path, [8], 0)


def test_what_one_rank_alone_had_it_gets_again_with_as_many_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_all(tmp_path, [3, 3, 2])
    assert restore(tmp_path, [3, 3, 2], 2).per_rank["rng"].item() == 2
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert restore(tmp_path, [4, 4], 1).per_rank is None


def test_stages_of_a_pipeline_are_cut_anew(tmp_path: Path) -> None:
    """Two stages of two replicas each: every replica has all of its stage's layers, and the first writes them."""
    layers = {f"layer{index}": bits(2, index) for index in range(4)}

    def stage(rank: int, of: int) -> dict[str, Any]:
        names = list(layers)[rank * 4 // of : (rank + 1) * 4 // of]
        return {"model": {name: layers[name].clone() for name in names}, "note": "same"}

    for rank in range(4):
        checkpoint.save_shard(stage(rank // 2, 2), 3, tmp_path, rank=rank, world_size=4, run="a", writes_whole=rank % 2 == 0)
    template = {"model": {"layer1": torch.zeros(2, 3), "layer2": torch.zeros(2, 3)}, "note": ""}
    with pytest.raises(ConfigError, match=r"'state\.model\.layer0' is in it and not here"):
        checkpoint.restore(template, tmp_path)
    found = checkpoint.restore(template, tmp_path, strict=False)
    assert found is not None
    assert found.state.keys() == {"model", "note"}
    assert found.state["model"].keys() == {"layer1", "layer2"}
    assert all(torch.equal(found.state["model"][name], layers[name]) for name in template["model"])
    assert found.state["note"] == "same"


# --- torn -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", range(3))
def test_without_one_rank_nothing_is_visible_and_the_older_step_is_loaded(tmp_path: Path, missing: int) -> None:
    save_all(tmp_path, [3, 3, 2], 10)
    save_all(tmp_path, [3, 3, 2], 20, salt=5, ranks=[rank for rank in range(3) if rank != missing])
    assert [entry.step for entry in checkpoint.entries(tmp_path)] == [10]
    assert (checkpoint.load(tmp_path) or ({}, 0))[1] == 10
    save_all(tmp_path, [3, 3, 2], 20, salt=5, ranks=[missing])
    assert restore(tmp_path, [4, 4], 1, salt=5).step == 20


def test_shards_of_two_starts_of_a_job_are_never_mixed(tmp_path: Path) -> None:
    save_all(tmp_path, [3, 3, 2], 20, ranks=[0, 1], run="first")
    save_all(tmp_path, [3, 3, 2], 20, salt=5, ranks=[2], run="second")
    assert checkpoint.entries(tmp_path) == []
    save_all(tmp_path, [3, 3, 2], 20, salt=5, ranks=[0, 1], run="second")
    restore(tmp_path, [8], 0, salt=5)


class Killed(BaseException):
    """The process is no more."""


def test_a_kill_at_any_moment_of_a_save_leaves_the_new_step_or_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer dies before its n-th change of the directory, for every n; nothing is cleaned up."""
    seen = set()
    save_all(tmp_path / "before", [3, 2], 10)
    for moment in range(1, 30):
        home = tmp_path / str(moment)
        shutil.copytree(tmp_path / "before", home)
        left = [moment]

        def counted(call: Any, left: list[int] = left) -> Any:
            def change(*arguments: Any, **named: Any) -> Any:
                left[0] -= 1
                if left[0] <= 0:
                    raise Killed
                return call(*arguments, **named)

            return change

        with monkeypatch.context() as dying:
            for owner, name in ((Path, "replace"), (Path, "unlink"), (os, "fsync")):
                dying.setattr(owner, name, counted(getattr(owner, name)))
            try:
                save_all(home, [3, 2], 20, salt=5)
            except Killed:
                killed = True
            else:
                killed = False
        step = checkpoint.entries(home)[-1].step
        restore(home, [5], 0, salt=5 if step == 20 else 0)
        seen.add((step, killed))
        if not killed:
            break
    assert seen == {(10, True), (20, True), (20, False)}


def test_a_refused_manifest_leaves_the_parts_and_is_made_by_the_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = atomic_file.replace

    def refused(path: Path, data: Any, **named: Any) -> None:
        if path.suffix == ".json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, data, **named)

    with monkeypatch.context() as full:
        full.setattr(atomic_file, "replace", refused)
        assert save_all(tmp_path, [3, 2])[-1] is None
    assert checkpoint.entries(tmp_path) == []
    refused_save = checkpoint_writer._retry._pending
    assert isinstance(refused_save, checkpoint_writer.PreparedCheckpoint)
    assert checkpoint_writer._write(refused_save) == tmp_path / "step-000000000010.json"
    restore(tmp_path, [5], 0)


def harm(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.write_bytes(data)


def test_a_flipped_bit_is_named_and_an_older_whole_step_is_loaded_into_all_of_the_template(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_all(tmp_path, [3, 3, 2], 10)
    save_all(tmp_path, [3, 3, 2], 20, salt=5)
    harmed = checkpoint.entries(tmp_path)[-1].shards[2]
    harm(harmed)
    with caplog.at_level(logging.WARNING):
        found = restore(tmp_path, [8], 0)
    assert found.step == 10
    assert [(skipped.path.name, str(harmed) in skipped.reason) for skipped in found.skipped] == [("step-000000000020.json", True)]
    assert "was changed since it was written" in caplog.text
    assert restore(tmp_path, [3, 3, 2], 0, salt=5).step == 20, "twin: a rank that needs nothing of that shard"


def test_where_none_is_whole_nothing_of_the_template_is_written(tmp_path: Path) -> None:
    save_all(tmp_path, [3, 3, 2])
    harm(checkpoint.entries(tmp_path)[-1].shards[2])
    template = cut([8], 0, fill=7.0)
    assert checkpoint.restore(template, tmp_path) is None
    assert torch.equal(template["model"]["w"].tensor, torch.full((8, 3), 7.0))


def test_a_shard_that_holds_another_tensor_than_its_manifest_says_is_refused(tmp_path: Path) -> None:
    checkpoint.save({"x": torch.ones(4)}, 10, tmp_path)
    entry = checkpoint.entries(tmp_path)[0]
    data = safetensors.torch.save({"state.x": torch.ones(4, dtype=torch.int32)})
    entry.shards[0].write_bytes(data)
    plain = json.loads(entry.path.read_text())
    del plain["manifest_crc32"]
    plain["shards"][0] |= {"bytes": len(data), "digest": f"crc32:{zlib.crc32(data):08x}"}
    text = json.dumps(plain)
    entry.path.write_text(f'{text[:-1]}, "manifest_crc32": {zlib.crc32(text.encode())}}}')
    found = checkpoint.entries(tmp_path)[0]
    assert found.manifest.shards == (ShardFile(entry.shards[0].name, len(data), zlib.crc32(data)),)
    assert checkpoint.load(tmp_path) is None


# --- another model, the same model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"x": torch.zeros(4), "y": torch.zeros(1)}, "it has no 'state.y'"),
        ({"x": torch.zeros(5)}, r"'state.x' is F32 \(5,\) here and F32 \(4,\) there"),
        ({"x": torch.zeros(4, dtype=torch.float64)}, "'state.x' is F64"),
        ({}, "'state.x' is in it and not here"),
    ],
)
def test_another_models_checkpoint_is_refused_and_no_older_one_is_taken_for_it(tmp_path: Path, template: dict[str, Any], said: str) -> None:
    checkpoint.save({"x": torch.ones(4), "n": 1}, 10, tmp_path)
    with pytest.raises(ConfigError, match=said):
        checkpoint.restore(template, tmp_path)
    new = {"x": torch.zeros(4), "n": 0, "m": "new in the script"}
    found = checkpoint.restore(new, tmp_path)
    assert found is not None
    assert found.state is not new
    assert (found.state["n"], found.state["m"], new["x"].tolist()) == (1, "new in the script", [1.0] * 4)


def test_parts_that_do_not_fit_are_told_and_raise_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[messages.ProbeMessage] = []
    monkeypatch.setenv("EAGLE_EYE_SOCKET", "launcher.sock")
    monkeypatch.setattr(messages, "send", lambda _path, line: told.append(messages.decode(line)))
    for rank, rows in enumerate(([3, 2], [3, 1])):
        checkpoint.save_shard(cut(rows, rank), 10, tmp_path, rank=rank, world_size=2, run="a")
    assert [message["kind"] for message in told] == ["checkpoint_failed"]
    assert "'state.model.w' is F32 (5, 3) on rank 0 and F32 (4, 3) on rank 1" in told[0]["reason"]
    assert checkpoint.entries(tmp_path) == []


def test_several_ranks_without_a_word_for_this_start_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="give run="):
        checkpoint.save_shard({"x": torch.ones(1)}, 1, tmp_path, rank=0, world_size=2)
    monkeypatch.setenv("EAGLE_EYE_RUN", "r1")
    monkeypatch.setenv("EAGLE_EYE_EPOCH", "2")
    assert checkpoint.save_shard({"x": torch.ones(1)}, 1, tmp_path, rank=0, world_size=2) is not None
    with pytest.raises(ValueError, match="rank=2, world_size=2"):
        checkpoint.save_shard({}, 1, tmp_path, rank=2, world_size=2)


# --- versions, retention ---------------------------------------------------------------------------------------------------


def save_version_1(home: Path, step: int, value: float) -> None:
    """As the program before this one did."""
    data = safetensors.torch.save({"state.x": torch.full((2, 3), value)})
    name = f"step-{step:012d}-0-77-1.safetensors"
    (home / name).write_bytes(data)
    rest = {"x": {"$tensor": "state.x"}, "best": float("inf"), "pair": {"$tuple": [1, 2]}}
    manifest = {"version": 1, "step": step, "epoch": 0, "bytes": len(data), "crc32": zlib.crc32(data), "finite": True, "rest": rest, "data": name, "saved": 5.0}
    text = json.dumps(manifest)
    (home / f"step-{step:012d}.json").write_text(f'{text[:-1]}, "manifest_crc32": {zlib.crc32(text.encode())}}}')


def test_checkpoints_of_the_version_before_are_loaded(tmp_path: Path) -> None:
    save_version_1(tmp_path, 10, 3.0)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert torch.equal(found[0]["x"], torch.full((2, 3), 3.0))
    assert (found[0]["best"], found[0]["pair"]) == (float("inf"), (1, 2))
    half = {"x": LocalTensor(torch.zeros(1, 3), Region((1, 0), (1, 3)), (2, 3)), "best": 0.0}
    restored = checkpoint.restore(half, tmp_path)
    assert restored is not None
    assert torch.equal(half["x"].tensor, torch.full((1, 3), 3.0))
    assert restored.state["best"] == float("inf")
    with pytest.raises(ConfigError, match=r"it has no 'state\.z'"):
        checkpoint.restore({"x": torch.zeros(2, 3), "z": torch.zeros(1)}, tmp_path)


def test_numbers_that_json_has_no_word_for_are_kept(tmp_path: Path) -> None:
    checkpoint.save({"best": float("inf"), "worst": -float("inf"), "loss": float("nan"), "by_step": {3: float("inf")}}, 1, tmp_path)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert str(found[0]) == "{'best': inf, 'worst': -inf, 'loss': nan, 'by_step': {3: inf}}"


def test_what_is_cut_off_counts_for_nothing_when_older_ones_are_deleted(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        checkpoint.save({"x": torch.full((4,), float(step))}, step, tmp_path)
    for entry in checkpoint.entries(tmp_path):
        os.truncate(entry.shards[0], 10)
    checkpoint.save({"x": torch.ones(4)}, 40, tmp_path)
    os.truncate(checkpoint.entries(tmp_path)[-1].shards[0], 10)
    checkpoint.save({"x": torch.ones(4)}, 35, tmp_path)
    assert [entry.step for entry in checkpoint.entries(tmp_path)] == [35]
    checkpoint.save({"x": torch.ones(4)}, 36, tmp_path)
    assert [entry.step for entry in checkpoint.entries(tmp_path)] == [35, 36]
    assert [path.name for path in tmp_path.glob("*.discarded")] == ["step-000000000040.json.discarded"], "none newer is deleted unseen"


def test_shards_of_a_newer_version_are_left_alone(tmp_path: Path) -> None:
    path = checkpoint.save({"x": torch.ones(4)}, 10, tmp_path)
    assert path is not None
    shard = checkpoint.entries(tmp_path)[0].shards[0]
    text = json.dumps({"version": 3, "step": 10})
    path.write_text(f'{text[:-1]}, "manifest_crc32": {zlib.crc32(text.encode())}}}')
    os.utime(shard, (0, 0))
    checkpoint.save({"x": torch.ones(4)}, 20, tmp_path)
    assert shard.exists()
    path.unlink()
    checkpoint.save({"x": torch.ones(4)}, 30, tmp_path)
    assert not shard.exists(), "twin: nobody names it"


def test_shards_that_wait_for_other_ranks_are_left_alone_until_they_are_old(tmp_path: Path) -> None:
    save_all(tmp_path, [3, 2], 10, ranks=[0])
    waiting = [*tmp_path.glob("*.safetensors"), *tmp_path.glob("*.part")]
    assert len(waiting) == 2
    checkpoint.save({"x": torch.ones(1)}, 20, tmp_path)
    assert all(path.exists() for path in waiting)
    for path in waiting:
        os.utime(path, (0, 0))
    checkpoint.save({"x": torch.ones(1)}, 30, tmp_path)
    assert not any(path.exists() for path in waiting)


# --- what each rank puts in ------------------------------------------------------------------------------------------------


def test_what_two_ranks_both_write_is_there_once(tmp_path: Path) -> None:
    for rank in range(2):
        checkpoint.save_shard({"x": torch.ones(4)}, 10, tmp_path, rank=rank, world_size=2, run="a", writes_whole=True)
    assert len(checkpoint.entries(tmp_path)[0].manifest.tensors["state.x"].pieces) == 1
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found[0]["x"].tolist() == [1.0] * 4


def test_a_region_that_no_rank_wrote_makes_no_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for rank in range(2):
        state = {"x": LocalTensor(torch.ones(2), Region((3 * rank,), (2,)), (5,))}
        checkpoint.save_shard(state, 10, tmp_path, rank=rank, world_size=2, run="a")
    assert checkpoint.entries(tmp_path) == []
    assert not list(tmp_path.glob("*.json"))
    assert "tensor 'state.x' is not whole: 4 of 5 elements are there" in caplog.text


def test_values_of_one_rank_that_are_not_finite_keep_all_from_loading_it(tmp_path: Path) -> None:
    save_all(tmp_path, [1, 1], 10)
    for rank in range(2):
        fill = float("nan") if rank == 0 else 1.0
        checkpoint.save_shard(cut([1, 1], rank, fill=fill), 20, tmp_path, rank=rank, world_size=2, run="a", per_rank={"x": 1})
    assert [entry.finite for entry in checkpoint.entries(tmp_path)] == [True, False]
    assert restore(tmp_path, [2], 0).step == 10


def test_what_is_to_be_written_is_a_copy() -> None:
    state = {"x": torch.ones(4), "y": LocalTensor(torch.ones(4), Region((0,), (4,)), (4,))}
    prepared = checkpoint_writer.prepare(state, 1)
    state["x"].fill_(2.0)
    state["y"].tensor.fill_(2.0)
    assert [each.tolist() for each in prepared.shards[0].values()] == [[1.0] * 4] * 2
    with pytest.raises(ValueError, match=r"is no region of shape"):
        LocalTensor(torch.ones(4), Region((0,), (3,)), (4,))


def test_a_rank_with_several_regions_of_a_tensor_writes_each_and_they_are_loaded_as_one(tmp_path: Path) -> None:
    """Rank 0 has rows 0, 1 and 4, rank 1 the others: those that touch are one piece."""
    whole = torch.arange(18.0).reshape(6, 3)
    rows = ([(0, 1), (1, 1), (4, 1)], [(2, 2), (5, 1)])
    for rank, held in enumerate(rows):
        parts = tuple(LocalTensor(whole[begin : begin + count].clone(), Region((begin, 0), (count, 3)), (6, 3)) for begin, count in held)
        checkpoint.save_shard({"w": LocalTensors(parts), "step": 7}, 7, tmp_path, rank=rank, world_size=2, run="one")
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert torch.equal(found[0]["w"], whole)
    [entry] = checkpoint.entries(tmp_path)
    assert [shard.rank for shard in entry.manifest.shards] == [0, 0, 1, 1]
    assert [piece.region.offsets[0] for piece in entry.manifest.tensors["state.w"].pieces] == [0, 4, 2, 5]
    template = {"w": LocalTensor(torch.zeros(4, 3), Region((1, 0), (4, 3)), (6, 3)), "step": 0}
    assert checkpoint.restore(template, tmp_path) is not None
    assert torch.equal(template["w"].tensor, whole[1:5])  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"'state\.w' is given as 1 regions"):
        checkpoint.restore({"w": LocalTensors((template["w"],)), "step": 0}, tmp_path)  # type: ignore[arg-type]
