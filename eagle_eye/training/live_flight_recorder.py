"""Flight recorder: the newest collectives of a worker, readable even while its main thread hangs with the GIL held.

torch has a small HTTP server in C++ for that (`_WorkerServer`, private, hence this one module and its version
probe), and a recorder for each backend: NCCL's, which only a build for GPUs has, and one for all else. Source:
torch/csrc/distributed/c10d/control_plane, ProcessGroupNCCL.cpp (`dump_nccl_trace_json`).
"""

import contextlib
import errno
import http.client
import io
import json
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_log = logging.getLogger("eagle_eye.probe")
RECORDERS = ("dump_nccl_trace_json", "fr_trace_json")
LARGEST = 64 << 20
"""Bytes of an answer; one with stacks of a ring of 20,000 has 60 MB."""
LONGEST = 4.0
"""So many times its time-out an answer may take as a whole: whoever listens there may send a byte now and then for ever."""
UNANSWERED = (OSError, ValueError, http.client.HTTPException, MemoryError)
"""What a worker that does not answer, or answers anything, brings about."""
ACL_VERSION, USER_OWNER, USER, GROUP_OWNER, MASK, OTHER, NOBODY = 2, 1, 2, 4, 16, 32, 0xFFFFFFFF
"""Of an access list as the kernel takes it (linux/posix_acl_xattr.h)."""
_servers: list[object] = []
"""A server ends when there is no reference to it."""


def path_beside(probe_socket: str) -> str:
    """Where the recorder of the worker that serves `probe_socket` listens."""
    return f"{probe_socket}.fr"


def serve(path: str) -> bool:
    """Answer on the unix socket `path` from a thread of torch's own; False where torch is not loaded or too old."""
    distributed = sys.modules.get("torch._C._distributed_c10d")
    server = getattr(distributed, "_WorkerServer", None)
    if server is None:
        return False
    try:
        Path(path).unlink(missing_ok=True)
        with _quiet_stderr():
            _servers.append(server(path))
        Path(path).chmod(0o600)
        _admit_root(path)
    except (OSError, RuntimeError, TypeError):  # another signature, or no such path
        _log.debug("no flight recorder server", exc_info=True)
        return False
    return True


def _admit_root(path: str) -> None:
    """By an entry in its access list (acl(5)): an agent that runs as root without root's power over all files (CAP_DAC_OVERRIDE) may connect, and no other user."""
    entries = ((USER_OWNER, 6, NOBODY), (USER, 6, 0), (GROUP_OWNER, 0, NOBODY), (MASK, 6, NOBODY), (OTHER, 0, NOBODY))
    with contextlib.suppress(OSError):  # the file system has no such lists: the owner and a root with all powers may connect
        os.setxattr(path, "system.posix_acl_access", struct.pack("<I", ACL_VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries))


def serving() -> bool:
    """Whether this process has a server."""
    return bool(_servers)


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Keep the server's greeting out of the worker's log, as long as no other thread could lose output by that."""
    if threading.active_count() > 1:
        yield
        return
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def dump(path: str, timeout: float = 1.0) -> dict[str, Any] | None:
    """The newest collectives of a worker as torch's JSON, of all backends in the order in which they were begun; None if it has none, does not serve or is stopped."""
    found: dict[str, Any] = {}
    for recorder in RECORDERS:
        try:
            record = _ask(path, recorder, timeout)
        except UNANSWERED:  # the others would not answer either
            return None
        found = _joined(found, record) if record is not None else found
    return found or None


def answers(path: str, timeout: float = 1.0, largest: int = LARGEST) -> list[bytes] | None:
    """What the worker's recorders answer, each as torch's JSON of at most `largest` bytes, which nobody has read yet; None: it does not serve, or is stopped, or says too much."""
    found = []
    for recorder in RECORDERS:
        try:
            answer = _answer(path, recorder, timeout, largest)
        except UNANSWERED:
            return None
        found += [answer] if answer is not None else []
    return found


def _ask(path: str, recorder: str, timeout: float) -> dict[str, Any] | None:
    """What one recorder has; None where torch was built without it, or writes something else. Raises UNANSWERED."""
    body = _answer(path, recorder, timeout, LARGEST)
    if body is None:
        return None
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _answer(path: str, recorder: str, timeout: float, largest: int) -> bytes | None:
    """None where torch was built without that recorder. Raises UNANSWERED."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        connection = _UnixConnection(made, path, timeout, largest)
        connection.request("POST", f"/handler/{recorder}")
        response = connection.getresponse()
        if response.length is not None and response.length > largest:  # memory is taken for all of it before a byte is there
            raise OSError(errno.EFBIG, "the answer is too long")
        body = response.read() if response.length is not None else response.read(largest)  # a chunk may say that it is of any length, too
    return body if response.status == http.client.OK else None


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What either says of groups is of its own backend's, by its own numbers: that of the one with entries is kept."""
    entries = _entries(one) + _entries(other)
    return {**(one if _entries(one) else other), "entries": sorted(entries, key=_begun)}


def _entries(record: dict[str, Any]) -> list[dict[str, Any]]:
    entries = record.get("entries")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _begun(entry: dict[str, Any]) -> float:
    created = entry.get("time_created_ns")
    try:
        return float(created) if isinstance(created, (int, float)) else 0.0
    except OverflowError:
        return 0.0


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket, for one answer. Who makes it closes the socket."""

    def __init__(self, connection: socket.socket, path: str, timeout: float, largest: int) -> None:
        super().__init__("localhost", timeout=timeout)
        self._bounded, self._path = _BoundedSocket(connection, timeout, largest), path

    def connect(self) -> None:
        self._bounded.connection.connect(self._path)
        bounded: Any = self._bounded
        self.sock = bounded


class _BoundedSocket(io.RawIOBase):
    """What `http.client` needs of a socket. Raises OSError for an answer that is too long, or takes too long."""

    def __init__(self, connection: socket.socket, seconds: float, largest: int) -> None:
        self.connection = connection
        self._seconds = seconds
        self._end = time.monotonic() + LONGEST * seconds
        self._left = largest
        connection.settimeout(seconds)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def sendall(self, data: bytes) -> None:
        self.connection.sendall(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer takes too long")
        self.connection.settimeout(min(left_s, self._seconds))
        count = self.connection.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise OSError(errno.EFBIG, "the answer is too long")
        return count

    def close(self) -> None:
        """The connection's end is not the answer's: it is read on."""
