"""Reports on their way from a launcher to its coordinator, in their order."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from eagle_eye.errors import EagleEyeError, TemporaryError
from eagle_eye.rpc.control_messages import Body

log = logging.getLogger(__name__)

RETRY_S = 0.1

Send = Callable[[str, Body], Awaitable[None]]
"""Raises TemporaryError while nobody listens."""


class ReportQueue:
    """Each is tried until the coordinator knows it, unless it is of an epoch that is over; `lasting` ones always."""

    def __init__(self, send: Send, promised: Callable[[], int]) -> None:
        self._send = send
        self._promised = promised
        self._waiting: deque[tuple[str, Body]] = deque()
        self._news = asyncio.Event()
        self._complained: Body | None = None
        """What could not be sent: logged once, not at each try."""

    def put(self, kind: str, body: Body) -> None:
        self._waiting.append((kind, body))
        self._news.set()

    def forget(self, *kinds: str) -> None:
        """A coordinator is being told the present state: these would be older."""
        self._waiting = deque(report for report in self._waiting if report[0] not in kinds)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while self._waiting:
                await self._first(*self._waiting[0])
            self._news.clear()
            await self._news.wait()

    async def _first(self, kind: str, body: Body) -> None:
        report = self._waiting[0]
        try:
            if body.get("lasting") or self._promised() <= int(body["epoch"]):
                await self._send(kind, body)
        except TemporaryError as error:
            if self._complained is not body:
                self._complained = body
                log.info("the report %s has not reached the coordinator yet: %s", kind, error)
            await asyncio.sleep(RETRY_S)
            return
        except EagleEyeError as error:
            log.warning("the coordinator refuses the report %s: %s", kind, error)
        with contextlib.suppress(ValueError):  # forgotten meanwhile
            self._waiting.remove(report)
