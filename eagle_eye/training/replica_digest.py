"""A digest of the parameters that replicas hold alike: data-parallel workers whose digests were equal and are no more have been corrupted, unseen by anybody.

The bits of all parameters are summed as integers, and the sum is taken modulo a prime that a float32 holds: whichever single bit is another one, so is the digest, and the
order of the sum does not matter. On a GPU it is one pass over the parameters in the script's own stream, of which nothing is waited for.
A digest is taken behind steps whose number is a multiple of a power of two, so that workers that choose another interval still meet at the longer one. The interval is
16 steps, or as many as keep the cost below half a percent.

In the same steps one of the gradients is taken, before the optimizer writes: behind the exchange they are the same on all replicas, too. Where they were, and the parameters behind the
step are not, the optimizer or the memory of a worker is to blame; where they were not, what it was sent or has read.
"""

import math
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

VALUE, OF_GRADIENTS = "replica_digest", "gradient_digest"
"""Values of a step."""
VARIABLE = "EAGLE_EYE_REPLICA_DIGESTS"
"""'0' in a worker's environment: none are taken."""
PRIME = 16_777_213
"""The largest below 2²⁴."""
LEAST, MOST = 16, 1 << 20
"""Steps between two digests."""
SHARE = 0.005
"""Of the time, that they may cost."""
GPU_BYTES_PER_S = 5e11
"""That a GPU reads at least: what its part takes is not waited for, and so not measured."""

Tensors = Callable[[], Iterable[Any]]


class DigestSchedule:
    """Of one worker. `tensors` gives its parameters as they are now."""

    def __init__(self, tensors: Tensors, clock_ns: Callable[[], int]) -> None:
        self._tensors, self._clock = tensors, clock_ns
        self._every, self._shortest_s = LEAST, math.inf
        self._newest, self._spent_s = -1, 0.0
        """The step whose gradients were read last, and what that has cost."""

    def before_update(self, number: int, optimizer: Any) -> Any | None:
        """The same of the gradients, where a digest is due behind that step: before the first of the optimizers writes that updates half of the parameters or more.

        By one that updates a few of them, as they do whose update is a part of the backward pass, the gradients need not be there yet.
        """
        if (number + 1) % self._every or number == self._newest:
            return None
        began = self._clock()
        tensors = list(self._tensors())
        if 2 * _updated(optimizer, tensors) < len(tensors):
            return None
        found, on_gpu = digest_of(each.grad for each in tensors if each.is_leaf and each.grad is not None)
        self._newest, self._spent_s = number, (self._clock() - began) / 1e9 + on_gpu / GPU_BYTES_PER_S
        return found

    def behind(self, number: int, step_s: float) -> Any | None:
        """A tensor of one number, where one is due behind the step of that number, which took so long; else None."""
        self._shortest_s = min(self._shortest_s, step_s)
        if (number + 1) % self._every:
            return None
        began = self._clock()
        found, on_gpu = digest_of(self._tensors())
        cost_s = (self._clock() - began) / 1e9 + on_gpu / GPU_BYTES_PER_S + self._spent_s
        self._spent_s = 0.0
        self._every, self._shortest_s = interval(cost_s, self._shortest_s), math.inf
        return found


def _updated(optimizer: Any, tensors: Iterable[Any]) -> int:
    """So many of them does it update."""
    own = {id(each) for group in optimizer.param_groups for each in group["params"]}
    return sum(id(each) in own for each in tensors)


def interval(cost_s: float, step_s: float, share: float = SHARE, least: int = LEAST) -> int:
    """Steps between two digests of that cost, where a step takes so long: a power of two, from `least` on. `share`: of the time, that they may cost.

    >>> interval(0.0001, 0.1), interval(0.1, 0.1)
    (16, 256)
    """
    needed = cost_s / max(share * step_s, 1e-9)
    return min(max(least, 1 << math.ceil(math.log2(max(needed, 1.0)))), MOST)


def digest_of(tensors: Iterable[Any]) -> tuple[Any | None, int]:
    """A tensor of one number below PRIME, and how many bytes of a GPU were read; None where none of them can be read.

    Left out are parts of sharded tensors, tensors that are not contiguous or not of plain numbers (`is_plain`), and all while a CUDA graph is captured.
    """
    torch = sys.modules.get("torch")
    if torch is None or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
        return None, 0
    sums: dict[Any, list[Any]] = {}
    on_gpu = 0
    with torch.no_grad():
        for tensor in tensors:
            if type(tensor) in (torch.Tensor, torch.nn.Parameter) and is_plain(tensor) and tensor.is_contiguous() and tensor.numel():
                sums.setdefault(tensor.device, []).extend(_sums(torch, tensor.detach()))
                on_gpu += tensor.numel() * tensor.element_size() if tensor.device.type != "cpu" else 0
        first, *others = [torch.stack(each).sum() % PRIME for each in sums.values()] or [None]
        for other in others:
            first = first + other.to(first.device, non_blocking=True)
        return (None if first is None else first % PRIME), on_gpu


def is_plain(tensor: Any) -> bool:
    """Whether its bytes in memory are its numbers, and are there: who reads another one as integers gets others, or ends the process.

    Not of a quantized or nested tensor, of a view that negates or conjugates, of one without data, or whose storage was freed (resharding, offloading), nor of a type that is not known here.
    """
    torch = sys.modules["torch"]
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.device.type not in ("cpu", "cuda") or tensor.dtype not in _plain_types():
        return False
    if tensor.is_quantized or tensor.is_neg() or tensor.is_conj():
        return False
    count = tensor.numel()
    if count and not tensor.is_contiguous():
        count = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(tensor.untyped_storage().nbytes() >= (tensor.storage_offset() + count) * tensor.element_size() or not count)


@cache
def _plain_types() -> frozenset[Any]:
    """Those of torch that this version of it has."""
    torch = sys.modules["torch"]
    return frozenset(found for name in _PLAIN if (found := getattr(torch, name, None)) is not None)


_PLAIN = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
)  # fmt: skip
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""Bytes of a number → the type of torch that has its bits."""


def _sums(torch: Any, tensor: Any) -> list[Any]:
    """The sum of its bits, eight bytes at a time, which makes no copy of it; and of the rest, or of a tensor that does not begin at eight bytes, number by number.

    Sums wrap at 2⁶⁴: one flipped bit changes them by a power of two, which no multiple of the prime is, nor 2⁶⁴ less it. Each operation is one more kernel
    for the GPU to be given, of which a model has hundreds: there is one for most tensors.
    """
    size = tensor.element_size()
    flat = tensor.view(-1).view(getattr(torch, _INTEGERS[size]))
    if flat.storage_offset() * size % 8:
        return _sums_of_numbers(torch, flat)
    whole = flat.numel() * size // 8 * 8 // size
    if whole == flat.numel():
        return [flat.view(torch.int64).sum()]
    return [*([flat[:whole].view(torch.int64).sum()] if whole else []), *_sums_of_numbers(torch, flat[whole:])]


def _sums_of_numbers(torch: Any, flat: Any) -> list[Any]:
    """In pieces: a sum of smaller integers is made of a copy in int64."""
    return [piece.sum(dtype=torch.int64) for piece in flat.split(1 << 22)]
