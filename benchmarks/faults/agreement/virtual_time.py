"""Event loops whose time is simulated: one for each process, so that one can be stopped, and thaw, while the others go on.

    time = VirtualTime()
    loop = time.loop("n0")
    loop.create_task(...)
    time.run(until=60.0)

Nothing is random here: the loops run in the order of their next timers, and those of the same moment in the order in which they were made.
"""

import asyncio
import contextlib
import heapq
import itertools
import selectors
from asyncio import events
from collections.abc import Callable
from typing import Any

START = 1_700_000_000.0
LEAST_S = 1e-6
"""Who waits for a moment that is too short for a float to tell has waited: time moves."""
DUE_S = 1e-9
"""What is due within this time is due now, as in asyncio."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop of one simulated process. It has no file to wait for; what is asked half a million times in a schedule is done here, without what a
    real loop asks about threads, files and debugging."""

    def __init__(self, name: str, clock: "VirtualTime") -> None:
        self.name = name
        self.paused = False
        self._virtual = clock
        super().__init__(selectors.SelectSelector())
        self.set_exception_handler(self._failed)
        self.failures: list[str] = []

    def time(self) -> float:
        return self._virtual.now_s

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = asyncio.TimerHandle(max(when, self._virtual.now_s + LEAST_S), callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]  # noqa: ARG002 - no thread is used
        """At once: a disk takes no time here."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to who asked
            future.set_exception(error)
        return future

    def step(self) -> None:
        """Everything that is due now, and nothing of what that asks for: that is due next."""
        scheduled, ready = self._scheduled, self._ready  # type: ignore[attr-defined]
        end_s = self._virtual.now_s + DUE_S
        while scheduled and scheduled[0]._when < end_s:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            events._set_running_loop(None)

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self.failures.append(f"{context.get('message')}: {error!r}")


class VirtualTime:
    """The clock of the whole simulation, and the loops that live by it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._loops: list[VirtualLoop] = []
        self._ended: list[tuple[VirtualLoop, list[asyncio.Task[Any]]]] = []
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    # --- as eagle_eye.clock.Clock

    def now(self) -> float:
        return START + self.now_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        raise RuntimeError(f"nobody may block here, for {seconds:g} s")

    # --- of the simulation

    def loop(self, name: str) -> VirtualLoop:
        made = VirtualLoop(name, self)
        self._loops.append(made)
        return made

    def end(self, loop: VirtualLoop) -> None:
        """Its process is gone, with everything that it was about to do."""
        if loop in self._loops:
            self._loops.remove(loop)
            self._ended.append((loop, list(asyncio.all_tasks(loop))))
            loop._ready.clear()  # type: ignore[attr-defined]
            loop._scheduled.clear()  # type: ignore[attr-defined]

    def call_at(self, when: float, work: Callable[[], None]) -> None:
        """Of nobody's process: a packet that arrives, a fault that begins."""
        heapq.heappush(self._calls, (max(when, self.now_s), next(self._numbers), work))

    def call_later(self, seconds: float, work: Callable[[], None]) -> None:
        self.call_at(self.now_s + seconds, work)

    def run(self, until: float) -> None:
        """Until that time, whatever happens."""
        while True:
            loop, next_s = self._first()
            call_s = self._calls[0][0] if self._calls else float("inf")
            if next_s > until and call_s > until:
                self.now_s = until
                return
            if call_s <= next_s:
                self.now_s = max(self.now_s, call_s)
                heapq.heappop(self._calls)[2]()
            elif loop is not None:
                self.now_s = max(self.now_s, next_s)
                loop.step()

    def _first(self) -> tuple[VirtualLoop | None, float]:
        """Whose turn is next, and when; asked half a million times in a schedule."""
        first, first_s = None, float("inf")
        for loop in self._loops:
            if loop.paused:
                continue
            scheduled = loop._scheduled  # type: ignore[attr-defined]
            while scheduled and scheduled[0]._cancelled:
                heapq.heappop(scheduled)._scheduled = False
            next_s = self.now_s if loop._ready else scheduled[0]._when if scheduled else float("inf")  # type: ignore[attr-defined]
            if next_s < first_s:
                first, first_s = loop, next_s
        return first, first_s

    def close(self) -> None:
        """Forget all. What was unfinished is unwound, and nobody hears of it any more."""
        for loop in tuple(self._loops):
            self.end(loop)
        for loop, tasks in self._ended:
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):  # its clean-up may wait, which it cannot any more
                    coroutine = task.get_coro()
                    if coroutine is not None:
                        coroutine.close()
            loop._ready.clear()  # type: ignore[attr-defined]
            loop.close()
