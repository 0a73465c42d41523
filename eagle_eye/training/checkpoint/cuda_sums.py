"""The sums of a state's rows, and whether all of it is finite, made on the GPU that holds it: one kernel for all tensors.

A thread of the host takes ten times as long for the sums of a copy as the copy takes (H100), and two operations of torch for each tensor keep the training from
queueing its own work. The kernel is compiled when memory is reserved, and used if it sums a small example right; where it cannot be, the host makes the sums.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from .memory_segment import ROW

_log = logging.getLogger("eagle_eye.checkpoint")
_THREADS = 256
"""Of a block, which reads one row."""
_KINDS = {torch.float64: 1, torch.complex128: 1, torch.float32: 2, torch.complex64: 2, torch.float16: 3, torch.bfloat16: 4}
_UNKNOWN = 5
"""Floating, of a kind whose infinite values the kernel does not know."""
_NAME = "sum_rows"
_SOURCE = """
__device__ bool is_strange(unsigned long long word, int kind) {
    if (kind == 1) return (word & 0x7FF0000000000000ULL) == 0x7FF0000000000000ULL;
    if (kind == 2) return (word & 0x7F800000ULL) == 0x7F800000ULL || (word >> 32 & 0x7F800000ULL) == 0x7F800000ULL;
    if (kind == 5) return true;
    if (kind != 3 && kind != 4) return false;
    const unsigned long long exponent = kind == 3 ? 0x7C00ULL : 0x7F80ULL;
    for (int at = 0; at < 64; at += 16)
        if ((word >> at & exponent) == exponent) return true;
    return false;
}

// A row of the table: address, bytes, kind, first block, first sum.
extern "C" __global__ void sum_rows(const long long* table, int tensors, unsigned long long* sums, int* strange) {
    __shared__ int ours;
    __shared__ unsigned long long parts[THREADS / 32];
    if (threadIdx.x == 0) {
        int first = 0, last = tensors - 1;
        while (first < last) {
            const int middle = (first + last + 1) / 2;
            if (table[5 * middle + 3] <= blockIdx.x) first = middle; else last = middle - 1;
        }
        ours = first;
    }
    __syncthreads();
    const long long* entry = table + 5 * ours;
    const long long number = (long long)blockIdx.x - entry[3], left = entry[1] - number * ROW;
    const long long size = left < ROW ? left : ROW;
    const int kind = (int)entry[2];
    const unsigned char* begin = (const unsigned char*)entry[0] + number * ROW;
    const unsigned long long* words = (const unsigned long long*)begin;
    unsigned long long sum = 0;
    bool odd = false;
    for (int at = threadIdx.x; at < size / 8; at += THREADS) {
        const unsigned long long word = words[at];
        sum += word;
        odd |= is_strange(word, kind);
    }
    if (threadIdx.x == 0 && size % 8) {
        unsigned long long word = 0;
        for (int at = 0; at < size % 8; ++at) word |= (unsigned long long)begin[size / 8 * 8 + at] << 8 * at;
        odd |= is_strange(word, kind);
    }
    for (int step = 16; step; step /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    const int found = __syncthreads_or(odd);
    if (threadIdx.x) return;
    for (int part = 1; part < THREADS / 32; ++part) sum += parts[part];
    if (left >= ROW) sums[entry[4] + number] = sum;
    if (found) strange[ours] = 1;
}
""".replace("THREADS", str(_THREADS)).replace("ROW", f"{ROW}LL")


class CheckedTensor(NamedTuple):
    """What a device found of a tensor; in the host's memory."""

    sums: torch.Tensor
    """Of its whole rows, as RowSums makes them."""
    is_finite: bool
    """False: the host has to look; a mask of attention is as it should be."""


class RowKernel:
    """Of one GPU, for one save at a time."""

    def __init__(self, device: torch.device, compiled: Callable[..., None]) -> None:
        self._device, self._kernel = device, compiled
        self._entries: list[tuple[int, int, int, int, int]] = []
        self._table = torch.empty(0)
        self._used: list[int] = []
        self._found: tuple[torch.Tensor, torch.Tensor] | None = None

    def queue(self, sources: Sequence[torch.Tensor]) -> None:
        """In the current stream. They must not change before that is through."""
        entries, blocks, sums = list[tuple[int, int, int, int, int]](), 0, 0
        self._used = []
        for number, source in enumerate(sources):
            size = source.nbytes
            if not size or not source.is_contiguous() or source.data_ptr() % 8:
                continue
            self._used.append(number)
            entries.append((source.data_ptr(), size, _kind_of(source.dtype), blocks, sums))
            blocks, sums = blocks + math.ceil(size / ROW), sums + size // ROW
        self._found = None
        if not entries:
            return
        if entries != self._entries:
            self._entries, self._table = entries, self._to_device(torch.tensor(entries, dtype=torch.int64, device="cpu"))
        made = torch.empty(sums, dtype=torch.int64, device=self._device), torch.zeros(len(entries), dtype=torch.int32, device=self._device)
        self._kernel(grid=(blocks, 1, 1), block=(_THREADS, 1, 1), args=[self._table, len(entries), *made])
        self._found = made

    def fetch(self) -> dict[int, CheckedTensor]:
        """By their place in what was queued, once that is through; without those that the kernel cannot read."""
        found, self._found = self._found, None
        if found is None:
            return {}
        sums, strange = found[0].cpu(), found[1].tolist()
        ends = [at + size // ROW for _, size, _, _, at in self._entries]
        return {number: CheckedTensor(sums[entry[4] : end], not odd) for number, entry, end, odd in zip(self._used, self._entries, ends, strange, strict=True)}

    def _to_device(self, table: torch.Tensor) -> torch.Tensor:
        """Without waiting for what is queued there."""
        return table.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else table


def row_kernel(device: torch.device, compile_: Callable[[str, str], Callable[..., None]] | None = None) -> RowKernel | None:
    """None where it cannot be made, which is told; takes a second. Call it in a thread of our own, or before the training."""
    try:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device=device)):  # not behind what the training has queued
            kernel = RowKernel(device, (compile_ or _compiled)(_SOURCE, _NAME))
            prove(kernel, device)
    except Exception as error:  # noqa: BLE001 - torch, NVRTC or the driver: training goes on, and the host makes the sums
        _log.warning("sums of checkpoints are made by the host, which is slower: the kernel for %s cannot be used: %s", device, error)
        return None
    return kernel


def _compiled(source: str, name: str) -> Callable[..., None]:
    """By NVRTC, which torch brings. Raises whatever torch does."""
    from torch.utils import cpp_extension  # it imports setuptools: late, and only here

    home = cpp_extension.CUDA_HOME
    try:
        cpp_extension.CUDA_HOME = home or "/usr"  # torch asks for the headers of a toolkit, which few machines have, and of which the source includes none
        kernel: Callable[..., None] = torch.cuda._compile_kernel(source, name)
    finally:
        cpp_extension.CUDA_HOME = home
    return kernel


def prove(kernel: RowKernel, device: torch.device) -> None:
    """That it sums an example right, and finds what is not finite. Raises RuntimeError."""
    example = torch.arange(2 * ROW // 4 + 3, dtype=torch.float32, device=device) * 1e-3
    odd = [example.clone().index_fill_(0, torch.tensor([place], device=device), value) for place, value in ((0, math.nan), (ROW // 4 + 1, math.inf), (len(example) - 1, -math.inf))]
    halves = [torch.full((5,), value, dtype=dtype, device=device) for dtype, value in ((torch.float16, 65504.0), (torch.float16, math.inf), (torch.bfloat16, 3e38), (torch.bfloat16, math.nan))]
    doubles = [torch.tensor([1.0, value], dtype=torch.float64, device=device) for value in (1e308, -math.inf)]
    whole = torch.full((ROW // 8 + 1,), -1, dtype=torch.int64, device=device)
    kernel.queue([example, *odd, *halves, *doubles, whole])
    found = kernel.fetch()
    expected = [each.cpu().view(torch.uint8)[: each.nbytes // ROW * ROW].view(torch.int64).view(-1, ROW // 8).sum(1).tolist() for each in (example, *odd, whole)]
    sums = [found[number].sums.tolist() for number in (0, 1, 2, 3, 10)]
    finite = [found[number].is_finite for number in range(11)]
    if sums != expected or finite != [True, False, False, False, True, False, True, False, True, False, True]:
        raise RuntimeError(f"an example was summed as {sums} and not {expected}, or found finite as {finite}")


def _kind_of(dtype: torch.dtype) -> int:
    return _KINDS.get(dtype, _UNKNOWN if dtype.is_floating_point or dtype.is_complex else 0)
