"""A digest of the data that a step is given: a loader that stands still, data that begin anew with a restart, and replicas that all read the same are seen by it.

None of them raises an error, and each spoils a training. Read are spread pieces of the first tensors of a batch, 32 KiB of each: enough to tell batches apart, and microseconds of the host's time. Of a tensor
on a GPU a sum is made in the script's own stream, of which nothing is waited for. Each step has a digest where it costs less than 0.02 % of it; else those whose number is a multiple of a power of two.
"""

import math
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .replica_digest import PRIME, interval

VALUE = "batch_digest"
"""Value of a step."""
VARIABLE = "EAGLE_EYE_BATCH_DIGESTS"
"""'0' in a worker's environment: none are taken."""
SHARE = 0.0002
"""Of the time, that they may cost."""
TENSORS, DEPTH = 4, 3
"""So many tensors of a batch are looked at, and so far into it."""
PIECES, PIECE = 16, 2048
"""Of each so many pieces of so many bytes."""


class BatchDigests:
    """Of one worker. A step may be given several micro-batches."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock = clock_ns
        self._every, self._cost_ns, self._shortest_s = 1, 0, math.inf
        self._step, self._host, self._device = -1, 0, None

    def add(self, number: int, batch: Any) -> None:
        """A micro-batch of the step of that number."""
        if number % self._every or not (tensors := list(_tensors(batch))):
            return
        began = self._clock()
        if number != self._step:
            self._step, self._host, self._device, self._cost_ns = number, 0, None, 0
        for tensor in tensors:
            if tensor.device.type == "cpu":
                self._host = (self._host * 31 + _checksum(tensor) + 1) % PRIME
            elif (part := _sum_on_gpu(tensor)) is not None:
                self._device = part if self._device is None else (self._device * 31 + part) % PRIME
        self._cost_ns += self._clock() - began

    def end(self, number: int, step_s: float) -> Any | None:
        """A number below PRIME, or a tensor of one; None where the step that has taken so long was given nothing that can be read, or none is due."""
        self._shortest_s = min(self._shortest_s, step_s)
        if number != self._step:
            return None
        self._step = -1
        self._every, self._shortest_s = interval(self._cost_ns / 1e9, self._shortest_s, SHARE, 1), math.inf
        if self._device is not None:
            return (self._device + self._host) % PRIME
        return float(self._host)


def _tensors(batch: Any) -> Iterator[Any]:
    """The first ones, in the order of the batch, that are plain and contiguous."""
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "Tensor"):  # nobody has imported it, or somebody is about to
        return
    pending, found = [(batch, DEPTH)], 0
    while pending and found < TENSORS:
        each, depth = pending.pop()
        if type(each) is torch.Tensor:
            if each.layout is torch.strided and each.device.type in ("cpu", "cuda") and each.numel() and each.is_contiguous() and not each.is_complex():
                found += 1
                yield each.detach()
        elif depth:
            parts = list(each.values()) if isinstance(each, Mapping) else each if isinstance(each, list | tuple) else []
            pending.extend((part, depth - 1) for part in reversed(parts[:TENSORS]))


def _checksum(tensor: Any) -> int:
    """CRC-32 of its pieces."""
    content = memoryview(tensor.view(-1).view(sys.modules["torch"].uint8).numpy())
    if len(content) <= PIECES * PIECE:
        return zlib.crc32(content)
    checksum, stride = 0, len(content) // PIECES
    for begin in range(0, PIECES * stride, stride):
        checksum = zlib.crc32(content[begin : begin + PIECE], checksum)
    return checksum


def _sum_on_gpu(tensor: Any) -> Any | None:
    """Of words that are spread over it, as integers; None while a CUDA graph is captured, and where it does not begin at a word."""
    torch = sys.modules["torch"]
    if torch.cuda.is_current_stream_capturing() or tensor.storage_offset() * tensor.element_size() % 8:
        return None
    content = tensor.view(-1).view(torch.uint8)
    words = content[: content.numel() // 8 * 8].view(torch.int64)
    return words[:: max(1, words.numel() * 8 // (PIECES * PIECE))].sum() % PRIME if words.numel() else None
