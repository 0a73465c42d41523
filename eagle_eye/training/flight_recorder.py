"""Flight recorder: the newest collectives of a worker, readable even while its main thread hangs with the GIL held.

torch has a small HTTP server in C++ for that (`_WorkerServer`, private, hence this one module and its version
probe). Source: torch/csrc/distributed/c10d/control_plane.
"""

import contextlib
import http.client
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_log = logging.getLogger("eagle_eye.probe")
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
    except (OSError, RuntimeError, TypeError):  # another signature, or no such path
        _log.debug("no flight recorder server", exc_info=True)
        return False
    return True


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
    """The newest collectives of a worker as torch's JSON, None if it has none, does not serve or is stopped."""
    connection = _UnixConnection(path, timeout)
    with contextlib.closing(connection):
        try:
            connection.request("POST", "/handler/fr_trace_json")
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            return None
    if response.status != http.client.OK:
        return None
    try:
        trace = json.loads(body)
    except ValueError:
        return None
    return trace if isinstance(trace, dict) else None


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
