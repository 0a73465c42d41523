"""Looks at several processes, several times each, a few at once, and never longer at one of them than a bound.

A look reads stacks by py-spy without holding the process. The kernel may keep whoever asks about a process that it holds (an exec, a page
that does not come): so each look runs in a thread of its own, which is left behind when it is late. `close` ends what still runs.
"""

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import NamedTuple

from eagle_eye.clock import Clock

from .awaited_call import AwaitedCall, awaited_call
from .hang_verdict import ProcessLook
from .inspector import look_at
from .kernel_state import KernelState, kernel_state
from .python_stacks import PY_SPY_S, NoStacks, ThreadStack, read_stacks
from .thread_wait import ThreadWait, wait_of

LOOK_LIMIT_S = 10.0
"""py-spy twice, and what the kernel tells."""
END_S = 0.5
"""For a program to go that was killed: one that the kernel holds does not."""


class StackSample(NamedTuple):
    """One look at one process."""

    look: ProcessLook
    kernel: KernelState
    call: AwaitedCall
    """That the main thread is in."""
    wait: ThreadWait
    """Of the main thread, also where its stack cannot be read."""
    no_stacks: NoStacks | None = None


class LookResult(NamedTuple):
    """What came of a look: a sample, or the process is gone, or the look was late (it is looked at no more)."""

    pid: int
    sample: StackSample | None
    late: bool = False


class ChildPrograms:
    """Programs that are run for a while, from any thread. After `close` none runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def run(self, command: Sequence[str]) -> "subprocess.CompletedProcess[bytes]":
        """As `python_stacks.run_program`. Raises OSError and TimeoutExpired."""
        with self._lock:
            if self._closed:
                raise OSError("closed")
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self._running.add(process)
        try:
            out, err = process.communicate(timeout=PY_SPY_S)
        finally:
            if process.poll() is None:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=END_S)
            with self._lock:
                self._running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    @property
    def running(self) -> int:
        """How many."""
        with self._lock:
            return len(self._running)

    def close(self) -> None:
        """End all that run, and wait a moment until they have."""
        with self._lock:
            self._closed = True
            running = tuple(self._running)
        for process in running:
            process.kill()
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)


def take_sample(pid: int, clock: Clock, programs: ChildPrograms) -> StackSample | None:
    """One look now; None if the process is gone."""
    kernel = kernel_state(pid)
    why: list[NoStacks] = []

    def stacks(number: int) -> tuple[ThreadStack, ...]:
        found = read_stacks(number, programs.run)
        if isinstance(found, NoStacks):
            why.append(found)
            return ()
        return found

    look = look_at(pid, clock, stacks)
    if kernel is None or look is None:
        return None
    wait = look.waits[0] if look.waits else wait_of(pid, pid)
    return StackSample(look, kernel, awaited_call(pid, pid), wait, why[0] if why else None)


Take = Callable[[int], StackSample | None]


@dataclass
class StackSampler:
    """Takes `count` samples of each process, `every_s` apart, `parallel` at a time."""

    clock: Clock
    take: Take
    count: int
    every_s: float
    parallel: int
    limit_s: float = LOOK_LIMIT_S
    _running: dict[int, float] = field(default_factory=dict, init=False)
    _done: "Queue[tuple[int, StackSample | None]]" = field(default_factory=Queue, init=False)

    def run(self, pids: Iterable[int]) -> Iterator[LookResult]:
        """Each look as it ends."""
        due = dict.fromkeys(pids, self.clock.monotonic())
        """Process → when it is looked at next."""
        left = dict.fromkeys(due, self.count)
        while due or self._running:
            now = self.clock.monotonic()
            for pid in sorted((pid for pid in due if due[pid] <= now), key=due.__getitem__)[: max(0, self.parallel - len(self._running))]:
                del due[pid]
                self._begin(pid, now)
            for result in self._next(due.values()):
                began = self._running.pop(result.pid)
                left[result.pid] -= 1
                if result.sample is not None and left[result.pid] > 0:
                    due[result.pid] = began + self.every_s
                yield result

    def _begin(self, pid: int, now: float) -> None:
        self._running[pid] = now
        threading.Thread(target=self._look, args=(pid,), name=f"look-{pid}", daemon=True).start()

    def _look(self, pid: int) -> None:
        try:
            sample = self.take(pid)
        except Exception:  # noqa: BLE001 - a process may vanish at any moment: it counts as gone
            sample = None
        self._done.put((pid, sample))

    def _next(self, due: Iterable[float]) -> Iterator[LookResult]:
        """The look that ends next, or those that are late; none when another process is due first."""
        now = self.clock.monotonic()
        free = len(self._running) < self.parallel
        ends = [began + self.limit_s for began in self._running.values()] + ([min(due)] if free and due else [])
        with contextlib.suppress(Empty):
            pid, sample = self._done.get(timeout=max(0.0, min(ends) - now))
            if pid in self._running:  # else it was late, and is here after all
                yield LookResult(pid, sample)
                return
        now = self.clock.monotonic()
        yield from [LookResult(pid, None, late=True) for pid, began in self._running.items() if now - began >= self.limit_s]
