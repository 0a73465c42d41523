"""How a rank hangs, each for ever. What is started beside dies with it."""

import ctypes
import os
import platform
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from eagle_eye.parent_death import PR_SET_PDEATHSIG

LONG_S = float(1 << 30)
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE_VFORK = 0x4000


def deadlock() -> None:
    """The same lock twice, as two functions that call each other do it."""
    lock = threading.Lock()
    with lock:
        _again(lock)


def _again(lock: threading.Lock) -> None:
    with lock:
        raise RuntimeError("nobody gets here")


def event() -> None:
    """An event that nobody sets."""
    threading.Event().wait()


def interpreter() -> None:
    """C code that waits for ever and holds the interpreter's lock: no other thread of Python runs any more."""
    ctypes.PyDLL(None).pause()


def sleep_for_ever() -> None:
    """A sleep of years."""
    time.sleep(LONG_S)


def loop() -> None:
    """An endless loop."""
    while True:
        pass


def stopped() -> None:
    """SIGSTOP."""
    os.kill(os.getpid(), signal.SIGSTOP)


def kernel() -> None:
    """State D: clone(CLONE_VFORK) holds the caller in the kernel until the child ends, and the child sleeps."""
    libc = ctypes.CDLL(None)
    if libc.syscall(CLONE[platform.machine()], CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        time.sleep(LONG_S)


def left_collective(group: Any) -> None:
    """Enters a collective that nobody else enters: the others are in the one of the next line of the script."""
    dist.all_reduce(torch.ones(1), group=group)


HANGS: dict[str, Callable[[], None]] = {
    "deadlock": deadlock, "event": event, "interpreter": interpreter, "sleep_for_ever": sleep_for_ever, "loop": loop, "stopped": stopped, "kernel": kernel,
}  # fmt: skip
LEFT = "left_collective"
KINDS = (*HANGS, LEFT)


def hang(kind: str, group: Any) -> None:
    """Never returns, unless it is continued by a signal."""
    left_collective(group) if kind == LEFT else HANGS[kind]()
