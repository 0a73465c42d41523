"""A small Kafka broker on loopback, for tests: one node, in memory, with faults on demand.

It speaks the real protocol through kafka-python's own classes, so what is tested is the real client. What real
brokers do on bad days it does when told: cut connections, answer nothing, answer an error, take a record and lose
the acknowledgement, lose everything it knew.
"""

import asyncio
import inspect
import ssl
import struct
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from .kafka_log import FakeMemory
from .kafka_responses import Api, Situation, apis

_API_VERSIONS = 18
_HIGHEST_API_VERSIONS = 2
_UNSUPPORTED = 35
_STALL_POLL_S = 0.01
_LARGEST = 64 << 20


class FakeBroker:
    """One broker in a thread. Its methods may be called from any other thread."""

    def __init__(self, *, passwords: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None) -> None:
        """passwords: of SASL PLAIN; none = no authentication. Listens once `start` has returned."""
        self.host, self.port = "127.0.0.1", 0
        self.memory = FakeMemory()
        self.stalled = False
        """True: takes connections and requests, and answers nothing."""
        self.lost_acknowledgements = 0
        """So many of the next appends are kept, and their connection is cut instead of an answer."""
        self.appended = 0
        """Produce requests that were answered or kept so far."""
        self._passwords = dict(passwords or {})
        self._tls = tls
        self._apis: dict[int, Api] = {}
        self._errors: dict[str, deque[int]] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> "FakeBroker":
        """Listen: on a free port at first, on the same one after a `stop`."""
        self._apis = apis()
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._loop, ready), name="fake-broker", daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def stop(self) -> None:
        """Cut every connection and stop listening; what it knows stays until `forget`."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def __enter__(self) -> "FakeBroker":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- faults --------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """End every connection there is."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result()

    def fail(self, request: str, code: int, times: int = 1) -> None:
        """Answer the next requests of a kind ("Fetch") with an error code, where their answer has one for a partition."""
        self._errors.setdefault(request, deque()).extend([code] * times)

    def forget(self) -> None:
        """Lose all topics, records and committed offsets, and every connection, as a broker in memory that was restarted."""
        self.memory = FakeMemory()
        self.cut()

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self, loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        self._server = loop.run_until_complete(
            asyncio.start_server(self._serve, self.host, self.port, limit=_LARGEST, ssl=self._tls)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        ready.set()
        loop.run_forever()
        self._server.close()
        loop.run_until_complete(self._cut())
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._answer(await self._request(reader), writer):
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            return  # cancelled: the broker stops
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader) -> bytes:
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        data = await reader.readexactly(length)
        while self.stalled:
            await asyncio.sleep(_STALL_POLL_S)
        return data

    async def _answer(self, data: bytes, writer: asyncio.StreamWriter) -> bool:
        key, version, correlation = struct.unpack_from(">hhi", data)
        if key == _API_VERSIONS:
            answer = self._versions(version)
        else:
            api = self._apis[key]
            request = api.request.decode(data, version=version, header=True)
            answer = await self._answered(api, request, version)
        if key == 0:
            self.appended += 1
            if self.lost_acknowledgements:
                self.lost_acknowledgements -= 1
                return False
        answer.with_header(correlation_id=correlation)
        writer.write(bytes(answer.encode(header=True, framed=True)))
        return True

    async def _answered(self, api: Api, request: Any, version: int) -> Any:
        memory = self.memory
        errors = self._errors.get(api.name)
        if errors and api.name == "Produce":
            memory = FakeMemory()  # refused: nothing is kept
        answer = api.answer(Situation(memory, self.host, self.port, self._passwords), request, version)
        if inspect.isawaitable(answer):
            answer = await answer
        if errors:
            _put_error(answer, errors.popleft())
        return answer

    def _versions(self, version: int) -> Any:
        from kafka.protocol.metadata import ApiVersionsResponse as Response

        known = version <= _HIGHEST_API_VERSIONS
        version = version if known else 0
        keys = [
            Response.ApiVersion(version=version, api_key=key, min_version=api.lowest, max_version=api.highest)
            for key, api in self._apis.items()
        ]
        keys.append(Response.ApiVersion(version=version, api_key=_API_VERSIONS, min_version=0, max_version=_HIGHEST_API_VERSIONS))
        return Response(version=version, error_code=0 if known else _UNSUPPORTED, api_keys=keys)


def _put_error(answer: Any, code: int) -> None:
    """Into every place of the answer that holds the error of a partition, a topic, or of all."""
    for name in ("responses", "topics", "partition_responses", "partitions"):
        for each in getattr(answer, name, None) or []:
            _put_error(each, code)
    if hasattr(answer, "error_code"):
        answer.error_code = code
