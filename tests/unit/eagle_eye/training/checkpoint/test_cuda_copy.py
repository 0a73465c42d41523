"""The order in which a copy from a GPU is queued, and the memory that is pinned for it."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eagle_eye.training.checkpoint.cuda_copy import CudaCopy, is_captured, keep_apart, pin, unpin
from eagle_eye.training.checkpoint.cuda_sums import RowKernel
from fakes.cuda_streams import FakeCuda
from fakes.sum_rows import sum_rows


def test_copies_run_beside_the_training_and_before_what_it_queues_after_them() -> None:
    cuda, source, target = FakeCuda(), torch.ones(3), torch.zeros(3)
    copy = CudaCopy([source.device], {}, cuda)
    copy.copy([target], [source])
    copy.release()
    copy.wait()
    assert target.tolist() == [1, 1, 1]
    assert cuda.log == [
        "side of cpu waits for training", "side of cpu waits for training",  # the step before may still change the state
        "on side of cpu", "event 1 on side of cpu", "back",
        "training waits for side of cpu", "training waits for side of cpu",  # the queue does, its thread does not
        "the host waits for side of cpu", "the host waits for side of cpu",
    ]  # fmt: skip


def test_who_keeps_pace_waits_for_all_but_the_newest_copies() -> None:
    cuda, source, target = FakeCuda(), torch.ones(3), torch.zeros(3)
    copy = CudaCopy([source.device], {}, cuda)
    waits = list[list[str]]()
    for _ in range(3):
        copy.copy([target], [source])
        before = len(cuda.log)
        copy.keep_pace()
        waits.append(cuda.log[before:])
    assert waits == [[], ["the host waits for event 1"], ["the host waits for event 2"]]


def test_of_several_devices_each_copies_what_lies_on_it() -> None:
    cuda, source, target = FakeCuda(), torch.ones(3), torch.zeros(3)
    copy = CudaCopy([source.device, torch.device("meta")], {}, cuda)
    copy.copy([target], [source])
    assert (target.tolist(), cuda.log.count("back")) == ([1, 1, 1], 1)


def test_sums_are_made_on_each_device_of_what_lies_there() -> None:
    here, there = torch.device("cpu"), torch.device("meta")
    copy = CudaCopy([here, there], {here: RowKernel(here, sum_rows)}, FakeCuda())
    large = torch.randn(40_000)
    copy.check([torch.empty(3, device=there), large])
    checked = copy.checked()
    assert list(checked) == [1]
    assert (len(checked[1].sums), checked[1].is_finite) == (2, True)


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
