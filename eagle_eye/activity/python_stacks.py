"""Python stacks of another process, by py-spy and without locals."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from eagle_eye.errors import UNREADABLE

PY_SPY_S = 4.0
"""The stacks of a process whose machine is busy are worth the wait: a restart destroys them."""
TRIES = 2
"""The process is not held meanwhile: a stack may change while it is read."""
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "/eagle_eye/")
"""Parts of a path that show that a frame is not the user's."""
PEERS = ("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_collectives.py", "torch/distributed/rendezvous.py")
"""Files whose functions wait for the other ranks, whatever they call."""
PICKLES = ("_object_to_tensor", "_tensor_to_object")
"""Functions in them that work alone while they hold the interpreter: an object of gigabytes becomes bytes, or bytes an object. The second one waits
for its peers first, in a copy from the GPU."""
PEERS_INNERMOST = ("/torch/distributed/", "/torch/nn/parallel/distributed.py")
"""Files that wait for them in native code; further out on the stack they only surround the user's model."""
WORK_INNERMOST = ("/torch/distributed/checkpoint/", "tensor/_dispatch.py")
"""Of these, those that work alone: they read and write files, and compute a DTensor's own part. Their exchanges go through `PEERS`."""
PEER_LIBRARIES = ("libtorch", "libc10", "libgloo", "libnccl", "libmpi", "libucc", "libucp")
"""Native code that waits for other ranks, such as `Work.wait()` of an asynchronous collective. What torch computes itself shows in the processor time."""
GPU_LIBRARIES = ("libcuda", "libamdhip", "libhsa-runtime")
"""Native code that waits for a GPU: the CUDA driver and runtime, and AMD's."""
BACKWARD = "_engine_run_backward"
"""Where torch's backward pass waits for the gradients of the other ranks (DistributedDataParallel reduces them in it)."""
OURS, DRILLS = "/eagle_eye/", ("/fault_drills.py", "/fault_injection.py")
"""Our own code in the process; a drill plays the user's."""
MAIN_THREAD = "MainThread"
"""Python's name of it; the number tells nothing where py-spy ran outside of the process's container."""
LOCKS = ("/threading.py", "/queue.py", "/multiprocessing/", "/concurrent/futures/", "/asyncio/")
"""Files whose functions wait for another thread of the same program."""
PYTHON_LOCKS = ("/threading.py", "/queue.py")
"""Of these, those that call nothing that waits but the interpreter's own lock."""


class StackFrame(NamedTuple):
    """One Python frame."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} {self.function}"


class ThreadStack(NamedTuple):
    """One thread that runs Python."""

    thread: int
    """As the kernel numbers it; 0 if not known."""
    name: str
    holds_interpreter: bool
    """It has the interpreter's lock (GIL)."""
    frames: tuple[StackFrame, ...]
    """The innermost first."""

    @property
    def place(self) -> StackFrame | None:
        """The innermost frame of the user's code, else the innermost of all."""
        return self.users_place or (self.frames[0] if self.frames else None)

    @property
    def users_place(self) -> StackFrame | None:
        """The innermost frame of the user's code; None in a thread of a library."""
        return next((frame for frame in self.frames if not is_library(frame.file)), None)

    @property
    def awaits_peers(self) -> bool:
        """It is in a function that ends when the other ranks have come."""
        exchange = next((frame.function for frame in self.frames if frame.file.endswith(PEERS)), "")
        if exchange:
            return not (exchange in PICKLES and self.holds_interpreter)
        inner = self.frames[0] if self.frames else None
        return inner is not None and (inner.function == BACKWARD or _waits_innermost(f"/{inner.file}"))


def _waits_innermost(file: str) -> bool:
    return any(part in file for part in PEERS_INNERMOST) and not any(part in file for part in WORK_INNERMOST)


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a source file is not the user's own."""
    return file.startswith("<") or any(part in file for part in LIBRARIES)


class NoStacks(StrEnum):
    """Why there are none."""

    NOT_INSTALLED = "py-spy is not installed"
    NOT_ALLOWED = "this user may not look into it"
    NOT_PYTHON = "it runs no Python, or has just begun or ended"
    LATE = "py-spy did not answer in time"
    UNREADABLE = "py-spy could not read them"


Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[bytes]"]
"""Runs a program for `PY_SPY_S` at most. Raises OSError and TimeoutExpired."""


def run_program(command: Sequence[str]) -> "subprocess.CompletedProcess[bytes]":
    """Wait for a program, and end it after `PY_SPY_S`. Raises OSError and TimeoutExpired."""
    return subprocess.run(command, capture_output=True, timeout=PY_SPY_S, check=False)


def stacks_of(pid: int) -> tuple[ThreadStack, ...]:
    """All threads that run Python, the main thread first; () where py-spy is missing, may not look or does not answer."""
    found = read_stacks(pid)
    return () if isinstance(found, NoStacks) else found


def read_stacks(pid: int, run: Run = run_program) -> tuple[ThreadStack, ...] | NoStacks:
    """All threads that run Python, the main thread first, at least one; or why there are none."""
    program = py_spy()
    if program is None:
        return NoStacks.NOT_INSTALLED
    why = NoStacks.UNREADABLE
    for _ in range(TRIES):
        try:
            done = run((program, "dump", "--nonblocking", "--json", "--pid", str(pid)))
        except subprocess.TimeoutExpired:
            return NoStacks.LATE
        except OSError:
            return NoStacks.UNREADABLE
        found = parse(done.stdout, pid) if done.returncode == 0 else ()
        if found:
            return found
        why = _why(done.stderr)
    return why


def _why(complaint: bytes) -> NoStacks:
    """From what py-spy 0.4 writes to stderr."""
    text = complaint.lower()
    if b"permission denied" in text or b"operation not permitted" in text:
        return NoStacks.NOT_ALLOWED
    if b"python version" in text or b"no such file" in text or b"no such process" in text:
        return NoStacks.NOT_PYTHON
    return NoStacks.UNREADABLE


def py_spy() -> str | None:
    """Path of the program, None if it is not installed."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    thread_name: str | None = None
    os_thread_id: int | None = None
    pid: int = 0
    owns_gil: bool = False


def parse(text: bytes, pid: int = 0) -> tuple[ThreadStack, ...]:
    """What `py-spy dump --json` printed, the main thread first; () if it is not that. `pid`: of the process; 0: as the text says."""
    try:
        threads = msgspec.json.decode(text, type=list[_Thread])
    except UNREADABLE:
        return ()
    found = [
        ThreadStack(
            thread=thread.os_thread_id or 0, name=thread.thread_name or "", holds_interpreter=thread.owns_gil,
            frames=tuple(StackFrame(frame.filename, frame.line, frame.name) for frame in thread.frames),
        )
        for thread in threads
    ]  # fmt: skip
    number = pid or (threads[0].pid if threads else 0)
    return tuple(sorted(found, key=lambda each: (each.thread != number, each.name != MAIN_THREAD)))


def in_python_lock(frames: Sequence[StackFrame]) -> bool:
    """Whether a thread that waits for a lock waits for the interpreter's own, as its innermost frame alone tells."""
    return bool(frames) and frames[0].file.endswith(PYTHON_LOCKS)


def in_lock(frames: Iterable[StackFrame]) -> bool:
    """Whether the innermost frame is one of Python's own that waits for another thread."""
    first = next(iter(frames), None)
    return first is not None and any(part in first.file for part in LOCKS)


def in_ours(frames: Iterable[StackFrame]) -> bool:
    """Whether it is our own code that waits for another thread."""
    first = next((frame for frame in frames if not in_lock((frame,))), None)
    return first is not None and OURS in first.file and not first.file.endswith(DRILLS)
