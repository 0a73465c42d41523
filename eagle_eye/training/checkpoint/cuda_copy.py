"""Copies from GPUs into the segment, beside the computation: on a stream of their own, straight into pinned memory.

The optimizer's kernels are queued behind the copies by an event: the training thread itself does not wait for the GPU.
"""

import logging
from collections.abc import Iterable
from typing import Any

import torch

_log = logging.getLogger("eagle_eye.checkpoint")


class CudaCopy:
    """Of one save; made by the training thread. `cuda`: the module torch.cuda."""

    def __init__(self, devices: Iterable[torch.device], cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._streams = {device: cuda.Stream(device=device) for device in devices}
        for device, stream in self._streams.items():
            stream.wait_stream(cuda.current_stream(device))  # the optimizer's kernels of the step before may still be queued

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue it on the side stream. Whoever calls keeps `source` until `wait` has returned."""
        with self._cuda.stream(self._streams[source.device]):
            target.copy_(source, non_blocking=True)

    def release(self) -> None:
        """What training queues from now on runs after the copies that were queued; it does not wait itself."""
        for device, stream in self._streams.items():
            self._cuda.current_stream(device).wait_stream(stream)

    def wait(self) -> None:
        """Until all copies are done. Raises what CUDA says of an earlier kernel."""
        for stream in self._streams.values():
            stream.synchronize()


def pin(address: int, size: int, cuda: Any = torch.cuda) -> bool:
    """Pin a segment's memory, so that a GPU writes to it by itself. False where the driver refuses: copies then go through a buffer of its own."""
    code = int(cuda.cudart().cudaHostRegister(address, size, 0))
    if code:
        _log.warning("the memory for checkpoints cannot be pinned (cudaHostRegister: %d): copies from the GPU are slower", code)
    return not code


def unpin(address: int, cuda: Any = torch.cuda) -> None:
    """Before the memory is unmapped."""
    cuda.cudart().cudaHostUnregister(address)
