"""Copies from GPUs into the segment, beside the computation: on a stream of their own, straight into pinned memory.

The optimizer's kernels are queued behind the copies by an event: the training thread itself does not wait for the GPU. Seen on an H100: while the
training captures a CUDA graph, a call that waits, made by any thread, ends that capture with an error, unless that thread keeps apart.
"""

import ctypes
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .cuda_sums import CheckedTensor, RowKernel

_log = logging.getLogger("eagle_eye.checkpoint")


class CudaCopy:
    """Of one save; made by the training thread. `kernels`: of the devices that make sums; `cuda`: the module torch.cuda."""

    def __init__(self, devices: Iterable[torch.device], kernels: Mapping[torch.device, RowKernel], cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._paces: dict[torch.device, tuple[Any, Any]] = {}
        """The events behind the last two calls of `copy`."""
        self._asked: dict[torch.device, list[int]] = {}
        self._copies = {device: cuda.Stream(device=device) for device in devices}
        self._checks = {device: cuda.Stream(device=device) for device in self._copies}
        self._kernels = {device: kernel for device, kernel in kernels.items() if device in self._copies}
        self._all = (*self._copies.items(), *self._checks.items())
        for device, stream in self._all:
            stream.wait_stream(cuda.current_stream(device))  # the optimizer's kernels of the step before may still be queued

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device in self._copies

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Queue them on the side stream: one call for all, which gives the interpreter lock back. Whoever calls keeps the sources until `wait` has returned."""
        for device, stream in self._copies.items():
            pairs = [(target, source) for target, source in zip(targets, sources, strict=True) if source.device == device]
            if pairs:
                with self._cuda.stream(stream):
                    torch._foreach_copy_(*map(list, zip(*pairs, strict=True)), non_blocking=True)
                    copied = self._cuda.Event(blocking=True)
                    copied.record(stream)
                    self._paces[device] = self._paces.get(device, (None, None))[1], copied

    def check(self, sources: Sequence[torch.Tensor]) -> None:
        """On a stream of its own: the GPU computes while its copy engine copies."""
        for device, kernel in self._kernels.items():
            numbers = [number for number, source in enumerate(sources) if source.device == device]
            self._asked[device] = numbers
            with self._cuda.stream(self._checks[device]):
                kernel.queue([sources[number] for number in numbers])

    def checked(self) -> Mapping[int, CheckedTensor]:
        found = dict[int, CheckedTensor]()
        for device, numbers in self._asked.items():
            with self._cuda.stream(self._checks[device]):
                found.update({numbers[place]: each for place, each in self._kernels[device].fetch().items()})
        return found

    def keep_pace(self) -> None:
        for before, _ in tuple(self._paces.values()):  # the training thread adds to them
            if before is not None:
                before.synchronize()

    def release(self) -> None:
        """What training queues from now on runs after what was queued here; it does not wait itself."""
        for device, stream in self._all:
            self._cuda.current_stream(device).wait_stream(stream)

    def wait(self) -> None:
        """Until all of it is done. Raises what CUDA says of an earlier kernel."""
        for _, stream in self._all:
            stream.synchronize()


class CudaFill:
    """Copies to GPUs by several threads, each through pinned memory and by a stream of its own: the driver by itself reaches a fourth of that."""

    def __init__(self, most: int, cuda: Any = torch.cuda) -> None:
        """`most`: bytes of a piece."""
        self._most, self._cuda = most, cuda
        self._mine = threading.local()
        self._streams: list[Any] = []

    def __enter__(self) -> "CudaFill":
        return self

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """A piece, as bytes."""
        mine = self._mine
        if getattr(mine, "device", None) != target.device:
            mine.device, mine.stream = target.device, self._cuda.Stream(device=target.device)
            mine.stream.wait_stream(self._cuda.current_stream(target.device))  # what was queued before may still read the target
            mine.staged, mine.turn = [(torch.empty(self._most, dtype=torch.uint8, pin_memory=True), self._cuda.Event()) for _ in range(2)], 0
            self._streams.append(mine.stream)
        memory, copied = mine.staged[mine.turn]
        mine.turn = 1 - mine.turn
        copied.synchronize()
        staged = memory[: len(source)]
        staged.copy_(source)
        with self._cuda.stream(mine.stream):
            target.copy_(staged, non_blocking=True)
            copied.record(mine.stream)

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.synchronize()


_THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL of the driver's cuThreadExchangeStreamCaptureMode."""


def keep_apart(load: Callable[[str], Any] = ctypes.CDLL) -> None:
    """What this thread asks of CUDA is no matter of a graph that another thread captures: called first by each thread of ours."""
    try:
        load("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_THREAD_LOCAL)))
    except (OSError, AttributeError) as error:  # no driver, or one before CUDA 10.1, which has no such graphs
        _log.debug("graphs that are captured cannot be kept apart from: %s", error)


def is_captured(cuda: Any = torch.cuda) -> bool:
    """What this thread queues on its GPU now is recorded for a CUDA graph, and not done."""
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def pin(address: int, size: int, cuda: Any = torch.cuda) -> bool:
    """Pin a segment's memory, so that a GPU writes to it by itself. False where the driver refuses: copies then go through a buffer of its own."""
    code = int(cuda.cudart().cudaHostRegister(address, size, 0))
    if code:
        _log.warning("the memory for checkpoints cannot be pinned (cudaHostRegister: %d): copies from the GPU are slower", code)
    return not code


def unpin(address: int, cuda: Any = torch.cuda) -> None:
    """Before the memory is unmapped."""
    cuda.cudart().cudaHostUnregister(address)
