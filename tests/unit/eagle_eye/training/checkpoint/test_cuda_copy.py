"""The order in which a copy from a GPU is queued, and the memory that is pinned for it."""

import pytest
import torch

from eagle_eye.training.checkpoint.cuda_copy import CudaCopy, pin, unpin
from fakes.cuda_streams import FakeCuda


def test_copies_run_beside_the_training_and_before_what_it_queues_after_them() -> None:
    cuda, source, target = FakeCuda(), torch.ones(3), torch.zeros(3)
    copy = CudaCopy([source.device], cuda)
    copy.copy(target, source)
    copy.release()
    copy.wait()
    assert target.tolist() == [1, 1, 1]
    assert cuda.log == [
        "side of cpu waits for training",  # the step before may still change the state
        "on side of cpu", "back",
        "training waits for side of cpu",  # the queue does, its thread does not
        "the host waits for side of cpu",
    ]  # fmt: skip


def test_memory_is_pinned_where_the_driver_can(caplog: pytest.LogCaptureFixture) -> None:
    cuda = FakeCuda()
    assert pin(4096, 100, cuda)
    assert cuda.pinned == {4096: 100}
    unpin(4096, cuda)
    assert cuda.pinned == {}
    assert not pin(4096, 100, FakeCuda(refuses_to_pin=True))
    assert "cannot be pinned" in caplog.text
