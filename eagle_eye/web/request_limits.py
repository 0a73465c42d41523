"""How many requests the HTTP port answers at once, and how long one may take.

/healthz has a capacity of its own: whatever else waits, an orchestrator must not restart a process that is well.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUESTS = 32
"""At once. With HEALTH_REQUESTS they are as many as the threads that answer (anyio's default of 40)."""
HEALTH_REQUESTS = 8
"""Of /healthz, at once."""
WAIT_S = 5.0
"""How long a request waits for its turn."""
ANSWER_S = 30.0
"""How long a request may take, its body and its answer's way included."""
HEALTH = "/healthz"


class RequestLimits:
    """ASGI middleware: 503 for who finds no place within WAIT_S, 408 for who sends its body for longer than ANSWER_S."""

    def __init__(self, app: ASGIApp, *, wait_s: float = WAIT_S, answer_s: float = ANSWER_S) -> None:
        self._app = app
        self._wait_s = wait_s
        self._answer_s = answer_s
        self._places = asyncio.Semaphore(REQUESTS)
        self._health_places = asyncio.Semaphore(HEALTH_REQUESTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        health = scope["path"].partition("/")[2].partition("/")[0] == HEALTH.strip("/")
        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with self._place(self._health_places if health else self._places), asyncio.timeout(self._answer_s):
                await self._app(scope, receive, sent)
        except _NoFreeSlot:
            await _refusal(503, "too many requests at once: try again in a moment", {"Retry-After": "5"})(scope, receive, send)
        except TimeoutError:
            if not started:
                await _refusal(408, f"the request took longer than {self._answer_s:.0f} s", {"Connection": "close"})(scope, receive, send)
            else:
                raise  # uvicorn closes the connection: half an answer must not look like a whole one

    @asynccontextmanager
    async def _place(self, places: asyncio.Semaphore) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._wait_s):
                await places.acquire()
        except TimeoutError:
            raise _NoFreeSlot from None
        try:
            yield
        finally:
            places.release()


class _NoFreeSlot(Exception):
    """No place became free."""


def _refusal(status: int, error: str, headers: dict[str, str]) -> Response:
    return JSONResponse({"error": error}, status, headers)


async def read_body(request: Request, max_bytes: int) -> bytes | None:
    """The body of a request; None once it is longer than `max_bytes`: nobody reads on. Raises starlette's ClientDisconnect."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            return None
        parts.append(part)
    return b"".join(parts)
