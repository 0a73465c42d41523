"""RemoteRead another process's memory straight into one's own: one copy, made by the kernel (process_vm_readv(2)).

The kernel allows it to a process that may trace the other one: one of the same user, and where Yama restricts tracing or
a container drops CAP_SYS_PTRACE, to none. So it is tried before it is used. A stopped process can
be read, one that ended cannot.
"""

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class _Range(ctypes.Structure):
    """struct iovec"""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def read(pid: int, addresses: Sequence[int], into: "Sequence[Tensor]") -> None:
    """Fill contiguous tensors from as many ranges of the process's memory.

    Raises ProcessLookupError if it has ended, PermissionError if it may not be read, and OSError (EFAULT) where it
    has no memory at an address.
    """
    sizes = [tensor.numel() * tensor.element_size() for tensor in into]
    starts = [tensor.data_ptr() for tensor in into]
    ranges = [each for each in zip(addresses, starts, sizes, strict=True) if each[2]]
    most = _most_ranges()
    for first in range(0, len(ranges), most):
        _read(pid, ranges[first : first + most])


def can_read(pid: int, address: int, expected: bytes) -> bool:
    """Whether the process with this number can be read from here, and is the one that says it holds `expected` there."""
    found = ctypes.create_string_buffer(len(expected))
    try:
        _read(pid, [(address, ctypes.addressof(found), len(expected))])
    except OSError:
        return False
    return found.raw == expected


def _read(pid: int, ranges: list[tuple[int, int, int]]) -> None:
    """(address there, address here, bytes). The kernel may stop between two ranges, or in one of many pages."""
    call = _call()
    while ranges:
        here = (_Range * len(ranges))(*[_Range(start, size) for _, start, size in ranges])
        there = (_Range * len(ranges))(*[_Range(address, size) for address, _, size in ranges])
        got = call(pid, here, len(ranges), there, len(ranges), 0)
        if got < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"memory of process {pid} cannot be read: {os.strerror(error)}")
        ranges = _after(ranges, got)


def _after(ranges: list[tuple[int, int, int]], got: int) -> list[tuple[int, int, int]]:
    """What is left once the first `got` bytes are there."""
    for index, (address, start, size) in enumerate(ranges):
        if got < size:
            return [(address + got, start + got, size - got), *ranges[index + 1 :]]
        got -= size
    return []


@functools.cache
def _call() -> Callable[..., int]:
    try:
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError as error:
        raise OSError("this system has no process_vm_readv") from error
    call.restype = ctypes.c_ssize_t
    call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
    return call


@functools.cache
def _most_ranges() -> int:
    return max(1, os.sysconf("SC_IOV_MAX"))
