"""Checkpoints in an object store, one of memory: the same as on a disk, but for what a store has not."""

import errno
import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from fsspec.implementations.memory import MemoryFileSystem

from eagle_eye.training import checkpoint, messages, object_path
from eagle_eye.training.checkpoint import LocalTensor, Region, checkpoint_directory, manifest, save_attempts
from eagle_eye.training.checkpoint.checkpoint_reader import RestoredCheckpoint
from eagle_eye.training.checkpoint.dcp_storage import DcpReader, DcpWriter
from eagle_eye.training.object_path import ObjectPath

HOME = ObjectPath("memory://models/gpt")
CHUNK = 4096
ROWS = 4 * CHUNK // 16
"""Four chunks of rows of 16 bytes."""


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An empty one; its objects have several chunks."""
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_DIR", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "EAGLE_EYE_RUN", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    found: dict[str, Any] = {}
    monkeypatch.setattr(save_attempts, "_calls", OrderedDict())  # of another job in the same directory
    monkeypatch.setattr(MemoryFileSystem, "store", found)
    monkeypatch.setattr(object_path, "PART_BYTES", CHUNK)
    return found


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What is read of shards: name, begin, end."""
    asked: list[tuple[str, int, int]] = []
    real = MemoryFileSystem.cat_file

    def cat_file(self: MemoryFileSystem, path: str, start: int, end: int) -> bytes:
        if path.endswith(".safetensors"):
            asked.append((path.rpartition("/")[2], start, end))
        return real(self, path, start, end)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    return asked


def weight(salt: int = 0) -> torch.Tensor:
    return (torch.arange(ROWS * 4, dtype=torch.float64) + salt).sin().float().reshape(ROWS, 4)


def cut(parts: int, rank: int, salt: int = 0, *, empty: bool = False) -> dict[str, Any]:
    """One rank's rows of the weight."""
    rows = ROWS // parts
    whole = torch.zeros(ROWS, 4) if empty else weight(salt)
    return {"w": LocalTensor(whole[rank * rows : (rank + 1) * rows].clone(), Region((rank * rows, 0), (rows, 4)), (ROWS, 4)), "lr": 0.5}


def save_all(ranks: int, step: int = 10, salt: int = 0, skip: int = -1) -> None:
    for rank in range(ranks):
        if rank != skip:
            checkpoint.save_shard(cut(ranks, rank, salt), step, HOME, rank=rank, world_size=ranks, run="a")


def restored(parts: int, rank: int, salt: int = 0) -> RestoredCheckpoint:
    """Compared bit by bit."""
    found = checkpoint.restore(cut(parts, rank, empty=True), HOME, rank=rank)
    assert found is not None
    assert torch.equal(found.state["w"].tensor, cut(parts, rank, salt)["w"].tensor)
    return found


def flip(path: os.PathLike[str], at: int) -> None:
    """A bit of an object."""
    data = bytearray(ObjectPath(os.fspath(path)).read_bytes())
    data[at] ^= 1
    ObjectPath(os.fspath(path)).put(bytes(data))


def test_a_state_there_and_back_and_old_ones_are_deleted(store: dict[str, Any]) -> None:
    assert checkpoint.load(HOME) is None
    for step in (10, 20, 30):
        path = checkpoint.save({"w": weight(step), "few": torch.ones(3, dtype=torch.uint8), "none": torch.empty(0, 2), "lr": 0.1}, step, HOME.url)
        assert path == HOME / f"step-{step:012d}.json"
    assert [(entry.step, entry.missing) for entry in checkpoint.entries(HOME)] == [(20, ""), (30, "")]
    assert len(store) == 4, "with its manifest a shard goes"
    found = checkpoint.load(HOME.url)
    assert found is not None
    assert (found[1], found[0]["lr"], found[0]["none"].shape) == (30, 0.1, (0, 2))
    assert torch.equal(found[0]["w"], weight(30))


@pytest.mark.parametrize(("saved", "loaded"), [(4, 2), (2, 4), (1, 4), (4, 1)])
def test_what_some_ranks_saved_another_number_of_them_loads(saved: int, loaded: int) -> None:
    save_all(saved)
    assert not list(HOME.glob("*.part"))
    for rank in range(loaded):
        assert restored(loaded, rank).step == 10


def test_a_rank_reads_the_chunks_that_it_needs_each_once_and_checks_them(ranges: list[tuple[str, int, int]]) -> None:
    save_all(1)
    [shard] = checkpoint.entries(HOME)[0].manifest.shards
    assert shard.chunks is not None
    assert len(shard.chunks.crc32) == 5, "a header, and four chunks of rows"
    restored(4, 2)
    assert sorted(begin // CHUNK for _, begin, _ in ranges) == [0, 2, 3], "the header, and where its rows lie"
    flip(HOME / shard.name, 4 * CHUNK + 10)
    restored(4, 2)
    with pytest.raises(AssertionError):
        restored(4, 3)
    ranges.clear()
    assert checkpoint.load(HOME) is None, "all of it is not what was written"


def test_workers_of_a_node_read_what_they_need_alike_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: list[tuple[str, int, int]]) -> None:
    """A chunk that lies in the node's memory changed is read from the store."""
    monkeypatch.setenv("EAGLE_EYE_CHECKPOINT_MEMORY", str(tmp_path / "eagle-eye-0-run-node-0.memory"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    checkpoint.save({"w": weight(3), "lr": 0.5}, 10, HOME)
    for _ in range(2):
        found = checkpoint.load(HOME)
        assert found is not None
        assert torch.equal(found[0]["w"], weight(3))
    assert len(ranges) == 5
    for chunk in tmp_path.glob("*.chunk"):
        chunk.write_bytes(b"\xff" + chunk.read_bytes()[1:])
    found = checkpoint.load(HOME)
    assert found is not None
    assert torch.equal(found[0]["w"], weight(3))
    assert len(ranges) == 10
    assert list(tmp_path.iterdir()) == []


def test_one_that_was_changed_or_is_cut_off_is_passed_over_for_an_older_one() -> None:
    save_all(2, 10, salt=1)
    save_all(2, 20, salt=2)
    entry = checkpoint.entries(HOME)[-1]
    flip(entry.shards[1], 5000)
    found = restored(2, 1, salt=1)
    assert (found.step, [each.path for each in found.skipped]) == (10, [entry.path])
    assert f"{entry.shards[1]} was changed since it was written: the CRC-32 of its bytes 4096 to " in found.skipped[0].reason
    restored(2, 0, salt=2)
    ObjectPath(os.fspath(entry.shards[0])).unlink()
    assert entry.missing == f"{entry.shards[0]} cannot be read: No such file or directory"
    assert restored(2, 0, salt=1).step == 10


def test_shards_that_somebody_copied_from_a_disk_are_read_whole(tmp_path: Any, ranges: list[tuple[str, int, int]]) -> None:
    checkpoint.save({"w": weight(3), "lr": 0.5}, 10, tmp_path)
    for path in tmp_path.iterdir():
        (HOME / path.name).put(path.read_bytes())
    restored(4, 1, salt=3)
    assert len(ranges) == 5
    flip(checkpoint.entries(HOME)[0].shards[0], 4 * CHUNK + 10)
    assert checkpoint.restore(cut(4, 1, empty=True), HOME, rank=1) is None, "no sum of a chunk says that this one is whole"


def test_what_is_torn_is_invisible_and_goes_later(monkeypatch: pytest.MonkeyPatch, store: dict[str, Any]) -> None:
    save_all(2, 10)
    save_all(2, 20, skip=1)
    torn = HOME / f"step-000000000030-1-0-00000000-1-5{checkpoint_directory.DATA}"  # of a machine that is gone
    torn.put(b"half")
    assert [entry.step for entry in checkpoint.entries(HOME)] == [10]
    restored(2, 0)
    monkeypatch.setattr("time.time", lambda now=checkpoint_directory.time.time: now() + 2 * checkpoint_directory.LEFT_IN_A_STORE_S)
    save_all(2, 40)
    assert sorted({name.rpartition("/")[2].partition(".")[0][:17] for name in store}) == ["step-000000000010", "step-000000000040"]


def test_what_a_roll_back_has_overtaken_is_put_aside() -> None:
    for step in (10, 20):
        checkpoint.save({"w": weight()}, step, HOME)
    assert checkpoint.discard_after(HOME, 15) == [20]
    assert [entry.step for entry in checkpoint.entries(HOME)] == [10]
    assert len(list(HOME.glob("step-*.discarded"))) == 1


def test_a_store_that_refuses_is_told_once_and_costs_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[messages.ProbeMessage] = []
    monkeypatch.setenv("EAGLE_EYE_SOCKET", "launcher.sock")
    monkeypatch.setattr(messages, "send", lambda _path, line: told.append(messages.decode(line)))

    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("Could not connect to the endpoint URL")

    with monkeypatch.context() as gone:
        gone.setattr(MemoryFileSystem, "_open", refused)
        assert checkpoint.save({"w": weight()}, 10, HOME) is None
        assert checkpoint.save({"w": weight()}, 20, HOME) is None
    assert checkpoint.save({"w": weight()}, 30, HOME) is not None
    assert [(each["kind"], each["step"]) for each in told] == [("checkpoint_failed", 10), ("checkpoint", 30)]
    assert (told[0]["path"], told[0]["errno"], told[0]["reason"], told[0]["free_bytes"]) == (HOME.url, "EREMOTEIO", "Could not connect to the endpoint URL", -1)


def test_a_store_that_does_not_answer_is_no_store_without_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    save_all(2)
    for what, wanted in (("ls", "*"), ("cat_file", ".json"), ("cat_file", ".safetensors")):
        real = getattr(MemoryFileSystem, what)
        with monkeypatch.context() as gone:
            gone.setattr(MemoryFileSystem, what, lambda self, path, real=real, wanted=wanted, **options: refused() if path.endswith(wanted) or wanted == "*" else real(self, path, **options))
            for load in (lambda: checkpoint.load(HOME), lambda: checkpoint.restore(cut(2, 1, empty=True), HOME)):
                with pytest.raises(OSError, match="Access Denied") as raised:
                    load()
                assert raised.value.errno == errno.EACCES
    restored(2, 1)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_saves_and_loads() -> None:
    dcp.save({"w": weight(5)}, storage_writer=DcpWriter(HOME.url, step=7), no_dist=True)
    state = {"w": torch.zeros(ROWS, 4)}
    reader = DcpReader(HOME.url)
    dcp.load(state, storage_reader=reader, no_dist=True)
    assert reader.step == 7
    assert torch.equal(state["w"], weight(5))


def harmed(change: Callable[[dict[str, Any]], object]) -> str:
    """Why a manifest whose chunks were changed so is refused."""
    checkpoint.save({"w": weight()}, 10, HOME)
    entry = checkpoint.entries(HOME)[0]
    text = entry.path.read_bytes().decode()
    plain = json.loads(text[: text.rindex(', "manifest_crc32"')] + "}")
    change(plain["shards"][0])
    text = json.dumps(plain)
    with pytest.raises(manifest.UnusableCheckpoint) as raised:
        manifest.decode(f'{text[:-1]}, "manifest_crc32": {zlib.crc32(text.encode())}}}'.encode(), entry.path)
    return str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda shard: shard["chunk_crc32"].pop(), lambda shard: shard["chunk_crc32"].append("00000000"), lambda shard: shard["chunk_crc32"].__setitem__(1, "00000000"),
        lambda shard: shard.__setitem__("chunk_bytes", 0), lambda shard: shard.__setitem__("chunk_bytes", 1), lambda shard: shard.__setitem__("chunk_crc32", []),
    ],
    ids=["fewer", "more", "another", "of no bytes", "of one byte", "none"],
)  # fmt: skip
def test_sums_of_chunks_that_do_not_fit_the_shard_are_refused(change: Callable[[dict[str, Any]], object]) -> None:
    assert "do not fit its digest" in harmed(change)
