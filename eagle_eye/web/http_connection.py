"""One connection to the HTTP port: who does not ask for anything holds no place.

A caller that sends half a request head and waits would hold its connection for ever. Here the whole head must arrive within
HEADER_S; and where more than CONNECTIONS are open, the one that has waited longest for its head is closed for the newest. Where
all have sent theirs, the one whose request is the oldest is closed: it may send its body for ever.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S = 10.0
"""Seconds from the connection's start, or from its last answer, to the end of a request's head. Apache (mod_reqtimeout) waits 20 to 40 s."""
CONNECTIONS = 512
"""Open at once."""


class HttpConnection(H11Protocol):
    """uvicorn's connection with a time limit for the request's head."""

    _limit: asyncio.TimerHandle | None = None
    since = 0.0
    """When it began to wait for a request, or its request began; time of the loop."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the connection that has waited longest for a request, or else has been longest at one, if there are too many."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._await_request()
        living = [each for each in self.connections if isinstance(each, HttpConnection) and not each.transport.is_closing()]
        if len(living) > CONNECTIONS:
            others = [each for each in living if each is not self]
            min(others, key=lambda each: (not each.waits, each.since), default=self).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Part of a request: once its head is whole there is no limit here."""
        super().data_received(data)
        if not self.waits and self._limit is not None:
            self._end_limit()
            self.since = self.loop.time()

    def on_response_complete(self) -> None:
        """The next request may come."""
        super().on_response_complete()
        if self.waits:
            self._await_request()

    def send_400_response(self, msg: str) -> None:
        """What cannot be read is answered so, unless it comes behind a request that has no answer yet: which of both would this one answer?"""
        if self.waits:
            super().send_400_response(msg)
            return
        cycle: Any = self.cycle
        cycle.disconnected = True  # the answer under way has nobody to go to
        cycle.message_event.set()
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_limit()
        super().connection_lost(exc)

    @property
    def waits(self) -> bool:
        """Whether no request is under way."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def _await_request(self) -> None:
        self._end_limit()
        self.since = self.loop.time()
        self._limit = self.loop.call_later(HEADER_S, self.transport.abort)

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
