"""Which library a thread came from when it began to wait in the C library: the interpreter's own lock looks like any other from /proc.

Read from the thread's memory (/proc/PID/maps, /proc/PID/mem) and never by ptrace: the process is not held, and none of its calls
is interrupted. The frames of the C library are passed by its own unwind table: there are return addresses of earlier calls between them. Where
the table is not understood the stack is searched, from there, for the first return address outside of the C and the C++ library.
"""

import os
import platform
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from .call_frames import CallFrame, Memory, Unreadable, UnwindTable, calling

INTERPRETER = "python"
"""The caller is the interpreter itself: the executable, or libpython."""
DEPTH = 2048
"""Bytes of the stack that are searched; the C library's own frames take a few hundred."""
_WORD = struct.Struct("<Q")
_ADDRESS = (1 << 48) - 1
"""The bits above hold a signature on some aarch64 machines."""
_SYSTEM = re.compile(r"lib(c|pthread|stdc\+\+|c\+\+|gcc_s)[-.]|ld-|\[vdso\]")
"""What others wait through: the C and the C++ library."""
_LAST = (1 << 63) - 1
"""Of an address that pread takes; what was misread may be anything, and nothing is there."""
_CALL_BEFORE = 7
"""Bytes of the longest call instruction."""
MOST_FRAMES = 16
MISREAD = (Unreadable, OSError, struct.error, IndexError, ValueError, KeyError, StopIteration)
"""What a table that is none, or not like those of plain functions, leads to."""
_SEMAPHORE = struct.Struct("<IIiI")
_MOST_WAITERS = 1 << 16


class CodeRegion(NamedTuple):
    """A mapping that holds code."""

    begin: int
    end: int
    library: str
    """Name of the file; `INTERPRETER` for the interpreter's."""
    base: int = 0
    """Where the file begins."""


class CodeMap:
    """The code of one process at one moment; read when it is first asked for."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._regions: tuple[CodeRegion, ...] | None = None
        self._tables: dict[int, UnwindTable | None] = {}
        """Base of a library → its table; None: it cannot be read."""

    def waiter(self, address: int, stack_pointer: int, instruction: int) -> str:
        """Name of the library whose code waits at an address; '' if it cannot be told. The interpreter's locks are semaphores. `instruction`: where the thread is."""
        try:
            found = waiting(CallFrame(instruction, stack_pointer), self._read(), self._table, self._memory, platform.machine())
            sure = found != INTERPRETER or is_semaphore(self._memory(address, _SEMAPHORE.size))
        except OSError:
            return ""
        return found if sure else ""

    def _table(self, base: int) -> UnwindTable | None:
        if base not in self._tables:
            try:
                self._tables[base] = UnwindTable(base, self._memory)
            except MISREAD:
                self._tables[base] = None
        return self._tables[base]

    def _read(self) -> tuple[CodeRegion, ...]:
        if self._regions is None:
            program = str(Path(f"/proc/{self._pid}/exe").readlink())
            self._regions = tuple(regions(Path(f"/proc/{self._pid}/maps").read_text(errors="replace").splitlines(), program))
        return self._regions

    def _memory(self, address: int, size: int) -> bytes:
        file = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(file, size, address & _LAST)
        finally:
            os.close(file)


def regions(lines: Iterable[str], program: str) -> Iterator[CodeRegion]:
    """The mappings with code of /proc/PID/maps, in their order; `program`: path of the executable."""
    base, its_path = 0, ""
    for line in lines:
        span, access, offset, *_, path = [*line.split(maxsplit=5), ""][:6]
        begin, _, end = span.partition("-")
        if path != its_path or not int(offset, 16):
            base, its_path = int(begin, 16) - int(offset, 16), path
        if "x" in access:
            name = path.strip().removesuffix(" (deleted)").rpartition("/")[2]
            own = path.strip() == program or name.startswith("libpython")
            yield CodeRegion(int(begin, 16), int(end, 16), INTERPRETER if own else name, base)


def waiting(frame: CallFrame, code: tuple[CodeRegion, ...], table_of: Callable[[int], UnwindTable | None], memory: Memory, machine: str) -> str:
    """The library from which a thread came into the C or the C++ library; '' if there is none. `table_of`: of a library, by its base. Raises OSError."""
    for depth in range(MOST_FRAMES):
        region = _region(frame.address & _ADDRESS, code)
        if region is not None and not _SYSTEM.match(region.library):
            return region.library
        table = table_of(region.base) if region is not None else None
        if table is None:
            break
        try:
            frame = calling(frame, table, memory, machine, returned=depth > 0)
        except MISREAD:
            break
    return caller(frame.stack_pointer, code, memory, machine)


def caller(stack_pointer: int, code: tuple[CodeRegion, ...], memory: Memory, machine: str) -> str:
    """The library of the first return address that is not the C or the C++ library's; '' if there is none. Raises OSError."""
    stack = memory(stack_pointer, DEPTH)
    for (word,) in _WORD.iter_unpack(stack[: len(stack) // _WORD.size * _WORD.size]):
        address = word & _ADDRESS
        region = _region(address, code)
        if region is None or _SYSTEM.match(region.library):
            continue
        if _follows_call(memory(address - _CALL_BEFORE, _CALL_BEFORE), machine):
            return region.library
    return ""


def _region(address: int, code: tuple[CodeRegion, ...]) -> CodeRegion | None:
    found = bisect_right(code, address, key=lambda region: region.begin) - 1
    return code[found] if found >= 0 and code[found].begin + _CALL_BEFORE <= address < code[found].end else None


def _follows_call(before: bytes, machine: str) -> bool:
    """Whether the instruction before an address is a call: only then it is a return address, and not a pointer to a function."""
    if len(before) < _CALL_BEFORE:
        return False
    if machine == "aarch64":  # bl, blr
        word = int.from_bytes(before[-4:], "little")
        return word & 0xFC000000 == 0x94000000 or word & 0xFFFFFC1F == 0xD63F0000
    if before[-5] == 0xE8:  # call, relative
        return True
    # call through a register or memory: FF /2, with 0, 1 or 4 bytes of displacement, with or without a scale byte
    return any(
        before[-size] == 0xFF and before[1 - size] & 0x38 == 0x10 and _length(before[1 - size]) == size for size in (2, 3, 4, 6, 7)
    )


def _length(mode: int) -> int:
    """Bytes of a call FF with this ModR/M byte (Intel SDM 2, section 2.1)."""
    kind, register = mode >> 6, mode & 7
    if kind == 3:
        return 2
    scale = 1 if register == 4 else 0
    displacement = 4 if kind == 2 or (kind == 0 and register == 5) else kind
    return 2 + scale + displacement


def is_semaphore(words: bytes) -> bool:
    """The C library's `sem_t` on a 64-bit machine with nothing to give and somebody waiting: value, waiters, private (glibc, internaltypes.h)."""
    if len(words) < _SEMAPHORE.size:
        return False
    value, waiters, private, _ = _SEMAPHORE.unpack(words)
    return bool(value == 0 and 0 < waiters < _MOST_WAITERS and private == 0)
