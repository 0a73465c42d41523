"""Huge pages (2 MiB) for the memory of a worker's state: another process then reads it at the speed of a copy.

The kernel has to find and pin every page that one process reads of another's memory, and of pages of 4 KiB that
takes longer than the copying itself. `collapse` makes huge pages of adjacent small ones (madvise(2), MADV_COLLAPSE, since
Linux 6.1): no tensor moves to another address, so it may be done at any time and from any thread, while others read and
write. It costs one copy of the memory and no memory; memory that was never written to gets its pages now.

Where the kernel cannot do it, or the machine forbids it (transparent_hugepage/enabled is "never"), nothing changes.
"""

import contextlib
import ctypes
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from . import tensor_bytes

if TYPE_CHECKING:
    from torch import Tensor

PAGE = 2 << 20
_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23
_MADV_COLLAPSE = 25
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def collapse(tensors: "Iterable[Tensor]") -> None:
    """Put the memory of these tensors on huge pages, where they fill at least half of one. Tensors on a GPU are skipped."""
    spans = [(each.data_ptr(), each.numel() * each.element_size()) for each in tensors if tensor_bytes.is_direct(each)]
    if is_possible():
        for start, size in _runs(_pages(spans)):
            for advice in (_MADV_HUGEPAGE, _MADV_POPULATE_WRITE, _MADV_COLLAPSE):
                _madvise()(start, size, advice)  # a failure leaves the page as it is


def advise(tensor: "Tensor") -> None:
    """Ask for huge pages for the memory of a tensor that was not written to yet."""
    first, last = -(-tensor.data_ptr() // PAGE), (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // PAGE
    if tensor_bytes.is_direct(tensor) and last > first and is_possible():
        _madvise()(first * PAGE, (last - first) * PAGE, _MADV_HUGEPAGE)


@functools.cache
def is_possible() -> bool:
    """Whether the machine has huge pages, and allows them."""
    with contextlib.suppress(OSError, AttributeError):
        _madvise()
        return "[never]" not in _SETTING.read_text()
    return False


def _pages(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Numbers of the pages that are filled at least by half, given (address, bytes)."""
    filled: Counter[int] = Counter()
    for start, size in spans:
        for page in range(start // PAGE, -(-(start + size) // PAGE)):
            filled[page] += min(start + size, (page + 1) * PAGE) - max(start, page * PAGE)
    return sorted(page for page, count in filled.items() if 2 * count >= PAGE)


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """(address, bytes) of pages that follow one another: a call for each takes longer than the work."""
    for _, run in groupby(enumerate(pages), lambda each: each[1] - each[0]):
        numbers = [page for _, page in run]
        yield numbers[0] * PAGE, len(numbers) * PAGE


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    call = ctypes.CDLL(None, use_errno=True).madvise
    call.restype = ctypes.c_int
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return call
