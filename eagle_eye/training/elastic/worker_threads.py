"""`WorkerThreads`: daemon threads for calls into torch that may block for ever (wait, construct, destroy).

Daemons, so that a call that never returns does not keep the process from ending. A thread that returns from torch while
the interpreter shuts down would crash the process: at exit they get DRAIN_S to finish.
"""

import atexit
import functools
import os
import queue
import threading
from collections.abc import Callable

DRAIN_S = 1.0

Act = Callable[[], None]
"""What a thread runs. It must not raise."""


class WorkerThreads:
    """As many threads as there are calls in flight; idle ones are used again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[queue.SimpleQueue[Act]] = []
        self._busy = 0

    def run(self, act: Act) -> None:
        """Call `act` in another thread, at once. Raises RuntimeError where no further thread may be started."""
        with self._changed:
            box = self._idle.pop() if self._idle else self._start()
            self._busy += 1
        box.put(act)

    def drain(self, timeout_s: float = DRAIN_S) -> bool:
        """Wait until no call is in flight; False if one still is after the time-out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._busy == 0, timeout_s)

    def _start(self) -> "queue.SimpleQueue[Act]":
        box: queue.SimpleQueue[Act] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(box,), name="eagle-eye-worker_threads", daemon=True).start()
        return box

    def _serve(self, box: "queue.SimpleQueue[Act]") -> None:
        while True:
            act = box.get()
            act()
            del act
            with self._changed:
                self._busy -= 1
                self._idle.append(box)
                self._changed.notify_all()


def worker_threads() -> WorkerThreads:
    """The threads of this process."""
    return _of(os.getpid())


@functools.cache
def _of(process: int) -> WorkerThreads:  # noqa: ARG001 - a forked child has none of its parent's threads
    made = WorkerThreads()
    atexit.register(made.drain)
    return made
