"""Which slot of a segment a save takes: a kill at any moment of it leaves the newest step that was said to be safe, or a newer one."""

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from eagle_eye.training import messages
from eagle_eye.training.checkpoint import memory_restore, memory_segment, rank_agreement, state_copy
from eagle_eye.training.checkpoint.memory_checkpoints import COPIES_VARIABLE
from eagle_eye.training.checkpoint.memory_segment import SegmentFile, SlotStamp, slot_to_write
from eagle_eye.training.checkpoint.rank_agreement import CopyKey

from .test_memory_checkpoints import Trainer, flip, same, successor


@pytest.fixture(params=[2, 3])
def slots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Without and with copies on another node."""
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "EAGLE_EYE_WORKER", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(COPIES_VARIABLE, str(request.param))
    return int(request.param)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While this is cleared no piece is copied by the thread of a save."""
    go, copy = threading.Event(), state_copy.StateCopy._copy

    def late(self: state_copy.StateCopy, piece: state_copy._Piece) -> None:
        assert threading.current_thread() is threading.main_thread() or go.wait(10)
        copy(self, piece)

    monkeypatch.setattr(state_copy.StateCopy, "_copy", late)
    go.set()
    yield go
    go.set()


def trainer_at(path: Path) -> Trainer:
    trainer = Trainer(path)
    trainer.step()  # the optimizer has its state now
    assert trainer.memory.prepare(trainer.state())
    return trainer


def steps_in(path: Path) -> list[int]:
    """What each slot says it holds; -1: nothing."""
    with closing(SegmentFile(path)) as file:
        return [stamp.step if stamp is not None else -1 for stamp in map(file.stamp, range(file.slots))]


def left_by_a_kill(trainer: Trainer, path: Path, stopped: threading.Event, step: int) -> Path:
    """The segment as it is in the middle of a save: what a SIGKILL would leave."""
    stopped.clear()
    assert trainer.memory.save(trainer.state(), step)
    left = path.with_name(f"left-{step}.memory")
    shutil.copy(path, left)
    left.chmod(0o600)
    stopped.set()
    trainer.memory.finish()
    return left


@pytest.mark.usefixtures("slots")
@pytest.mark.parametrize("fetched", [0, 1])
def test_a_worker_killed_in_a_save_while_a_copy_is_fetched_leaves_the_step_that_was_safe(tmp_path: Path, stopped: threading.Event, fetched: int) -> None:
    """`fetched`: how many steps before the newest one the copy is that the neighbour takes."""
    trainer = trainer_at(tmp_path / "0.memory")
    values = [trainer.saved(step) for step in (1, 2)]
    with closing(SegmentFile(tmp_path / "0.memory")) as file:
        file.hold(steps_in(tmp_path / "0.memory").index(2 - fetched), 2 - fetched, 60.0)
    for step in (3, 4, 5):
        safe = trainer.memory.safe_step
        assert safe == step - 1
        left = left_by_a_kill(trainer, tmp_path / "0.memory", stopped, step)
        other = successor(left)
        found = other.memory.load(other.state())
        other.memory.close()
        assert found is not None
        assert found.step == safe
        assert same(other.values(), values[-1])
        values.append(trainer.saved(step))
    trainer.memory.close()


def test_with_a_third_slot_what_is_fetched_stays_and_with_two_it_gives_way(tmp_path: Path, slots: int) -> None:
    trainer = trainer_at(tmp_path / "0.memory")
    trainer.saved(1)
    with closing(SegmentFile(tmp_path / "0.memory")) as file:
        file.hold(0, 1, 60.0)
    for step in range(2, 6):
        trainer.saved(step)
    assert sorted(steps_in(tmp_path / "0.memory")) == ([1, 4, 5] if slots == 3 else [4, 5])
    trainer.memory.close()


def test_the_step_that_was_gone_back_to_outlives_the_next_save_and_what_was_left_behind_goes(tmp_path: Path, slots: int, stopped: threading.Event) -> None:
    trainer = trainer_at(tmp_path / "0.memory")
    for step in range(5, 5 + slots):
        trainer.saved(step)
    trainer.memory.close()
    other = trainer_of_successor(tmp_path / "0.memory", 5)
    assert other.memory.safe_step == 5
    left = left_by_a_kill(other, tmp_path / "0.memory", stopped, 6)
    assert 5 in steps_in(left)
    assert sorted(step for step in steps_in(tmp_path / "0.memory") if step >= 0) == [5, 6], "nobody goes on from the training that was left"
    other.memory.close()


@pytest.mark.usefixtures("slots")
def test_a_damaged_copy_is_written_over_before_the_older_one_that_was_loaded(tmp_path: Path, stopped: threading.Event) -> None:
    trainer = trainer_at(tmp_path / "0.memory")
    trainer.saved(1)
    trainer.saved(2)
    trainer.memory.close()
    flip(tmp_path / "0.memory", 2)
    other = trainer_of_successor(tmp_path / "0.memory", 1, at_most=-1)
    left = left_by_a_kill(other, tmp_path / "0.memory", stopped, 2)
    assert 1 in steps_in(left)
    other.memory.close()


def trainer_of_successor(path: Path, step: int, at_most: int | None = None) -> Trainer:
    """It has loaded this step, at most."""
    other = successor(path)
    found = other.memory.load(other.state(), at_most=step if at_most is None else at_most)
    assert found is not None
    assert found.step == step
    other.optimizer.load_state_dict(found.state["optimizer"])
    assert other.memory.prepare(other.state())
    return other


def test_a_segment_with_fewer_slots_than_are_wanted_is_replaced_once_a_new_copy_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COPIES_VARIABLE, "2")
    trainer = trainer_at(tmp_path / "0.memory")
    trainer.saved(1)
    trainer.memory.close()
    monkeypatch.setenv(COPIES_VARIABLE, "3")
    other = trainer_of_successor(tmp_path / "0.memory", 1)
    assert steps_in(tmp_path / "0.memory") == [1, -1]
    other.saved(2)
    assert steps_in(tmp_path / "0.memory") == [2, -1, -1]
    other.memory.close()


# --- no room for three -------------------------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Messages to the launcher of a worker that is to have three copies."""
    told: list[dict[str, Any]] = []
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_EPOCH", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {COPIES_VARIABLE: "3", "EAGLE_EYE_SOCKET": "launcher", "EAGLE_EYE_WORKER": "run/a/0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(messages, "send", lambda _, message: told.append(dict(messages.decode(message))))
    return told


def room_for(copies: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the state of a Trainer, 3 MiB, and what is kept free beside it."""
    monkeypatch.setattr(memory_segment, "free_memory", lambda: int(copies * (3_300 << 10)))


@pytest.mark.parametrize("fetched", [0, 1])
def test_where_three_copies_have_no_room_two_are_kept_and_a_kill_leaves_what_was_safe(
    tmp_path: Path, stopped: threading.Event, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, fetched: int, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    room_for(2.5, monkeypatch)
    trainer = trainer_at(tmp_path / "0.memory")
    values = [trainer.saved(step) for step in (1, 2)]
    assert sorted(steps_in(tmp_path / "0.memory")) == [1, 2]
    with closing(SegmentFile(tmp_path / "0.memory")) as file:
        file.hold(steps_in(tmp_path / "0.memory").index(2 - fetched), 2 - fetched, 60.0)
    for step in (3, 4, 5):
        left = left_by_a_kill(trainer, tmp_path / "0.memory", stopped, step)
        other = successor(left)
        found = other.memory.load(other.state())
        other.memory.close()
        assert found is not None
        assert found.step == step - 1
        assert same(other.values(), values[-1])
        values.append(trainer.saved(step))
    trainer.memory.close()
    [message] = [message for message in told if message["kind"] != "memory_checkpoint_loaded"]
    assert [message[name] for name in ("kind", "worker", "errno", "slots", "wanted")] == ["memory_checkpoint_reduced", "run/a/0", "ENOMEM", 2, 3]
    assert caplog.text.count("holds 2 copies of the state, not 3") == 1


def test_a_shared_memory_that_is_full_counts_as_no_room(tmp_path: Path, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = os.posix_fallocate

    def full(file: int, at: int, size: int) -> None:
        if size > 8 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(file, at, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    trainer = trainer_at(tmp_path / "0.memory")
    trainer.saved(1)
    assert steps_in(tmp_path / "0.memory") == [1, -1]
    assert [message["errno"] for message in told] == ["ENOSPC"]
    assert [path.name for path in tmp_path.iterdir()] == ["0.memory"], "nothing of the attempt is left"
    trainer.memory.close()


def test_where_not_even_two_have_room_it_is_a_failure_as_before(tmp_path: Path, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    room_for(1.5, monkeypatch)
    trainer = Trainer(tmp_path / "0.memory")
    trainer.step()
    assert not trainer.memory.prepare(trainer.state())
    assert [message["kind"] for message in told] == ["memory_checkpoint_failed"]
    trainer.memory.close()


def test_room_that_comes_back_is_used_by_the_next_process_of_the_worker(tmp_path: Path, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Making it anew while training goes on would leave saves out that other ranks do."""
    room_for(2.5, monkeypatch)
    trainer = trainer_at(tmp_path / "0.memory")
    trainer.saved(1)
    room_for(1000, monkeypatch)
    trainer.saved(2)
    assert sorted(steps_in(tmp_path / "0.memory")) == [1, 2]
    trainer.memory.close()
    room_for(2.5, monkeypatch)
    other = trainer_of_successor(tmp_path / "0.memory", 2)
    inode = (tmp_path / "0.memory").stat().st_ino
    other.saved(3)
    assert (sorted(steps_in(tmp_path / "0.memory")), (tmp_path / "0.memory").stat().st_ino) == ([2, 3], inode), "what is there is written on: nothing is made anew"
    other.memory.close()
    room_for(1000, monkeypatch)
    last = trainer_of_successor(tmp_path / "0.memory", 3)
    assert sorted(steps_in(tmp_path / "0.memory")) == [2, 3], "until a copy in the new one is whole"
    last.saved(4)
    assert sorted(steps_in(tmp_path / "0.memory")) == [-1, -1, 4]
    last.memory.close()
    assert [message["kind"] for message in told if message["kind"] != "memory_checkpoint_loaded"] == ["memory_checkpoint_reduced"] * 2, "once a process"


def test_the_slot_to_write_is_never_the_newest_and_a_held_one_only_where_there_is_no_other() -> None:
    chance = Random(1)
    for _ in range(500):
        slots = chance.choice((2, 3, 4))
        whole = {slot: SlotStamp(chance.randint(0, 9), sequence) for sequence, slot in enumerate(chance.sample(range(slots), chance.randint(0, slots)), 1)}
        step, held = chance.randint(0, 9), chance.randrange(slots)
        taken = slot_to_write(whole, slots, step, lambda slot, held=held: slot == held)
        usable = {slot: stamp for slot, stamp in whole.items() if stamp.step <= step} or whole
        assert not whole or taken != max(usable, key=lambda slot: usable[slot].sequence)
        assert taken != held or taken not in whole or whole[taken].step > step or slots == 2


def test_where_all_but_the_newest_are_held_there_is_no_slot_and_a_training_that_was_rolled_back_writes_over_what_it_left() -> None:
    whole = {0: SlotStamp(4, 1), 1: SlotStamp(5, 2), 2: SlotStamp(6, 3)}
    assert slot_to_write(whole, 3, 7, lambda slot: slot in {0, 1}) is None
    assert slot_to_write(whole, 3, 7, lambda slot: slot == 0) == 1
    assert slot_to_write(whole, 3, 4, lambda slot: slot in {1, 2}) == 1, "nobody needs steps 5 and 6 any more"
    assert slot_to_write({0: SlotStamp(4, 1), 1: SlotStamp(5, 2)}, 2, 7, lambda slot: slot == 0) == 0, "two slots are too few for that"


def test_a_rank_that_has_steps_of_its_own_and_from_another_node_tells_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A survivor's own eight (`memory_steps`) and the two that its neighbour kept: the other rank has lost its node, and has what was fetched alone."""
    for name, value in {"is_initialized": lambda: True, "get_world_size": lambda: 2, "get_backend": lambda: "gloo"}.items():
        monkeypatch.setattr(torch.distributed, name, value)

    def all_gather(gathered: list[torch.Tensor], ours: torch.Tensor) -> None:
        gathered[0].copy_(ours)
        gathered[1].fill_(4)[:, 1] = 0

    monkeypatch.setattr(torch.distributed, "all_gather", all_gather)
    own = [CopyKey(step, 0) for step in (12, 11, 10, 9, 8, 7, 6, 5, 4, 3)]
    assert rank_agreement.agreed_copy(own, memory_restore.STEPS) == CopyKey(4, 0)
