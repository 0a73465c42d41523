"""One session over gRPC, used by either end: messages to write, replies that are awaited, and pauses of this process."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from eagle_eye.clock import Clock
from eagle_eye.errors import ControlError, TemporaryError

from .control_messages import Body, ControlResult

WAITING_MOST = 10_000
"""Messages that wait to be written. A session has 256 requests under way at most, and two heartbeats a second: who leaves so many unread asks without reading,
and would fill the memory."""


LAST_WRITE_S = 0.3
"""A message that is being written when the connection ends may take so long: gRPC may never tell the other end that a call is over whose write was cancelled. One that takes longer
is cancelled all the same, since its other end takes nothing. A server that stops waits longer than this (0.5 s)."""


class Connection:
    """Writes in order, matches answers to questions, and ends once, with a reason."""

    def __init__(self, stream: Any, other: str) -> None:
        """`stream` is gRPC's call or context: `await write(message)`. `other` names the other end in errors."""
        self._stream = stream
        self._other = other
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        self._awaited: dict[int, asyncio.Future[ControlResult]] = {}
        self._numbers = itertools.count(1)
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def ended(self) -> bool:
        return self._ended.done()

    def send(self, message: Any) -> None:
        """Write when it is its turn; dropped if the connection has ended. One whose other end does not read ends."""
        if self.ended:
            return
        self._outbox.put_nowait(message)
        if self._outbox.qsize() > WAITING_MOST:
            self.end(f"{self._other} has not read {WAITING_MOST} messages")

    async def ask(self, what: str, timeout: float, build: Callable[[int], Any]) -> Body:
        """Send `build(number)` and await its answer; `timeout` in seconds.

        TemporaryError if none came in time or the line ended first (it may or may not have been done).
        """
        if self.ended:
            raise TemporaryError(f"no session to {self._other} any more: {what!r} was not sent")
        number = next(self._numbers)
        message = build(number)
        future: asyncio.Future[ControlResult] = asyncio.get_running_loop().create_future()
        self._awaited[number] = future
        self.send(message)
        try:
            async with asyncio.timeout(timeout):
                return (await future).unwrap()
        except TimeoutError:
            raise TemporaryError(f"{self._other} did not answer {what!r} within {timeout:g} s") from None
        finally:
            del self._awaited[number]

    def settle(self, result: ControlResult) -> None:
        """An answer came; one that nobody awaits any more is dropped."""
        future = self._awaited.get(result.id)
        if future is not None and not future.done():
            future.set_result(result)

    def end(self, reason: str) -> None:
        """End the connection; every awaited reply fails with TemporaryError."""
        if not self.ended:
            self._ended.set_result(reason)
            self._outbox.put_nowait(None)
        for future in self._awaited.values():
            if not future.done():
                future.set_exception(TemporaryError(f"the session to {self._other} ended before it answered: {reason}"))

    async def live(self, reader: Coroutine[Any, Any, str]) -> str:
        """Read and write until either breaks or somebody calls `end`; returns why."""
        reading, writing = asyncio.create_task(reader), asyncio.create_task(self._write())
        reason = "the connection was closed"
        try:
            await asyncio.wait([reading, writing, self._ended], return_when=asyncio.FIRST_COMPLETED)
            reason = self._ended.result() if self.ended else _reason(reading if reading.done() else writing)
        finally:
            reading.cancel()
            self.end(reason)
            try:
                await asyncio.wait([writing], timeout=LAST_WRITE_S)
            finally:
                writing.cancel()
                await asyncio.gather(reading, writing, return_exceptions=True)
        return reason

    async def _write(self) -> str:
        while (message := await self._outbox.get()) is not None and not self.ended:
            await self._stream.write(message)
        return "the connection was closed"


class PauseDetector:
    """Notifies a listener that this process was paused.

    A process that was stopped, or starved of its processor, finds every lease run out when it wakes, though the
    beats are unread in its sockets. It gives everybody a new lease instead of calling them all lost.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()

    def was_paused(self, period: float) -> bool:
        """Call after each sleep of `period` seconds: whether it took more than twice as long."""
        now = self._clock.monotonic()
        took, self._last = now - self._last, now
        return took > 2 * period


def _reason(task: asyncio.Task[str]) -> str:
    if task.cancelled():
        return "the connection was closed"
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, ControlError):
        return str(error)
    return text_of(error)


def text_of(error: BaseException) -> str:
    """gRPC's details of a broken call, in a line."""
    if isinstance(error, grpc.aio.AioRpcError):
        return str(error.details()) or str(error.code().name).lower()
    return str(error) or type(error).__name__
