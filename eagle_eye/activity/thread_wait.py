"""What the kernel keeps a thread waiting for, and until when: /proc/PID/task/TID/syscall (man 5 proc_pid_syscall).

Numbers and arguments of the system calls are those of the Linux kernel's tables for x86_64 and aarch64; on other machines nothing is
known of a wait.
"""

import os
import platform
import struct
import time
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from .kernel_state import HELD, state_of
from .native_caller import CodeMap

NEVER = float("inf")


class WaitKind(Enum):
    """What ends a wait."""

    NONE = "it runs"
    LOCK = "another thread of its process wakes it"
    SIGNAL = "a signal wakes it"
    CHILD = "a child that borrows its memory starts a program, or ends"
    TIME = "time passes"
    INPUT = "somebody sends something, a child ends, or another process wakes it"
    STORAGE = "a file system answers"
    UNKNOWN = "not known"


class ThreadWait(NamedTuple):
    """The wait of one thread at one moment."""

    kind: WaitKind
    remaining_s: float = NEVER
    """At most so long, if nothing else ends it before."""
    caller: str = ""
    """Of a lock and of an epoll: name of the library whose code waits, `native_caller.INTERPRETER` for a lock of the interpreter's own; '' if not known."""

    def ends_within(self, seconds: float) -> bool:
        """A timer ends it by then, if nothing else does."""
        return self.kind in (WaitKind.TIME, WaitKind.LOCK, WaitKind.INPUT) and self.remaining_s <= seconds


RUNS = ThreadWait(WaitKind.NONE, 0.0)
UNKNOWN = ThreadWait(WaitKind.UNKNOWN)
STORAGE = ThreadWait(WaitKind.STORAGE)

_X86_64 = {
    0: "read", 1: "write", 3: "close", 7: "poll", 17: "read", 18: "write", 19: "read", 20: "write", 23: "select", 26: "fsync", 34: "pause",
    35: "nanosleep", 40: "write", 42: "recv", 43: "recv", 44: "recv", 45: "recv", 46: "recv", 47: "recv", 56: "clone", 57: "clone", 58: "clone",
    61: "wait", 72: "lock", 73: "lock", 74: "fsync", 75: "fsync", 76: "fsync", 77: "fsync", 130: "pause", 162: "fsync", 202: "futex",
    230: "clock_nanosleep", 232: "epoll", 247: "wait", 257: "fsync", 270: "pselect", 271: "ppoll", 277: "fsync", 281: "epoll", 285: "fsync",
    288: "recv", 306: "fsync", 435: "clone",
    # names and contents of a file system: open, stat, access, exec, rename, link, unlink, directories, attributes, aio, copies, mappings
    **dict.fromkeys((
        2, 4, 5, 6, 8, 9, 11, 21, 28, 59, *range(78, 96), 132, 133, 137, 138, 161, *range(188, 200), 208, 217, 235, *range(258, 270), 280,
        295, 296, 316, 322, 326, 327, 328, 332, 333, 437, 439, 452,
    ), "file"),
}  # fmt: skip
_AARCH64 = {
    22: "epoll", 47: "fsync", 46: "fsync", 56: "fsync", 57: "close", 63: "read", 64: "write", 65: "read", 66: "write", 67: "read", 68: "write",
    71: "write", 72: "pselect", 73: "ppoll", 81: "fsync", 82: "fsync", 83: "fsync", 84: "fsync", 95: "wait", 98: "futex", 101: "nanosleep",
    115: "clock_nanosleep", 133: "pause", 202: "recv", 203: "recv", 206: "recv", 207: "recv", 211: "recv", 212: "recv", 220: "clone",
    227: "fsync", 242: "recv", 260: "wait", 267: "fsync", 25: "lock", 32: "lock", 435: "clone",
    **dict.fromkeys((
        4, *range(5, 18), *range(33, 39), 43, 44, 45, 48, 49, 50, 51, 52, 53, 54, 55, 61, 62, 69, 70, 78, 79, 80, 88, 215, 221, 222, 233,
        276, 281, 285, 286, 287, 291, 292, 437, 439, 452,
    ), "file"),
}  # fmt: skip
CALLS: Mapping[str, Mapping[int, str]] = {"x86_64": _X86_64, "aarch64": _AARCH64}
"""Machine → number → our name of the call: calls that wait alike share one."""

_STORAGE = frozenset({"write", "fsync", "close", "file"})
_FUTEX_COMMAND, _FUTEX_WAIT, _FUTEX_PRIVATE, _FUTEX_CLOCK_REALTIME = 0x7F, 0, 0x80, 0x100
_WITHOUT_END = {
    "pause": WaitKind.SIGNAL, "clone": WaitKind.CHILD,
    "read": WaitKind.INPUT, "recv": WaitKind.INPUT, "wait": WaitKind.INPUT, "lock": WaitKind.INPUT,
}  # fmt: skip
_ABSOLUTE = 1
_MOMENT = struct.Struct("<qq")

Memory = Callable[[int], bytes]
"""Address in the process → 16 bytes there. Raises OSError."""
Waiter = Callable[[int, int, int], str]
"""Address of a lock (0: none), stack pointer, address of the instruction → name of the library whose code waits."""


def wait_of(pid: int, thread: int, code: CodeMap | None = None) -> ThreadWait:
    """What a thread waits for; `UNKNOWN` where the kernel does not tell this user. `code`: of the process, if others of its threads are asked for, too."""
    found = _read(pid, thread, (code or CodeMap(pid)).waiter)
    if found.kind is WaitKind.INPUT and state_of(pid, thread) == HELD:  # sockets, pipes and children are never waited for so: it reads a file
        return STORAGE
    return STORAGE if found.kind is WaitKind.CHILD and _loads(pid, thread) else found


def _read(pid: int, thread: int, waiter: Waiter) -> ThreadWait:
    try:
        line = Path(f"/proc/{pid}/task/{thread}/syscall").read_text()
    except OSError:
        return UNKNOWN
    return parse(line, platform.machine(), lambda address: _peek(pid, address), wall=time.time(), monotonic=time.monotonic(), waiter=waiter)


def _loads(pid: int, thread: int) -> bool:
    """Whether the newest child of a thread runs, or waits for its storage: the program that it starts may come from a slow one."""
    try:
        child = int(Path(f"/proc/{pid}/task/{thread}/children").read_text().split()[-1])
        state = Path(f"/proc/{child}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # it has just ended, or begun to run its program
        return True
    return state in ("D", "R") or _read(child, child, _unknown).kind in (WaitKind.STORAGE, WaitKind.NONE, WaitKind.UNKNOWN)


def _unknown(_address: int, _stack_pointer: int, _instruction: int) -> str:
    return ""


def parse(line: str, machine: str, memory: Memory, *, wall: float, monotonic: float, waiter: Waiter = _unknown) -> ThreadWait:
    """A line of /proc/PID/task/TID/syscall. `memory`, `wall` and `monotonic` are asked for the time that ends a wait, `waiter` whose lock it is."""
    words = line.split()
    if not words or words[0] == "running":
        return RUNS
    if words[0] == "-1":  # blocked outside of a call: a page that comes from a disk
        return STORAGE
    call = CALLS.get(machine, {}).get(int(words[0]), "")
    arguments = [int(word, 16) for word in words[1:9]]
    try:
        if call == "futex":
            return _futex(arguments, memory, wall, monotonic, waiter)
        found = _wait(call, arguments, memory, wall, monotonic)
        return found._replace(caller=waiter(0, *arguments[6:])) if call == "epoll" else found
    except OSError:
        return UNKNOWN


def _futex(arguments: list[int], memory: Memory, wall: float, monotonic: float, waiter: Waiter) -> ThreadWait:
    """One that processes share may be woken by any of them."""
    remaining_s = _futex_s(arguments, memory, wall, monotonic)
    if not arguments[1] & _FUTEX_PRIVATE:
        return ThreadWait(WaitKind.INPUT, remaining_s)
    return ThreadWait(WaitKind.LOCK, remaining_s, waiter(arguments[0], *arguments[6:]))


def _wait(call: str, arguments: list[int], memory: Memory, wall: float, monotonic: float) -> ThreadWait:
    if call in _WITHOUT_END:
        return ThreadWait(_WITHOUT_END[call])
    if call == "clock_nanosleep":
        moment = _seconds(memory(arguments[2]))
        return ThreadWait(WaitKind.TIME, moment - (wall if arguments[0] == 0 else monotonic) if arguments[1] & _ABSOLUTE else moment)
    if call == "nanosleep":
        return ThreadWait(WaitKind.TIME, _seconds(memory(arguments[0])))
    if call in ("poll", "epoll"):
        milliseconds = _signed(arguments[2 if call == "poll" else 3])
        return ThreadWait(WaitKind.INPUT, milliseconds / 1000 if milliseconds >= 0 else NEVER)
    if call in ("select", "pselect", "ppoll"):
        return _until(arguments[2 if call == "ppoll" else 4], memory, microseconds=call == "select")
    return STORAGE if call in _STORAGE else UNKNOWN


def _until(address: int, memory: Memory, *, microseconds: bool) -> ThreadWait:
    return ThreadWait(WaitKind.INPUT, _seconds(memory(address), 1e-6 if microseconds else 1e-9) if address else NEVER)


def _futex_s(arguments: list[int], memory: Memory, wall: float, monotonic: float) -> float:
    """Seconds until its timer ends it. FUTEX_WAIT's timer is relative, those of the other commands name a moment (man 2 futex)."""
    operation, timer = arguments[1], arguments[3]
    if timer == 0:
        return NEVER
    moment = _seconds(memory(timer))
    if operation & _FUTEX_COMMAND == _FUTEX_WAIT:
        return moment
    return moment - (wall if operation & _FUTEX_CLOCK_REALTIME else monotonic)


def _seconds(moment: bytes, unit: float = 1e-9) -> float:
    whole, part = _MOMENT.unpack(moment)
    return float(whole + part * unit)


def _signed(word: int) -> int:
    """The C int in a register."""
    low = word & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


def _peek(pid: int, address: int) -> bytes:
    file = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(file, _MOMENT.size, address)
    finally:
        os.close(file)
