"""Checkpoints in memory beside CUDA graphs: the optimizer's step is recorded once, and done at moments of which nobody is told."""

import threading
import time
from typing import Any

import pytest
import torch

from eagle_eye.training.checkpoint import cuda_copy, state_copy
from eagle_eye.training.checkpoint.memory_layout import StateLayout
from fakes.cuda_streams import FakeCuda
from fakes.memory_trainer import Trainer


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copying thread takes its time."""
    copy = state_copy.StateCopy._copy

    def late(self: state_copy.StateCopy, piece: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.05)
        copy(self, piece)

    monkeypatch.setattr(state_copy.StateCopy, "_copy", late)


@pytest.mark.usefixtures("unhurried")
def test_a_copy_under_way_is_given_up_when_the_step_of_its_optimizer_is_captured(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.step()
    assert trainer.memory.save(trainer.state(), 5)
    monkeypatch.setattr(cuda_copy, "is_captured", lambda: True)
    trainer.step()
    trainer.memory.finish()
    assert trainer.memory.safe_step == -1, "when the graph is replayed nobody waits"


@pytest.mark.usefixtures("unhurried")
def test_where_no_step_of_the_optimizer_was_seen_all_of_it_is_queued_before_the_training_goes_on(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateLayout, "on_gpu", True)
    monkeypatch.setattr(torch.cuda, "cudart", FakeCuda().cudart)
    assert trainer.memory.prepare(trainer.state())
    trainer.saved(5)
    assert trainer.memory.save(trainer.state(), 6)
    copy = trainer.memory._copy
    assert copy is None or copy.is_copied
    with torch.no_grad():
        for parameter in trainer.parameters:
            parameter.data.add_(1.0)  # as a graph does it that is replayed: torch counts no change
    trainer.memory.finish()
    assert trainer.memory.safe_step == 6
