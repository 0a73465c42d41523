"""A digest of the data that a step is given: a loader that gives one batch again and again, and data that begin anew with a restart, are seen by it.

Neither raises an error, and both spoil a training. Read are the first tensors and texts of a batch, of each 4,096 words of eight bytes that are spread over all of it: enough to tell batches apart, and tens of
microseconds of the host's time. Of a tensor on a GPU a sum is made in the script's own stream, of which nothing is waited for: some tenths of a millisecond of the host's time. A batch with a part that cannot be read has none: what is left of it
may be the same by right. Each step has a digest where it costs less than 0.02 % of it; else every so many-th, chosen by a hash of its number, so that data that come in a rhythm are not met in theirs.
"""

import math
import sys
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from .replica_digest import PRIME, interval, is_plain

VALUE = "batch_digest"
"""Value of a step."""
VARIABLE = "EAGLE_EYE_BATCH_DIGESTS"
"""'0' in a worker's environment: none are taken."""
SHARE = 0.0002
"""Of the time, that they may cost."""
SAMPLES = 3
"""The cheapest of so many digests is what one costs: the first ones load kernels, and some are interrupted."""
PARTS, DEPTH = 8, 3
"""So many parts of a batch are looked at, and so far into it."""
MICRO_BATCHES = 32
"""Of a step, of which a digest is made: an evaluation draws many more."""
WORDS = 4096
"""Of eight bytes, of each part."""
_MIX = 2_654_435_761
"""The golden ratio in 32 bits (Knuth, The Art of Computer Programming 3, 6.4)."""


class BatchDigests:
    """Of one worker. A step may be given several micro-batches."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock = clock_ns
        self._every = 1
        self._costs_ns: deque[int] = deque(maxlen=SAMPLES)
        self._shortest_s = math.inf
        self._begin(-1)

    def _begin(self, step: int) -> None:
        """Nothing is read of it; -1: there is none."""
        self._step, self._cost_ns, self._batches = step, 0, 0
        self._host, self._readable = 0, True
        self._device: Any = None

    def add(self, number: int, batch: Any) -> None:
        """A micro-batch of the step of that number."""
        if not is_due(number, self._every):
            return
        if number != self._step:
            self._begin(number)
        self._batches += 1
        if not self._readable or self._batches > MICRO_BATCHES:
            return
        began = self._clock()
        parts = _parts(batch)
        self._readable = parts is not None and all(map(self._take, parts))
        self._cost_ns += self._clock() - began

    def end(self, number: int, step_s: float) -> Any | None:
        """A number below PRIME, or a tensor of one; None where the step that has taken so long was given nothing that can be read, or none is due."""
        self._shortest_s = min(self._shortest_s, step_s)
        if number != self._step:
            return None
        self._step = -1
        if not self._readable or not (self._host or self._device is not None):
            return None
        self._costs_ns.append(self._cost_ns)
        if len(self._costs_ns) == SAMPLES:
            self._every, self._shortest_s = interval(min(self._costs_ns) / 1e9, self._shortest_s, SHARE, 1), math.inf
        if self._device is None:
            return float(self._host)
        return (self._device + self._host if self._host else self._device) % PRIME

    def _take(self, part: Any) -> bool:
        """False: it cannot be read."""
        if isinstance(part, str | bytes):
            self._host = (self._host * 31 + zlib.crc32(part.encode(errors="replace") if isinstance(part, str) else part) + 1) % PRIME
            return True
        if (flat := _flat(part)) is None:
            return False
        if flat.device.type == "cpu":
            self._host = (self._host * 31 + _checksum(flat) + 1) % PRIME
            return True
        found = _sum_on_gpu(flat)
        if found is not None:
            self._device = found if self._device is None else sys.modules["torch"].add(found, self._device, alpha=31)  # one kernel; it wraps around
        return found is not None


def is_due(number: int, every: int) -> bool:
    """Whether the step of that number has a digest. `every`: a power of two; who has one in so many steps has it in those of who has fewer.

    >>> [number for number in range(40) if is_due(number, 8)]
    [0, 18, 19, 20, 39]
    """
    return not ((number * _MIX & 0xFFFFFFFF) >> 12) & (every - 1)


def _parts(batch: Any) -> list[Any] | None:
    """Its first tensors and texts, in their order; None where there is something else that may hold data. Numbers hold none."""
    tensors: Any = getattr(sys.modules.get("torch"), "Tensor", ())  # (): nobody has imported it, or somebody is about to
    pending, found = [(batch, DEPTH)], list[Any]()
    while pending and len(found) < PARTS:
        each, depth = pending.pop()
        if isinstance(each, tensors):
            found += [each] if each.numel() else []
        elif isinstance(each, str | bytes):
            found.append(each)
        elif isinstance(each, Mapping | list | tuple) and depth:
            parts = list(each.values()) if isinstance(each, Mapping) else each
            pending.extend((part, depth - 1) for part in reversed(parts[:PARTS]))
        elif each is not None and not isinstance(each, int | float):
            return None
    return found


def _flat(tensor: Any) -> Any | None:
    """Its bytes in one row, without a copy; None where it is of a kind of its own (DTensor), is none of plain numbers (`is_plain`), or has gaps."""
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor or not is_plain(tensor):
        return None
    dense = tensor.detach()
    if dense.dim() == 4 and not dense.is_contiguous():  # images whose channels come last
        dense = dense.permute(0, 2, 3, 1)
    return dense.view(-1).view(torch.uint8) if dense.is_contiguous() else None


def _stride(words: int) -> int:
    """Odd: rows of a batch are powers of two long, and what they begin with may be the same in all."""
    return words // WORDS | 1


def _checksum(flat: Any) -> int:
    """CRC-32 of words that are spread over it; of all of it where it is short."""
    content = flat.numpy()
    if len(content) <= 8 * WORDS:
        return zlib.crc32(content)
    words = content[: len(content) // 8 * 8].view("u8")
    return zlib.crc32(words[:: _stride(len(words))].copy())


def _sum_on_gpu(flat: Any) -> Any | None:
    """Of such words, as integers; None while a CUDA graph is captured, and where it holds no word."""
    torch = sys.modules["torch"]
    if torch.cuda.is_current_stream_capturing():
        return None
    begin = -flat.storage_offset() % 8
    words = flat[begin : begin + (flat.numel() - begin) // 8 * 8].view(torch.int64)
    return words[:: _stride(words.numel())].sum() if words.numel() else None
