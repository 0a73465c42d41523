"""Threads of a process that run no Python, and that may wake one which does: a download in Rust or C++ sets a Future, a timer calls back.

One that waits for a lock of its process, without an end, is woken by another thread itself, so it proves nothing: an idle pool of OpenMP, of a
BLAS or of a runtime. What torch, gloo, NCCL, CUDA and we keep for ourselves wakes nobody who waits for a lock of Python.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from .kernel_state import name_of
from .native_caller import CodeMap
from .thread_wait import NEVER, ThreadWait, WaitKind, wait_of

SERVICES = ("pt_", "gloo", "NCCL", "nccl", "cuda", "jemalloc_bg", "eagle-eye")
"""Begin the names of threads of torch (`pt_tcpstore_uv`, `pt_nccl_watchdg`), gloo (`gloo_tcp_loop`), NCCL, CUDA (`cuda-EvtHandlr`), jemalloc, and ours."""
TORCH = ("libtorch", "libc10")
"""Begin the names of libraries whose threads poll sockets for torch: gloo's loop has a name of its own in torch 2.13, in 2.11 it has the process's."""
MOST = 4096
"""Threads that are looked at."""


class NativeThread(NamedTuple):
    """One that may wake another."""

    name: str
    """As the kernel has it, at most 15 characters."""
    wait: ThreadWait


def wakers(pid: int, python: Collection[int], code: CodeMap | None = None) -> tuple[NativeThread, ...]:
    """Those of a process now. `python`: its threads that run Python, as the kernel numbers them; `code`: of the process."""
    return tuple(_wakers(pid, python, code or CodeMap(pid)))


def _wakers(pid: int, python: Collection[int], code: CodeMap) -> Iterator[NativeThread]:
    for place, folder in enumerate(Path(f"/proc/{pid}/task").glob("[0-9]*")):
        thread = int(folder.name)
        if place >= MOST:
            return
        if thread == pid or thread in python:
            continue
        found = NativeThread(name_of(pid, thread), wait_of(pid, thread, code))
        if may_wake(found):
            yield found


def may_wake(thread: NativeThread) -> bool:
    """Whether it may release a lock of Python, as far as can be seen; one that has ended may not."""
    wait = thread.wait
    idle = wait.kind is WaitKind.LOCK and wait.remaining_s == NEVER
    polls = wait.kind is WaitKind.INPUT and wait.caller.startswith(TORCH)
    return bool(thread.name) and not (idle or polls or thread.name.startswith(SERVICES))
