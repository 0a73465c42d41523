"""Asks a web application without a port."""

import asyncio
from typing import Any

import httpx
from starlette.applications import Starlette


class Asking:
    """A client whose requests never leave the process."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self._ask("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self._ask("POST", path, **more)

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://server") as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())
