"""What an integration's step waits for behind the last gradient is communication, for whatever the framework does to the backward pass."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_eye.training.integrations.training_steps import TrainingSteps, counts_of
from eagle_eye.training.probe import Monitor
from eagle_eye.training.ring_buffer import RingReader, RingWriter

WAIT_S = 0.05


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def waits_long(_state: object, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduces a bucket as a slow network does."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    threading.Timer(WAIT_S, future.set_result, (bucket.buffer(),)).start()
    return future


class Loop:
    """A framework's, of one step of two micro-batches."""

    def __init__(self, folder: Path, *, parallel: bool) -> None:
        self.monitor = Monitor(RingWriter.create(folder / "ring", worker="run/a/0", offset_ns=0))
        self.steps = TrainingSteps(self.monitor, counts_of)
        self.model: Any = torch.nn.Linear(4, 1)
        if parallel:
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
            self.model.register_comm_hook(None, waits_long)

    def run(self, folder: Path) -> dict[str, float]:
        """What the step was spent with. Behind each pass the loop clips for a while, which no framework tells."""
        self.steps.start(0)
        for number in range(2):
            self.steps.micro_batch(torch.ones(1, 4))
            loss = self.model(torch.ones(1, 4)).sum()
            self.steps.backward((None, loss))
            loss.backward()
            assert self.monitor.status()["phase"] == "backward"
            threading.Event().wait(WAIT_S)
            self.steps.end_micro_batch(stepped=number == 1)
        with RingReader.open(folder / "ring") as reader:
            [step] = reader.steps(-1)
        return step.values


def test_a_wait_behind_the_last_gradient_is_communication_and_what_follows_is_backward_again(tmp_path: Path, alone: None) -> None:
    values = Loop(tmp_path, parallel=True).run(tmp_path)
    assert values["communication_s"] >= 0.8 * 2 * WAIT_S
    assert values["backward_s"] >= 0.8 * 2 * WAIT_S
    assert sum(values[name] for name in values if name.endswith("_s") and name != "step_s") == pytest.approx(values["step_s"])


def test_twin_a_pass_that_waits_for_nobody_has_next_to_no_communication(tmp_path: Path, alone: None) -> None:
    values = Loop(tmp_path, parallel=False).run(tmp_path)
    assert values.get("communication_s", 0.0) < WAIT_S


def test_twin_without_process_groups_nothing_is_hooked(tmp_path: Path) -> None:
    assert "communication_s" not in Loop(tmp_path, parallel=False).run(tmp_path)
