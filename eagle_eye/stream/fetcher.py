"""A fetcher: a process that reads records of one partition for the process that evaluates it.

    evaluating process                            fetcher
    FetcherProcess.ask (number, offset, limit) ─► Fetcher.run: stream.read, with decompression and signatures
    FetcherProcess.receive                     ◄─ number, whether it was read, a span of records or what went wrong

Python computes in one thread at a time; to unpack and check ten thousand records a second takes a third of one. A fetcher keeps nothing: what
it was asked for may be asked of another one, or read by whoever asked. It ends with its parent, since the socket between them ends then.
"""

import logging
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from eagle_eye.clock import Clock
from eagle_eye.writable_text import words_of

from . import Message, ReadableStream
from .record_span import RecordSpan, encode_span

READ_AT_ONCE = 512
"""Records asked of the stream at once: it may unpack what it reads ahead, which is in vain where another fetcher is asked for it."""
SPAN_BYTES = 32 << 20
"""A span ends with the record that brings it to so many bytes."""
END_S = 2.0
_ASKED = struct.Struct("<QQI")
"""Number, offset, limit."""
_ANSWERED = struct.Struct("<QQ?")
"""Bytes that follow, number, whether they are a span."""
READY = 0
"""Number of the first answer, which nobody has asked for: the stream is open."""
NOBODY = (-1, 0)
"""In the place of (offset, limit): nobody waits for the answer."""
log = logging.getLogger(__name__)


class ChildProcess(Protocol):
    """What is needed of a process; `multiprocessing` has it."""

    @property
    def exitcode(self) -> int | None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...
    def kill(self) -> None: ...


class FetcherDied(Exception):
    """A fetcher has ended, or does not answer: another is to be started. The message says what it ended with."""


class FetcherAnswer(NamedTuple):
    """What a fetcher has answered."""

    number: int
    read: bool
    data: memoryview
    """A span, or in UTF-8 why nothing was read."""


# --- the child -------------------------------------------------------------------------------------------------------------


class Fetcher:
    """Answers what comes over a socket, until that ends."""

    def __init__(self, connection: socket.socket, stream: ReadableStream, topic: str, partition: int) -> None:
        self._socket = connection
        self._stream = stream
        self._topic = topic
        self._partition = partition

    def run(self) -> None:
        """Returns when the socket ends."""
        try:
            self._send(READY, True, b"")
            while len(asked := self._socket.recv(_ASKED.size, socket.MSG_WAITALL)) == _ASKED.size:
                number, offset, limit = _ASKED.unpack(asked)
                self._send(number, *self._answer(offset, limit))
        except OSError as error:
            log.info("the socket of a fetcher has ended: %s", words_of(error))

    def _answer(self, offset: int, limit: int) -> tuple[bool, bytes]:
        try:
            return True, encode_span(self._read(offset, limit))
        except Exception as error:  # noqa: BLE001 -- boundary: whoever asked reads it then, and sees what is wrong
            return False, words_of(error).encode()

    def _read(self, offset: int, limit: int) -> RecordSpan:
        """Raises StreamUnavailable."""
        messages, size = list[Message](), 0
        while len(messages) < limit and size < SPAN_BYTES:
            found = self._stream.read(self._topic, self._partition, offset, min(READ_AT_ONCE, limit - len(messages)))
            if not found:
                return RecordSpan(messages, more=False)
            messages += found
            size += sum(len(message.value) for message in found)
            offset = found[-1].offset + 1
        return RecordSpan(messages, more=True)

    def _send(self, number: int, read: bool, data: bytes) -> None:
        self._socket.sendall(_ANSWERED.pack(len(data), number, read))
        self._socket.sendall(data)


# --- the parent ------------------------------------------------------------------------------------------------------------


class FetcherProcess:
    """A fetcher as its parent sees it. Used by one thread; `end` may be called by any."""

    def __init__(self, start_child: Callable[[socket.socket], ChildProcess], clock: Clock) -> None:
        """`start_child`: with the child's end of the socket. Raises OSError where no process or descriptor is left."""
        self._clock = clock
        self._socket, theirs = socket.socketpair()
        try:
            self._child = start_child(theirs)
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self.asked: tuple[int, int] | None = NOBODY
        """(offset, limit) of what it works at; NOBODY also while it begins; None: it has nothing to do."""
        self.asked_at = clock.monotonic()
        self._number = READY
        self._buffer = bytearray(_ANSWERED.size)
        self._got = 0
        self._head: tuple[int, int, bool] | None = None
        """(bytes, number, whether it is a span) of the answer that is coming in."""

    @property
    def begins(self) -> bool:
        """It has not told yet that its stream is open."""
        return self._number == READY and self.asked is not None

    def ask(self, offset: int, limit: int) -> None:
        """Have it read; nothing may be asked for yet. Raises FetcherDied."""
        self._number += 1
        self.asked, self.asked_at = (offset, limit), self._clock.monotonic()
        try:
            self._socket.sendall(_ASKED.pack(self._number, offset, limit))
        except OSError as error:
            raise FetcherDied(self._why()) from error

    def receive(self, timeout_s: float) -> FetcherAnswer | None:
        """The answer to what was asked; None if it is not whole within so many seconds: it may be asked for again. Raises FetcherDied."""
        until = self._clock.monotonic() + timeout_s
        while not self._whole():
            if not self._receive_some(max(0.0, until - self._clock.monotonic())):
                return None
        assert self._head is not None
        _, number, read = self._head
        data = memoryview(self._buffer)
        self._buffer, self._got, self._head = bytearray(_ANSWERED.size), 0, None
        if number != self._number:
            raise FetcherDied(f"it has answered question {number}, and was asked {self._number}")
        self.asked = None
        return FetcherAnswer(number, read, data)

    def end(self) -> None:
        """It has nothing to lose."""
        self._child.kill()
        self._child.join(END_S)
        self._socket.close()

    def _whole(self) -> bool:
        """Whether an answer is there; once its head is, room is made for the rest."""
        if self._got < len(self._buffer):
            return False
        if self._head is not None:
            return True
        self._head = _ANSWERED.unpack(self._buffer)
        self._buffer, self._got = bytearray(self._head[0]), 0
        return not self._head[0]

    def _receive_some(self, timeout_s: float) -> bool:
        """False if nothing came in time. Raises FetcherDied."""
        try:
            self._socket.settimeout(timeout_s)
            count = self._socket.recv_into(memoryview(self._buffer)[self._got :])
        except (TimeoutError, BlockingIOError):
            return False
        except OSError as error:
            raise FetcherDied(self._why()) from error
        if not count:
            raise FetcherDied(self._why())
        self._got += count
        return True

    def _why(self) -> str:
        self._child.join(END_S)
        code = self._child.exitcode
        if code is None:
            return "its socket has ended"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

