"""Fetches a copy from another launcher into a slot of a segment here, over several connections, verified before it is visible.

Each connection takes the next pieces that nobody has, one on its way and one ahead, and sums its rows while they are in the cache. One that is cut
is made again, and only the pieces that were not whole are asked for again. Nothing of the copy is visible until all rows fit the sums that came in a message.
"""

import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from eagle_eye.access.credentials import Credentials
from eagle_eye.errors import AccessDenied, WireError
from eagle_eye.training.checkpoint.memory_segment import ROW, MemorySegment, rows_of

from .copy_files import CopyName, changed_row
from .copy_server import PIECE
from .copy_wire import CopyConnection, ProcessorTime, Source

CONNECTIONS = min(4, len(os.sched_getaffinity(0)))
"""Each takes a processor at either end."""
TRIES, PAUSE_S = 5, 0.2
"""A piece that a cut connection has not brought is asked for again so often, each time after a longer pause."""
AHEAD = 2
"""Pieces that a connection has asked for: the other end has something to send while we sum."""
SLICE = 8 * ROW
"""Bytes that are summed at once: they are still in the processor's cache."""
LONGEST_TABLE = 1 << 28


class CopyGone(Exception):
    """Its worker has written another one in its place, or its segment is not there any more."""


class CopyChanged(Exception):
    """A digest does not fit; the message says of what."""


class Description(NamedTuple):
    """Of a copy, before its payload comes."""

    table: bytes
    sums: bytes
    payload: int


class CopyClient:
    """Of one source. What its threads take is added to `spent`."""

    def __init__(self, source: Source, credentials: Credentials | None, spent: ProcessorTime | None = None, *, connections: int = CONNECTIONS) -> None:
        self._source, self._credentials, self._count = source, credentials, connections
        self.spent = spent or ProcessorTime()

    @contextmanager
    def connected(self) -> Iterator[CopyConnection]:
        """Raises OSError, AccessDenied, WireError."""
        connection = CopyConnection.to(self._source, self._credentials)
        try:
            yield connection
        finally:
            connection.close()

    def describe(self, connection: CopyConnection, name: CopyName) -> Description:
        """Raises CopyGone, CopyChanged."""
        answer = connection.ask({"kind": "describe", "name": msgspec.to_builtins(name)})
        payload, table, sums = (int(answer.get(field, -1)) for field in ("payload", "table", "sums"))
        if payload < 0:
            raise CopyGone(f"the copy of step {name.step} is not there any more")
        if not 0 <= table <= LONGEST_TABLE or sums != 8 * rows_of(payload):
            raise WireError(f"a table of {table} bytes and {sums} bytes of sums for {payload} bytes are not possible")
        words = bytearray(table + sums)
        connection.receive_into(memoryview(words))
        if blake2b(words).hexdigest() != answer.get("digest"):
            raise CopyChanged("table or sums were changed on their way")
        return Description(bytes(words[:table]), bytes(words[table:]), payload)

    def fetch(self, name: CopyName, description: Description, segment: MemorySegment, slot: int, sequence: int) -> None:
        """Into that slot, which is whole afterwards, with this sequence; until then nothing is.

        Raises CopyGone, CopyChanged, and OSError for what stands between us and the source.
        """
        segment.clear(slot)
        at = segment.payload_at(slot, description.payload)
        padded = rows_of(description.payload) * ROW
        target = segment.memory[at : at + padded]
        transfer = _Transfer(self, name, description.sums, target)
        count = min(self._count, -(-padded // PIECE)) or 1
        with ThreadPoolExecutor(count, "eagle-eye-copy") as threads:
            for done in [threads.submit(transfer.run) for _ in range(count)]:
                done.result()
        segment.stamp(slot, name.step, sequence, description.table, description.sums, description.payload)


class _Transfer:
    """The pieces of one payload."""

    def __init__(self, client: CopyClient, name: CopyName, sums: bytes, target: memoryview) -> None:
        self._client, self._name, self._sums, self._target = client, name, sums, target
        self._offsets = iter(range(0, len(target), PIECE))
        self._lock = threading.Lock()
        self._failed = False

    def run(self) -> None:
        """Take pieces until there is none."""
        with self._client.spent:
            self._take()

    def _take(self) -> None:
        asked: deque[int] = deque()
        """Offsets, in the order in which they come."""
        failures = 0
        while True:
            try:
                with self._client.connected() as connection:
                    for offset in asked:  # of a connection that was cut
                        self._ask(connection, offset)
                    while self._ask_ahead(connection, asked):
                        self._receive(connection, asked[0])
                        asked.popleft()
                        failures = 0
            except OSError:
                failures += 1
                if failures > TRIES or self._failed:
                    self._failed = True
                    raise
                threading.Event().wait(PAUSE_S * 2.0 ** (failures - 1))
            except (CopyGone, CopyChanged, AccessDenied, WireError):
                self._failed = True
                raise
            else:
                return

    def _ask_ahead(self, connection: CopyConnection, asked: deque[int]) -> bool:
        """Whether there is a piece to receive."""
        while len(asked) < AHEAD and (offset := self._next()) is not None:
            asked.append(offset)
            self._ask(connection, offset)
        return bool(asked) and not self._failed

    def _next(self) -> int | None:
        with self._lock:
            return None if self._failed else next(self._offsets, None)

    def _ask(self, connection: CopyConnection, offset: int) -> None:
        connection.send({"kind": "read", "name": msgspec.to_builtins(self._name), "offset": offset, "length": self._length(offset)})

    def _length(self, offset: int) -> int:
        return min(PIECE, len(self._target) - offset)

    def _receive(self, connection: CopyConnection, offset: int) -> None:
        length = self._length(offset)
        if connection.receive().get("length") != length:
            raise CopyGone(f"the copy of step {self._name.step} is not there any more")
        for at in range(offset, offset + length, SLICE):
            part = self._target[at : min(at + SLICE, offset + length)]
            connection.receive_into(part)
            row = changed_row(part, self._sums, at // ROW)
            if row >= 0:
                raise CopyChanged(f"bytes {row * ROW} to {(row + 1) * ROW} of the copy of step {self._name.step} are not as they were written")
