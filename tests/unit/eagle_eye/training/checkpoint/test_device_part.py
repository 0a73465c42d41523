"""Saves of a state that lies on a device: queued at once, changed by nobody before, summed there or by the host."""

import threading
from pathlib import Path

import pytest
import torch

from eagle_eye.training.checkpoint import device_part, memory_segment, state_copy
from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints
from eagle_eye.training.checkpoint.memory_layout import StateLayout
from fakes.cuda_streams import FakeCuda
from fakes.device_queue import DeviceQueue
from fakes.memory_trainer import Trainer


@pytest.fixture
def queue(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> DeviceQueue:
    queue = DeviceQueue()
    monkeypatch.setattr(StateLayout, "on_gpu", True)
    monkeypatch.setattr(MemoryCheckpoints, "_device_copy", lambda *_: queue)
    monkeypatch.setattr(torch.cuda, "cudart", FakeCuda().cudart)
    assert trainer.memory.prepare(trainer.state())
    return queue


@pytest.mark.parametrize("looks", [True, False])
def test_what_was_queued_is_what_a_successor_loads_whoever_made_its_sums(trainer: Trainer, queue: DeviceQueue, path: Path, looks: bool) -> None:
    queue.looks = looks
    values = trainer.saved(5)
    assert trainer.memory.safe_step == 5
    assert queue.log[:4] == ["copy 1", "release", "check 6", "copy 6"], "first what no optimizer guards"
    trainer.memory.close()
    other = Trainer(path)
    found = other.memory.load(other.state())
    assert found is not None
    assert (found.step, all(torch.equal(one, two) for one, two in zip(values, other.values(), strict=True))) == (5, True)
    other.memory.close()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The thread begins only when this is set."""
    go, finish = threading.Event(), state_copy.StateCopy.finish

    def wait(self: state_copy.StateCopy) -> tuple[bytes, bool]:
        assert go.wait(10)
        return finish(self)

    monkeypatch.setattr(state_copy.StateCopy, "finish", wait)
    return go


def test_an_optimizers_step_comes_behind_the_copies_and_the_sums(trainer: Trainer, queue: DeviceQueue, late: threading.Event) -> None:
    trainer.step()
    assert trainer.memory.save(trainer.state(), 5)
    before = trainer.values()[0]
    trainer.step()
    late.set()
    trainer.memory.finish()
    assert trainer.memory.safe_step == 5
    assert queue.log[2:5] == ["check 6", "copy 6", "release"], "the step does not wait for the thread"
    assert not torch.equal(trainer.values()[0], before)
    other = Trainer(trainer.memory._path or Path())
    trainer.memory.close()
    other.memory.load(other.state())
    assert torch.equal(other.values()[0], before)
    other.memory.close()


def test_large_states_are_queued_a_little_at_a_time(trainer: Trainer, queue: DeviceQueue, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that is fetched from the GPU comes behind all copies that are queued."""
    monkeypatch.setattr(device_part, "BATCH", 400_000)
    values = trainer.saved(5)
    at = queue.log.index("check 6") + 1
    assert queue.log[at : at + 16] == (["copy 1", "keep pace"] * 3 + ["copy 2", "keep pace"]) * 2
    trainer.memory.close()
    other = Trainer(path)
    assert other.memory.load(other.state()) is not None
    assert all(torch.equal(one, two) for one, two in zip(values, other.values(), strict=True))
    other.memory.close()


def test_a_save_of_which_a_piece_could_not_be_queued_does_not_count(trainer: Trainer, queue: DeviceQueue, late: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer's step takes what is left, and the GPU has no memory for it; the thread finds nothing left."""
    trainer.step()
    assert trainer.memory.save(trainer.state(), 5)

    def refuse(*_: object) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(queue, "copy", refuse)
    trainer.step()
    late.set()
    trainer.memory.finish()
    assert trainer.memory.safe_step == -1


def test_a_change_that_nobody_waited_for_is_seen(trainer: Trainer, queue: DeviceQueue, late: threading.Event) -> None:
    trainer.step()
    assert trainer.memory.save(trainer.state(), 5)
    with torch.no_grad():
        trainer.parameters[0].add_(1.0)
    late.set()
    trainer.memory.finish()
    assert trainer.memory.safe_step == -1


@pytest.mark.parametrize(("value", "safe"), [(float("nan"), -1), (float("inf"), -1), (1e30, 5)])
def test_a_state_that_is_not_finite_is_no_step_to_go_on_from(trainer: Trainer, queue: DeviceQueue, value: float, safe: int) -> None:
    trainer.step()
    with torch.no_grad():
        trainer.parameters[0][1000] = value
    assert trainer.memory.save(trainer.state(), 5)
    trainer.memory.finish()
    assert trainer.memory.safe_step == safe


def test_nothing_is_written_any_more_by_a_device_when_a_save_has_failed(trainer: Trainer) -> None:
    queue, layout = DeviceQueue(), StateLayout(trainer.state())
    memory = memoryview(bytearray(layout.payload_bytes + memory_segment.ROW))
    copy = state_copy.StateCopy(layout.tensors, memory, 0, 0, layout.payload_bytes, queue)
    copy.begin()
    copy.fail(device_part.StateChanged("lost"))
    with pytest.raises(device_part.StateChanged, match="lost"):
        copy.finish()
    assert queue.log[-1] == "wait"


def test_a_successor_pins_the_memory_that_it_found_before_its_first_save(trainer: Trainer, queue: DeviceQueue, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into memory that is not pinned a GPU copies while the training waits."""
    trainer.saved(5)
    trainer.memory.close()
    cuda = FakeCuda()
    monkeypatch.setattr(torch.cuda, "cudart", cuda.cudart)
    other = Trainer(path)
    other.memory.load(other.state())
    other.step()
    assert not other.memory.save(other.state(), 6)
    other.memory.finish()
    assert len(cuda.pinned) == 1
    assert other.memory.save(other.state(), 6)
    other.memory.finish()
    assert other.memory.safe_step == 6
    other.memory.close()
    assert cuda.pinned == {}
