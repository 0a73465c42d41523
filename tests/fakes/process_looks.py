"""What a test lets an inspector see of processes, without looking at any."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

from eagle_eye.activity.hang_verdict import ProcessLook
from eagle_eye.activity.inspector import ActivityInspector
from eagle_eye.activity.native_caller import INTERPRETER
from eagle_eye.activity.process_counters import ProcessCounters
from eagle_eye.activity.python_stacks import StackFrame, ThreadStack
from eagle_eye.activity.thread_wait import ThreadWait, WaitKind
from eagle_eye.clock import Clock, FakeClock

LOCK = ThreadWait(WaitKind.LOCK, caller=INTERPRETER)
"""The interpreter's own."""
NATIVE_LOCK = ThreadWait(WaitKind.LOCK, caller="libarrow.so.2100")
SOCKET = ThreadWait(WaitKind.INPUT)
TRAIN, VALIDATE = StackFrame("/home/ada/train.py", 33, "step"), StackFrame("/home/ada/train.py", 212, "validate")
ALL_REDUCE = StackFrame("/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py", 3000, "all_reduce")


def sleep(seconds: float) -> ThreadWait:
    return ThreadWait(WaitKind.TIME, seconds)


def thread(*frames: StackFrame, name: str = "MainThread", holds_interpreter: bool = False, number: int = 1) -> ThreadStack:
    """The innermost frame first."""
    return ThreadStack(number, name, holds_interpreter, frames)


def look(
    *frames: StackFrame, wait: ThreadWait = LOCK, state: str = "S", time: float = 0.0, cpu_s: float = 0.0, io_bytes: int = 0, faults: int = 0,
    others: tuple[tuple[ThreadStack, ThreadWait], ...] = (), holds_interpreter: bool = False, uses_gpu: bool = False,
    tracer: str = "", runnable: bool = False, demand: Mapping[int, float] | None = None, tcp_bytes: int = 0,
) -> ProcessLook:  # fmt: skip
    """One look; `wait` and `frames` are the main thread's."""
    stacks = (thread(*frames, holds_interpreter=holds_interpreter), *(stack for stack, _ in others)) if frames else ()
    return ProcessLook(time, state, ProcessCounters(cpu_s, io_bytes, faults, runnable, demand or {}), stacks, (wait, *(each for _, each in others)), tracer, uses_gpu, tcp_bytes=tcp_bytes)


class Inline(Executor):
    """Does at once what it is given."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **more: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(work(*arguments, **more))
        return done


class FakeProcesses:
    """Processes as a test says; `looks` counts how often somebody looked."""

    def __init__(self) -> None:
        self.sights: dict[int, Callable[[int], ProcessLook | None]] = {}
        """pid → what the n-th look at it shows."""
        self.looks = 0

    def look(self, pid: int, _clock: Clock) -> ProcessLook | None:
        self.looks += 1
        sight = self.sights.get(pid)
        return sight(self.looks) if sight is not None else None

    def inspector(self, clock: Clock, patience_s: float = 600.0) -> ActivityInspector:
        """With looks that take no time of the test's clock."""
        return ActivityInspector(patience_s, clock, self.look, Inline(), FakeClock())

