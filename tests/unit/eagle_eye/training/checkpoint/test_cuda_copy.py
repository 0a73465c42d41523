"""The order in which a copy from a GPU is queued, and the memory that is pinned for it."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eagle_eye.training.checkpoint.cuda_copy import CudaCopy, is_captured, keep_apart, pin, unpin
from eagle_eye.training.checkpoint.memory_segment import ROW
from eagle_eye.training.checkpoint.row_sums import RowSums
from fakes.cuda_streams import FakeCuda


def test_copies_run_beside_the_training_and_before_what_it_queues_after_them() -> None:
    cuda, source, target = FakeCuda(), torch.ones(3), torch.zeros(3)
    copy = CudaCopy([source.device], cuda)
    copy.copy([target], [source])
    copy.release()
    copy.wait()
    assert target.tolist() == [1, 1, 1]
    assert cuda.log == [
        "side of cpu waits for training", "side of cpu waits for training",  # the step before may still change the state
        "on side of cpu", "back",
        "training waits for side of cpu", "training waits for side of cpu",  # the queue does, its thread does not
        "the host waits for side of cpu", "the host waits for side of cpu",
    ]  # fmt: skip


def test_of_several_devices_each_copies_what_lies_on_it() -> None:
    cuda, source, target = FakeCuda(), torch.ones(3), torch.zeros(3)
    copy = CudaCopy([source.device, torch.device("meta")], cuda)
    copy.copy([target], [source])
    assert (target.tolist(), cuda.log.count("back")) == ([1, 1, 1], 1)


def test_sums_and_the_largest_value_are_made_where_the_tensor_lies() -> None:
    copy = CudaCopy([torch.device("cpu")], FakeCuda())
    large, small, whole_numbers = torch.randn(40_000), torch.tensor([1.0, float("nan")]), torch.arange(70_000)
    checks = copy.fetch([copy.check(tensor) for tensor in (large, small, whole_numbers, large.expand(2, -1))])
    memory = memoryview(bytearray(large.numpy().tobytes() + bytes(ROW)))
    sums = RowSums(memory, 0, 2 * ROW)
    sums.complete()
    assert checks[0].sums is not None
    assert checks[0].sums.tolist() == sums._sums[:2].tolist(), "two whole rows; the third is not"
    assert (float(checks[0].largest), checks[1].sums, bool(torch.isnan(checks[1].largest))) == (float(large.abs().max()), None, True)
    assert (len(checks[2].sums), checks[2].largest, checks[3].sums) == (8, None, None)


def test_memory_is_pinned_where_the_driver_can(caplog: pytest.LogCaptureFixture) -> None:
    cuda = FakeCuda()
    assert pin(4096, 100, cuda)
    assert cuda.pinned == {4096: 100}
    unpin(4096, cuda)
    assert cuda.pinned == {}
    assert not pin(4096, 100, FakeCuda(refuses_to_pin=True))
    assert "cannot be pinned" in caplog.text


def test_a_thread_keeps_apart_from_what_others_capture_where_there_is_a_driver_that_knows_it() -> None:
    modes: list[int] = []

    def driver(name: str) -> Any:
        assert name == "libcuda.so.1"
        return SimpleNamespace(cuThreadExchangeStreamCaptureMode=lambda mode: modes.append(ctypes.cast(mode, ctypes.POINTER(ctypes.c_int)).contents.value))

    def no_driver(_: str) -> Any:
        raise OSError("no such file")

    keep_apart(driver)
    assert modes == [1], "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL"
    keep_apart(no_driver)
    keep_apart(lambda _: SimpleNamespace())


def test_what_a_graph_records_is_not_asked_of_a_gpu_that_is_not_used() -> None:
    def cuda(*, used: bool, capturing: bool) -> Any:
        return SimpleNamespace(is_initialized=lambda: used, is_current_stream_capturing=lambda: capturing)

    assert is_captured(cuda(used=True, capturing=True))
    assert not is_captured(cuda(used=True, capturing=False))
    assert not is_captured(cuda(used=False, capturing=True))
