"""Copies of real states on their way from segments to storage, pass by pass, and back into a job that has lost its memory."""

import errno
import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from eagle_eye.training import atomic_file, checkpoint
from eagle_eye.training.checkpoint import checkpoint_directory, storage_restore
from eagle_eye.training.checkpoint.checkpoint_retention import NEWEST_KEPT, CheckpointRetention
from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints
from eagle_eye.training.checkpoint.memory_segment import MemorySegment
from eagle_eye.training.object_path import ObjectPath
from remediation.checkpoint import staged_copy, storage_reconciler
from remediation.checkpoint.copy_files import CopyFiles, CopyName
from remediation.checkpoint.copy_states import Place
from remediation.checkpoint.storage_reconciler import (
    OTHERS_LATE_S,
    SILENT_S,
    StorageReconciler,
    StorageRefusal,
    StoredStep,
    WantedStep,
)


def state_of(rank: int, step: int) -> dict[str, Any]:
    """Of a rank at a step."""
    return {"model": [torch.arange(5, dtype=torch.float64) + 10 * rank + step, torch.full((2, 3), float(step))], "random": torch.tensor([rank, step]), "position": [rank, step]}


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    tensors = zip((*first["model"], first["random"]), (*second["model"], second["random"]), strict=True)
    return all(torch.equal(one, other) for one, other in tensors) and first["position"] == second["position"]


class Node:
    """A node with one worker, its segments, and what the reconciler of its launcher has said."""

    def __init__(self, folder: Path, home: Path, rank: int, world: int) -> None:
        self.folder, self.home, self.rank, self.world = folder, home, rank, world
        self.now = 0.0
        self.stored: list[StoredStep] = []
        self.refused: list[StorageRefusal] = []
        self.taken: list[tuple[int, str]] = []
        self.reconciler = self.launcher()

    def launcher(self, keep: CheckpointRetention = NEWEST_KEPT) -> StorageReconciler:
        return StorageReconciler(
            self.home, self.files, self.stored.append, self.refused.append, lambda wanted, _, why: self.taken.append((wanted.step, why)),
            threading.Event(), lambda: self.now, keep,
        )  # fmt: skip

    def files(self) -> CopyFiles:
        return CopyFiles(self.folder, f"n{self.rank}-", 1)

    @property
    def path(self) -> Path:
        return self.folder / f"n{self.rank}-0.memory"

    def save(self, step: int, *, replicated: bool = False, state: dict[str, Any] | None = None) -> None:
        """As the worker does."""
        memory, saved = MemoryCheckpoints([], self.path, replicated=replicated), state or state_of(self.rank, step)
        assert memory.prepare(saved)
        assert memory.save(saved, step)
        memory.close()

    def copy(self, step: int) -> CopyName:
        with closing(self.files()) as files:
            names = (files.name_of(Place(self.path.name, slot)) for slot in range(2))
            return next(name for name in names if name is not None and name.step == step)

    def want(self, step: int, epoch: int = 1) -> None:
        self.reconciler.want(WantedStep(step, epoch, "r", (self.copy(step),), (f"r/n{self.rank}/0",), self.now))

    def reconcile(self) -> float:
        return self.reconciler._reconciled()

    def store(self, step: int, epoch: int = 1) -> None:
        self.save(step)
        self.want(step, epoch)
        self.reconcile()

    def load(self, template_step: int = 0, **options: Any) -> Any:
        """As a worker without any memory does."""
        return self.load_into(state_of(self.rank, template_step), **options)

    def load_into(self, template: dict[str, Any], **options: Any) -> Any:
        self.path.unlink(missing_ok=True)
        return MemoryCheckpoints([], self.path, **options).load(template)

    @property
    def steps(self) -> list[int]:
        return [entry.step for entry in checkpoint.entries(self.home)]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Node]:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "EAGLE_EYE_WORKER", "EAGLE_EYE_CHECKPOINT_COPIES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EAGLE_EYE_CHECKPOINT_DIR", str(tmp_path / "gpt"))
    monkeypatch.setattr("os.fsync", lambda _: None)

    def made(rank: int = 0, world: int = 1) -> Node:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        return Node(tmp_path, tmp_path / "gpt" / "memory", rank, world)

    return made


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks say what this one says."""

    def all_gather(gathered: list[torch.Tensor], ours: torch.Tensor) -> None:
        for each in gathered:
            each.copy_(ours)

    for name, value in {"is_initialized": lambda: True, "get_world_size": lambda: 2, "get_backend": lambda: "gloo", "all_gather": all_gather}.items():
        monkeypatch.setattr(torch.distributed, name, value)


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Whatever is written there."""

    def fsync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", fsync)


@pytest.mark.usefixtures("alone")
def test_a_step_of_two_nodes_is_visible_when_both_have_written_it_and_each_rank_gets_its_own_back(node: Callable[..., Node]) -> None:
    first = node(0, 2)
    first.store(7)
    assert (first.steps, first.stored) == ([], []), "one rank's shard is no checkpoint"
    second = node(1, 2)
    second.store(7)
    assert second.steps == [], "the launcher of rank 0 makes the manifest"
    first.now = 3.0
    first.reconcile()
    assert first.steps == [7]
    assert [(found.step, found.seconds, found.worker) for found in first.stored] == [(7, 3.0, "r/n0/0")]
    second.reconcile()
    assert [found.worker for found in second.stored] == [""], "one of them tells it"
    assert not list(first.home.glob("*.part"))
    assert first.home.stat().st_mode & 0o777 == 0o700
    assert checkpoint.entries(first.home)[0].missing == ""
    assert same(second.load().state, state_of(1, 7))
    state, step = checkpoint.load(first.home) or ({}, 0)
    assert same(state, state_of(0, 7)), "others read it, too"
    assert step == 7
    assert checkpoint.restore(state_of(1, 0), first.home, rank=1).per_rank["position"] == [1, 7]


def test_a_world_of_another_size_gets_what_rank_0_had(node: Callable[..., Node]) -> None:
    for rank in range(2):
        node(rank, 2).store(7)
    first = node(0, 2)
    first.reconciler = first.launcher()
    first.store(7)
    found = node(0, 1).load()
    assert (found.step, same(found.state, state_of(0, 7))) == (7, True)


def test_of_a_state_that_all_ranks_have_alike_one_is_stored(node: Callable[..., Node]) -> None:
    first = node(0, 8)
    first.save(3, replicated=True)
    first.want(3)
    first.reconcile()
    assert first.steps == [3]
    assert len(checkpoint.entries(first.home)[0].shards) == 1
    found = node(0, 1).load(replicated=True)
    assert same(found.state, state_of(0, 3))


@pytest.mark.parametrize("put", [lambda tensor: tensor[:1].expand(tensor.shape), lambda tensor: tensor.clone()])
def test_a_template_that_cannot_be_filled_is_passed_over_before_anything_is_changed(node: Callable[..., Node], put: Callable[[torch.Tensor], torch.Tensor]) -> None:
    ours = node()
    ours.store(1)
    template = state_of(0, 0)
    template["model"][-1] = put(template["model"][-1])
    before = [tensor.clone() for tensor in template["model"]]
    found = ours.load_into(template)
    can_be_filled = template["model"][-1].is_contiguous()
    assert (found is not None) == can_be_filled
    assert can_be_filled or all(map(torch.equal, before, template["model"]))


def test_what_a_template_lacks_is_new_and_another_shape_or_a_flipped_bit_is_passed_over_for_an_older_step(node: Callable[..., Node]) -> None:
    ours = node()
    for step in (1, 2):
        ours.store(step)
    memory, template = MemoryCheckpoints([], ours.folder / "none"), state_of(0, 0)
    del template["random"]
    assert torch.equal(memory.load(template).state["random"], torch.tensor([0, 2]))
    template["model"][0] = torch.zeros(6)
    assert memory.load(template) is None
    shard = checkpoint.entries(ours.home)[-1].shards[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    found = ours.load()
    assert (found.step, len(found.skipped)) == (1, 1)
    assert "was changed since it was written" in found.skipped[0]
    assert memory.load(state_of(0, 0), at_most=0) is None


def test_an_object_store_that_refuses_is_told_once_and_has_the_copy_once_it_does_not(node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setenv("EAGLE_EYE_CHECKPOINT_DIR", "memory://gpt")
    ours = node()
    ours.home = ObjectPath("memory://gpt/memory")
    ours.reconciler = ours.launcher()

    def refused(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    with monkeypatch.context() as closed:
        closed.setattr(MemoryFileSystem, "pipe_file", refused)
        ours.store(7)
        assert ours.reconcile() == 2.0, "seconds until the next attempt"
        assert (ours.steps, ours.stored) == ([], [])
    [told] = ours.refused
    assert (told.failure.path, told.failure.errno, told.failure.reason, told.failure.free_bytes) == ("memory://gpt/memory", "EACCES", "Access Denied", -1)
    ours.reconcile()
    assert [(found.step, found.path) for found in ours.stored] == [(7, ours.home / "step-000000000007.json")]
    found = ours.load()
    assert (found.step, same(found.state, state_of(0, 7))) == (7, True)
    ours.reconciler.roll_back(2, 3)
    ours.reconcile()
    assert ours.steps == [], "what a roll-back has overtaken is put aside"


def test_an_object_store_that_does_not_say_what_it_has_is_asked_again(node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(storage_restore, "ASK_AGAIN_S", (0.0, 0.0))
    monkeypatch.setenv("EAGLE_EYE_CHECKPOINT_DIR", "memory://gpt")
    ours = node()
    ours.home = ObjectPath("memory://gpt/memory")
    ours.reconciler = ours.launcher()
    ours.store(7)
    real, asked = MemoryFileSystem.ls, list[str]()

    def ls(self: MemoryFileSystem, path: str, **options: Any) -> Any:
        asked.append(path)
        if len(asked) < 3:
            raise RuntimeError("Could not connect")
        return real(self, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    assert ours.load().step == 7
    asked.clear()
    monkeypatch.setattr(storage_restore, "ASK_AGAIN_S", (0.0,))
    assert ours.load() is None


def test_a_launcher_that_was_killed_has_done_some_of_it_and_its_successor_does_the_rest(node: Callable[..., Node]) -> None:
    first = node(0, 2)
    first.save(7)
    first.want(7)
    first.reconcile()
    [shard] = first.home.glob("*.safetensors")
    before = shard.stat().st_ino
    first.reconciler = first.launcher()
    first.want(7)
    first.reconcile()
    assert [each.stat().st_ino for each in first.home.glob("*.safetensors")] == [before], "what is whole is left as it is"
    os.truncate(shard, 9)
    first.reconciler = first.launcher()
    first.want(7)
    first.reconcile()
    assert len(list(first.home.glob("*.safetensors"))) == 2, "one that is cut off is written anew"
    second = node(1, 2)
    second.store(7)
    second.now = 100.0
    second.reconcile()
    assert second.steps == [7], "where the launcher of rank 0 is gone another one makes the manifest"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.ESTALE])
def test_what_storage_refuses_is_told_once_tried_again_later_and_stored_in_the_end(node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    ours = node()
    ours.save(5)
    with monkeypatch.context() as patched:
        refuse(patched, number)
        ours.want(5)
        assert [ours.reconcile() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    [refusal] = ours.refused
    assert (refusal.step, refusal.worker, refusal.failure.errno, refusal.failure.path) == (5, "r/n0/0", errno.errorcode[number], str(ours.home))
    assert refusal.failure.free_bytes > 0
    assert refusal.needed_bytes > 0
    assert [*ours.home.iterdir()] == [], "nothing is left behind"
    ours.save(6)  # the worker goes on, over any slot
    ours.save(7)
    ours.reconcile()
    assert (ours.steps, [found.step for found in ours.stored]) == ([5], [5])
    with monkeypatch.context() as patched:
        refuse(patched, number)
        ours.store(8)
    assert [refusal.step for refusal in ours.refused] == [5, 8], "another time is told again"


def test_a_part_that_became_visible_before_the_error_keeps_its_shard(node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> None:
    def unsynced(folder: Path) -> None:
        if any(path.suffix != ".safetensors" for path in folder.iterdir()):
            raise OSError(errno.EIO, "Input/output error")

    ours = node(1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(atomic_file, "_fsync_directory", unsynced)
        ours.store(5)
    assert [refusal.failure.errno for refusal in ours.refused] == ["EIO"]
    assert sorted(path.suffix == ".safetensors" for path in ours.home.iterdir()) == [False, True]


def test_one_that_is_refused_gives_way_to_a_newer_one_once_that_is_taken(node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = node()
    with monkeypatch.context() as patched:
        refuse(patched, errno.ENOSPC)
        ours.store(5)
        assert not ours.reconciler.is_busy
        patched.setattr(staged_copy, "free_memory", lambda: 1000)
        ours.store(6)
    assert [refusal.failure.errno for refusal in ours.refused] == ["ENOSPC", "ENOMEM", "ENOSPC"]
    ours.reconcile()
    assert ours.steps == [5], "what is not safe yet is kept where there is no room for another"
    with monkeypatch.context() as patched:
        refuse(patched, errno.ENOSPC)
        ours.store(7)
        ours.store(8)
    ours.reconcile()
    assert ours.steps == [5, 8]


def test_a_storage_that_hangs_is_told_once_and_one_that_is_slow_is_not(node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, told = node(), list[int]()

    def fsync(_: int) -> None:
        ours.now += SILENT_S - 1
        ours.reconciler.tell_silence()
        told.append(len(ours.refused))
        ours.now += 2
        for _ in range(2):
            ours.reconciler.tell_silence()

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", fsync)
        ours.store(5)
    assert told[0] == 0, "slow"
    [refusal] = ours.refused
    assert "does not answer" in refusal.failure.reason
    ours.now += 1000
    ours.reconciler.tell_silence()
    assert len(ours.refused) == 1, "nothing is asked of it"


def test_a_copy_that_was_changed_is_broken_and_one_that_was_written_over_is_left_out(node: Callable[..., Node]) -> None:
    ours = node()
    ours.save(1)
    ours.save(2)
    segment = MemorySegment.open(ours.path)
    segment.memory[segment.read(1).payload_at] ^= 1
    segment.close()
    ours.want(2)
    ours.reconcile()
    [(step, why)] = ours.taken
    assert (step, "not as they were written" in why) == (2, True)
    gone = ours.copy(1)
    ours.save(3)
    ours.save(4)
    ours.reconciler.want(WantedStep(1, 1, "r", (gone,), ("w",), 0.0))
    ours.reconcile()
    assert (ours.taken[1:], ours.steps, ours.refused) == ([(1, "")], [], [])


def test_a_copy_that_is_written_over_while_it_is_taken_is_not_broken(node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = node()
    ours.save(1)
    ours.save(2)

    def late(piece: memoryview, sums: bytes, first: int) -> int:
        for step in (3, 4):
            ours.save(step)
        return 0

    monkeypatch.setattr(staged_copy, "changed_row", late)
    ours.want(2)
    ours.reconcile()
    assert (ours.taken, ours.steps, ours.refused) == ([(2, "")], [], [])


def test_what_a_roll_back_has_overtaken_is_neither_stored_nor_kept_and_what_came_before_it_is(node: Callable[..., Node]) -> None:
    ours = node()
    for step in (4, 6):
        ours.store(step, epoch=1)
    ours.save(8)
    ours.want(8, epoch=1)
    ours.reconciler.roll_back(2, 5)
    ours.reconcile()
    assert ours.steps == [4]
    assert (ours.home / f"{checkpoint_directory.manifest_name(6)}.discarded").exists()
    ours.store(8, epoch=2)
    ours.reconcile()
    assert ours.steps == [4, 8], "the new epoch's own"


def test_parts_of_other_ranks_that_never_come_are_told_and_go_once_a_newer_step_is_whole(node: Callable[..., Node]) -> None:
    ours = node(0, 2)
    ours.store(5)
    ours.now = OTHERS_LATE_S - 1
    ours.reconcile()
    assert not ours.refused
    ours.now = OTHERS_LATE_S + 1
    for _ in range(2):
        assert ours.reconcile() == storage_reconciler.OTHERS_S[1]
    [refusal] = ours.refused
    assert "that all nodes share" in refusal.failure.reason
    ours.store(6)
    node(1, 2).store(6)
    ours.reconcile()
    assert ours.steps == [6]
    assert not [path for path in ours.home.iterdir() if path.name.startswith("step-000000000005")]


def test_so_many_stay_in_storage_as_are_configured(node: Callable[..., Node]) -> None:
    ours = node()
    for keep, stored, staying in ((NEWEST_KEPT, (10, 20, 30, 40), [30, 40]), (CheckpointRetention(newest=3), (50, 60), [40, 50, 60]), (CheckpointRetention(newest=1, each_steps=100), (70, 120), [40, 120])):
        ours.reconciler = ours.launcher(keep)
        for step in stored:
            ours.store(step)
        assert ours.steps == staying
        assert len(list(ours.home.glob("*.safetensors"))) == len(staying), "and no shard of the others is left"
