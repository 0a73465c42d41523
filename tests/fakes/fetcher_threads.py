"""Fetchers that are threads at the other end of the socket, and fail as a process may: it is killed, hangs, or its stream is away."""

import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from eagle_eye.stream import Message, ReadableStream
from eagle_eye.stream.fetcher import Fetcher


class _Failing:
    """A stream whose reads may end or hold its reader."""

    def __init__(self, stream: ReadableStream, fail: Callable[[], str], child: "FetcherThread") -> None:
        self._stream, self._fail, self._child = stream, fail, child

    def read(self, topic: str, partition: int, offset: int, limit: int = 1024) -> list[Message]:
        match self._fail():
            case "dies":
                self._child.kill()
            case "hangs":
                self._child.freed.wait()
            case "raises":
                raise RuntimeError("its stream is away")
            case "":
                pass
            case other:
                raise AssertionError(other)
        return self._stream.read(topic, partition, offset, limit)


class ReadAhead:
    """A stream that keeps what it has read, as Kafka's does for the next read."""

    def __init__(self, stream: ReadableStream) -> None:
        self._stream = stream
        self._kept: dict[int, Message] = {}

    def read(self, topic: str, partition: int, offset: int, limit: int = 1024) -> list[Message]:
        if offset + 1 not in self._kept:
            before = {number: message for number, message in self._kept.items() if number < offset}
            self._kept = before | {message.offset: message for message in self._stream.read(topic, partition, offset, 10 * limit)}
        return [self._kept[each] for each in range(offset, offset + limit) if each in self._kept]


class FetcherThread:
    """In the place of a process."""

    begins = True
    """False: it never says that it is there."""

    def __init__(self, connection: socket.socket, stream: ReadableStream, topic: str, fail: Callable[[], str]) -> None:
        self.exitcode: int | None = None
        self.freed = threading.Event()
        self._socket = connection.dup()
        failing = _Failing(ReadAhead(stream), fail, self)  # type: ignore[arg-type]
        fetcher = Fetcher(self._socket, failing, topic, 0)  # type: ignore[arg-type]  # it is read, and nothing else
        self._thread = threading.Thread(target=fetcher.run if self.begins else self.freed.wait, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        self.exitcode = -9
        self.freed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
            if not self._thread.is_alive():
                self._socket.close()


def by_chance(seed: int, **shares: float) -> Callable[[], str]:
    """How a read goes: `dies`, `hangs` or `raises` in such a share of all."""
    rng = random.Random(seed)

    def fail() -> str:
        at = rng.random()
        for how, share in shares.items():
            if at < share:
                return how
            at -= share
        return ""

    return fail
