"""Serves the copies of this node to other launchers of the job: lists them, and reads them. Nothing that is asked of it changes memory here.

    due(node)                        → the copies that this node, the neighbour, is to fetch; waits up to a second for one. With the newest step in storage, and the epoch in which that was made
    list(rank, world)                → all copies of that rank that lie here; rank -1: what workers here hold themselves, where all ranks hold the same
    describe(name)                   → lengths and digest of table and sums, which follow
    read(name, offset, length)       → so many bytes of the payload follow; 0: the copy is not there any more
    settled(node, file, slot, sequence, broken, why)  the neighbour has the copy, or has found that it was changed

A thread for each connection, a bounded number of them; a caller that does not show the key is heard no further.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from eagle_eye.access.credentials import Credentials
from eagle_eye.errors import EagleEyeError, WireError
from eagle_eye.training.checkpoint.memory_segment import ROW

from .copy_files import CopyFiles, CopyName, SegmentMaps
from .copy_states import Place, StoredMark
from .copy_wire import CopyConnection, ProcessorTime, Source, server_context

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
DUE_S = 1.0
"""So long the question for due copies waits for one."""
PIECE = 1 << 22
"""Bytes that are asked for at once, at the most."""

DueCopies = Callable[[str, float], tuple[Sequence[CopyName], StoredMark]]
"""(node that asks, or '' if it does not say, seconds): waits up to so many; the copies, and the newest step that is known to be in storage."""
Settled = Callable[[str, Place, int, bool, str], None]
"""(node that has it, or '', place, sequence, whether it is broken, why)"""


class CopyServer:
    """Listens from its making on. Raises OSError where it cannot."""

    def __init__(
        self, host: str, key: bytes, files: Callable[[], CopyFiles], due: DueCopies, settled: Settled, reading: Callable[[Place], None],
        credentials: Credentials | None, spent: ProcessorTime | None = None,
    ) -> None:  # fmt: skip
        """`files`: makes those of one connection; `reading`: told of each piece that is read; `spent`: what answering takes is added to it."""
        self._key, self._files, self._due, self._settled, self._reading = key, files, due, settled, reading
        self._credentials, self._spent = credentials, spent or ProcessorTime()
        self._listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.source = Source(host, self._listener.getsockname()[1], key)
        self._maps = SegmentMaps()
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, name="eagle-eye-copy-server", daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        with self._lock:
            connections = [self._listener, *self._connections]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                threading.Event().wait(0.1)  # no descriptor is left: one may be soon
                continue
            with self._lock:
                refused = len(self._connections) >= MOST_CONNECTIONS
                if not refused:
                    self._connections.add(connection)
            if refused:
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="eagle-eye-copies", daemon=True).start()
            except RuntimeError:  # a limit of processes
                self._forget(connection)
                connection.close()

    def _serve(self, accepted: socket.socket) -> None:
        files = self._files()
        found: CopyConnection | None = None
        try:
            found = CopyConnection.of(accepted, self._key, None if self._credentials is None else server_context(self._credentials))
            while not self._closed:
                message = found.receive()
                with self._spent:
                    self._answer(found, message, files)
        except (ConnectionError, TimeoutError):
            pass
        except (OSError, EagleEyeError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
            log.warning("a connection for copies of checkpoints was closed: %s", error)
        finally:
            files.close()
            self._forget(accepted)
            (found or accepted).close()

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _answer(self, connection: CopyConnection, message: dict[str, Any], files: CopyFiles) -> None:
        kind = message.get("kind")
        if kind == "due":
            self._maps.forget_removed()
            names, stored = self._due(str(message.get("node", "")), DUE_S)
            connection.send({"copies": [msgspec.to_builtins(name) for name in names], "stored": stored.step, "stored_epoch": stored.epoch})
        elif kind == "list":
            connection.send({"copies": [msgspec.to_builtins(name) for name in files.names(int(message["rank"]), int(message["world"]))]})
        elif kind == "describe":
            self._describe(connection, msgspec.convert(message["name"], CopyName), files)
        elif kind == "read":
            self._read(connection, msgspec.convert(message["name"], CopyName), int(message["offset"]), int(message["length"]), files)
        elif kind == "settled":
            self._settled(str(message.get("node", "")), Place(str(message["file"]), int(message["slot"])), int(message["sequence"]), bool(message["broken"]), str(message["why"])[:1000])
            connection.send({})
        else:
            raise WireError(f"the question {kind!r} is not known here: is the other launcher newer?")

    def _describe(self, connection: CopyConnection, name: CopyName, files: CopyFiles) -> None:
        content = files.content(name) if files.name_of(Place(name.file, name.slot)) is not None else None
        if content is None:
            connection.send({"payload": -1})
            return
        digest = blake2b(content.table + content.sums).hexdigest()
        connection.send({"payload": content.payload_bytes, "table": len(content.table), "sums": len(content.sums), "digest": digest})
        connection.send_bytes(content.table + content.sums)

    def _read(self, connection: CopyConnection, name: CopyName, offset: int, length: int, files: CopyFiles) -> None:
        place = Place(name.file, name.slot)
        known = files.name_of(place)  # of the names that lie here: no path comes from outside
        if known is None or known.sequence != name.sequence:
            connection.send({"length": 0})
            return
        content, segment = files.payload_at(place), files.segment(name.file)
        if segment is None or not 0 < length <= PIECE or offset < 0 or offset + length > -(-known.payload // ROW) * ROW:
            raise WireError(f"bytes {offset} to {offset + length} of {name.file} were asked for, of {known.payload}")
        self._reading(place)
        connection.send({"length": length})
        if connection.is_encrypted:
            connection.socket.sendfile(segment.content, content + offset, length)
        else:
            connection.send_bytes(self._maps.of(segment)[content + offset : content + offset + length])
