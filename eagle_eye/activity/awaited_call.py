"""What the kernel call that a thread is in names: descriptors, a path, a child. From /proc/PID/task/TID/syscall and the thread's memory."""

import os
import platform
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from .thread_wait import CALLS

MOST = 64
"""Descriptors of one call that are told; a call may name thousands."""
PATH_BYTES = 4096
"""PATH_MAX of Linux."""
PATHS: Mapping[str, Mapping[int, int]] = {
    "x86_64": {
        2: 0, 4: 0, 6: 0, 21: 0, 59: 0, 76: 0, 79: 0, 80: 0, 82: 0, 83: 0, 84: 0, 87: 0, 89: 0, 137: 0, 165: 1, 257: 1, 258: 1, 262: 1,
        263: 1, 264: 1, 267: 1, 269: 1, 280: 1, 316: 1, 332: 1, 437: 1, 439: 1,
    },
    "aarch64": {33: 1, 34: 1, 35: 1, 38: 1, 43: 0, 45: 0, 48: 1, 49: 0, 56: 1, 78: 1, 79: 1, 88: 1, 221: 0, 276: 1, 291: 1, 437: 1, 439: 1},
}  # fmt: skip
"""Machine → number of a call → which of its arguments is the address of a path (open, stat, rename, unlink, statfs and their like)."""
CHILDREN: Mapping[str, Mapping[int, int]] = {"x86_64": {61: 0, 247: 1}, "aarch64": {260: 0, 95: 1}}
"""The same for the pid of a child (wait4, waitid)."""
POLLED = struct.Struct("<ihh")
"""`struct pollfd`: descriptor, events, what came."""
WORDS_OF_SELECT = 128
"""Bytes of an `fd_set`."""
OF_FIRST = frozenset({"read", "write", "recv", "close", "fsync", "lock"})
Memory = Callable[[int, int], bytes]
"""Address, bytes → what is there, less at the end of a mapping. Raises OSError."""


class AwaitedCall(NamedTuple):
    """What a call names; nothing where it names nothing, or this user may not know."""

    descriptors: tuple[int, ...] = ()
    watches: int = -1
    """A descriptor of epoll(7): what it watches is in the process's fdinfo."""
    path: str = ""
    child: int = 0


def awaited_call(pid: int, thread: int) -> AwaitedCall:
    """Of one thread now."""
    try:
        line = Path(f"/proc/{pid}/task/{thread}/syscall").read_text()
        found = parse(line, platform.machine(), lambda address, size: _peek(pid, address, size))
    except (OSError, ValueError):
        return AwaitedCall()
    return found if found.watches < 0 else found._replace(descriptors=watched(pid, found.watches))


def parse(line: str, machine: str, memory: Memory) -> AwaitedCall:
    """A line of /proc/PID/task/TID/syscall. Raises OSError where the memory cannot be read, ValueError for another text."""
    words = line.split()
    if not words or words[0] in ("running", "-1"):
        return AwaitedCall()
    number, arguments = int(words[0]), [int(word, 16) for word in words[1:7]]
    call = CALLS.get(machine, {}).get(number, "")
    if (place := PATHS.get(machine, {}).get(number)) is not None:
        return AwaitedCall(path=_path(memory(arguments[place], PATH_BYTES)))
    if (place := CHILDREN.get(machine, {}).get(number)) is not None:
        return AwaitedCall(child=max(0, _signed(arguments[place])))
    if call in OF_FIRST:
        return AwaitedCall(descriptors=(_signed(arguments[0]),))
    if call == "epoll":
        return AwaitedCall(watches=_signed(arguments[0]))
    if call in ("poll", "ppoll"):
        return AwaitedCall(descriptors=tuple(_polled(memory(arguments[0], POLLED.size * min(arguments[1], MOST)))))
    if call in ("select", "pselect"):
        return AwaitedCall(descriptors=tuple(_selected(arguments, memory))[:MOST])
    return AwaitedCall()


def watched(pid: int, descriptor: int) -> tuple[int, ...]:
    """What a descriptor of epoll(7) watches (proc_pid_fdinfo(5)); none where this user may not know."""
    try:
        lines = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines()
        return tuple(int(line.split()[1]) for line in lines if line.startswith("tfd:"))[:MOST]
    except (OSError, ValueError, IndexError):
        return ()


def _polled(array: bytes) -> Iterator[int]:
    whole = array[: len(array) // POLLED.size * POLLED.size]
    yield from (descriptor for descriptor, _, _ in POLLED.iter_unpack(whole) if descriptor >= 0)


def _selected(arguments: list[int], memory: Memory) -> Iterator[int]:
    """Descriptors below the first argument in the sets for reading and for writing."""
    size = min(WORDS_OF_SELECT, (arguments[0] + 7) // 8)
    sets = [memory(address, size) for address in arguments[1:3] if address]
    for descriptor in range(min(arguments[0], 8 * size)):
        if any(descriptor // 8 < len(bits) and bits[descriptor // 8] >> descriptor % 8 & 1 for bits in sets):
            yield descriptor


def _path(text: bytes) -> str:
    return text.partition(b"\0")[0].decode("utf-8", "replace")


def _signed(word: int) -> int:
    """The C int in a register."""
    low = word & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


def _peek(pid: int, address: int, size: int) -> bytes:
    file = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(file, size, address)
    finally:
        os.close(file)
