"""Which tensors and steps a checkpoint in memory takes, and that one which loses its memory meanwhile ends no process."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from eagle_eye.training.checkpoint.device_part import DevicePart, StateChanged
from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints
from eagle_eye.training.checkpoint.memory_layout import StateLayout, is_storage_short
from fakes.memory_trainer import Trainer, begun


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def loaded(memory: MemoryCheckpoints, saved: dict[str, Any], template: dict[str, Any]) -> Any:
    assert memory.prepare(saved)
    assert memory.save(saved, 1)
    memory.finish()
    return memory.load(template)


@pytest.mark.parametrize("tensor", [freed(tensor) for tensor in (torch.ones(8), torch.ones(8)[2:], torch.ones(3, 3).t(), torch.ones(8, dtype=torch.complex64).conj())])
def test_a_tensor_whose_storage_was_freed_is_refused_by_name(trainer: Trainer, tensor: torch.Tensor) -> None:
    for refuse in (trainer.memory.prepare, lambda state: trainer.memory.save(state, 1)):
        with pytest.raises(TypeError, match=r"'state\.w'.*storage was freed"):
            refuse({"w": tensor})


@pytest.mark.parametrize("tensor", [torch.ones(8), torch.ones(8)[2:], torch.ones(3, 3).t(), torch.ones(9)[::4], torch.empty(0), freed(torch.ones(8)[:0]), torch.ones(1).expand(5), torch.tensor(1.0)])
def test_a_tensor_that_its_storage_holds_is_taken(tensor: torch.Tensor) -> None:
    assert not is_storage_short(tensor)
    assert StateLayout({"w": tensor}).payload_bytes == tensor.numel() * 4


@pytest.mark.parametrize("size", [0, 1 << 22])
def test_storage_that_is_freed_or_moved_meanwhile_costs_the_copy_alone(trainer: Trainer, held: threading.Event, size: int, caplog: pytest.LogCaptureFixture) -> None:
    assert trainer.memory.save(trainer.state(), 1)
    begun(trainer)
    trainer.parameters[2].untyped_storage().resize_(size)  # whose piece is not in anybody's hands
    held.set()
    trainer.memory.finish()
    assert trainer.memory.safe_step == -1
    assert "the storage of 'state.model.p2' was freed or moved" in caplog.text
    trainer.parameters[2].untyped_storage().resize_(4 * 90_000)


class _Device:
    """A device that copies at once."""

    def __init__(self) -> None:
        self.copied = 0

    def copy(self, targets: Any, sources: Any) -> None:
        self.copied += len(sources)

    def check(self, sources: Any) -> None: ...
    def release(self) -> None: ...


@pytest.mark.parametrize("queued_before", [False, True])
def test_storage_of_a_device_that_is_freed_meanwhile_is_seen(queued_before: bool) -> None:
    tensor = torch.ones(8)
    placed = StateLayout({"w": tensor}, lambda _: frozenset({0})).tensors
    device = _Device()
    part = DevicePart(placed, [torch.empty(8)], device)  # type: ignore[arg-type]
    part.queue()
    if queued_before:
        part._queue(1 << 20)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(StateChanged, match=r"the storage of 'state\.w' was freed"):
        part.release()
    assert device.copied == queued_before


def test_a_wrapper_of_other_tensors_is_refused_by_name(trainer: Trainer) -> None:
    wrapper = TwoTensor(torch.ones(3), torch.ones(3))
    for refuse in (trainer.memory.prepare, lambda state: trainer.memory.save(state, 1)):
        with pytest.raises(TypeError, match=r"'state\.w'.*TwoTensor"):
            refuse({"w": wrapper})


def test_an_optimizer_may_hold_wrappers_that_no_state_has(path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    optimizer.state[parameter]["quantized"] = TwoTensor(torch.ones(3), torch.ones(3))
    with closing(MemoryCheckpoints([optimizer], path)) as memory:
        assert loaded(memory, {"w": parameter.detach()}, {"w": torch.zeros(3)}).step == 1


@pytest.mark.parametrize(("step", "error"), [(1.5, TypeError), (True, TypeError), ("3", TypeError), (None, TypeError), (-5, ValueError)])
def test_what_is_no_step_raises(trainer: Trainer, step: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="give the number of the first step"):
        trainer.memory.save(trainer.state(), step)
    assert trainer.memory.left_out == 0


@pytest.mark.parametrize("number", [int, np.int64, torch.tensor])
def test_whatever_stands_for_a_number_is_a_step(trainer: Trainer, number: Callable[[int], Any]) -> None:
    assert trainer.memory.save(trainer.state(), number(3))
    trainer.memory.finish()
    assert (trainer.memory.safe_step, type(trainer.memory.safe_step)) == (3, int)


UNFILLABLE = [torch.zeros(1, 4).expand(3, 4), torch.zeros(4).as_strided((3, 4), (0, 1)), freed(torch.zeros(3, 4)), TwoTensor(torch.zeros(3, 4), torch.zeros(3, 4)), torch.zeros(3, 4).to_sparse()]


@pytest.mark.parametrize("tensor", UNFILLABLE)
def test_a_template_that_cannot_be_filled_is_a_misfit_and_nothing_is_changed(path: Path, tensor: torch.Tensor) -> None:
    first = torch.zeros(5)
    with closing(MemoryCheckpoints(path=path)) as memory:
        assert loaded(memory, {"a": torch.ones(5), "w": torch.ones(3, 4)}, {"a": first, "w": tensor}) is None
        assert first.tolist() == [0] * 5
        template = {"a": first, "w": torch.zeros(3, 4)}
        assert memory.load(template) is not None
        assert (first.tolist(), template["w"].sum()) == ([1] * 5, 12)


def test_which_tensor_cannot_be_filled_is_said(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(MemoryCheckpoints(path=path)) as memory:
        assert loaded(memory, {"w": torch.ones(1).expand(3)}, {"w": torch.ones(1).expand(3)}) is None
    assert "the tensor 'state.w' cannot be filled" in caplog.text


def test_a_state_with_an_expanded_tensor_comes_back_into_a_clone_of_it(path: Path) -> None:
    clone = torch.zeros(3)
    with closing(MemoryCheckpoints(path=path)) as memory:
        assert loaded(memory, {"w": torch.full((1,), 7.0).expand(3)}, {"w": clone}) is not None
    assert clone.tolist() == [7, 7, 7]


def test_a_tensor_that_was_made_in_inference_mode_is_filled_by_its_address(path: Path) -> None:
    with torch.inference_mode():
        made = torch.zeros(3)
    with closing(MemoryCheckpoints(path=path)) as memory:
        assert loaded(memory, {"w": torch.full((3,), 7.0)}, {"w": made}) is not None
    assert made.tolist() == [7, 7, 7]
