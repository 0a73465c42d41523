"""The probe's unix socket: a daemon thread that answers `status`, and runs fault drills for the user of the job only."""

import logging
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from eagle_eye.errors import EagleEyeError

from . import fault_drills, messages

_log = logging.getLogger("eagle_eye.probe")
_TIMEOUT_S = 1.0
_PAUSE_S = 0.1
_CREDENTIALS = struct.Struct("3i")


class StatusSource(Protocol):
    """What the socket needs of a monitor."""

    def status(self) -> dict[str, Any]: ...


UidOf = Callable[[socket.socket], int]
"""Under which uid the process at the other end connected."""


def uid_of(connection: socket.socket) -> int:
    """What the kernel says (SO_PEERCRED, unix(7)); the client cannot choose it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return int(uid)


def serve(path: str, source: StatusSource, verifier: messages.TokenVerifier, uid_of: UidOf = uid_of) -> threading.Thread:
    """Listen on `path` (made anew, mode 0600) and answer from a daemon thread. Raises OSError."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    Path(path).chmod(0o600)  # before the first connection can come
    listener.listen(8)
    os.register_at_fork(after_in_child=listener.close)
    thread = threading.Thread(target=_accept, args=(listener, source, verifier, uid_of), name="eagle-eye-probe", daemon=True)
    thread.start()
    return thread


def _accept(listener: socket.socket, source: StatusSource, verifier: messages.TokenVerifier, uid_of: UidOf) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            if listener.fileno() < 0:
                return  # closed
            threading.Event().wait(_PAUSE_S)  # no descriptor or memory is left: there may be soon
            continue
        with connection:
            try:
                _answer(connection, source, verifier, uid_of)
            except Exception:  # noqa: BLE001 - one bad client must not stop the probe
                _log.debug("a request on the probe's socket failed", exc_info=True)


def _answer(connection: socket.socket, source: StatusSource, verifier: messages.TokenVerifier, uid_of: UidOf) -> None:
    connection.settimeout(_TIMEOUT_S)
    try:
        message = _request(connection)
        if message["kind"] == "status":
            reply, act = messages.reply(True, **source.status()), None
        elif message["kind"] == "drill":
            reply, act = messages.reply(True), _drill(uid_of(connection), message, verifier)
        else:
            raise EagleEyeError(f"unknown request {message['kind']!r}; the probe knows status and drill")
    except EagleEyeError as error:
        reply, act = messages.reply(False, error=str(error)), None
    connection.sendall(reply)
    connection.close()  # answer before the act: afterwards this process may not be able to
    if act is not None:
        act()


def _request(connection: socket.socket) -> messages.ProbeMessage:
    lines = messages.Lines()
    while data := connection.recv(65536):
        for line in lines.feed(data):
            return messages.decode(line)
    raise EagleEyeError("the connection was closed before a whole line had come")


def _drill(uid: int, message: messages.ProbeMessage, verifier: messages.TokenVerifier) -> Callable[[], None]:
    """The act of a drill. Raises EagleEyeError if the client is not authorized, or the drill is not possible here."""
    if uid != os.getuid():
        raise EagleEyeError("a fault drill is allowed to the user of the training job only")
    if not verifier.accept(message.get("token")):
        raise EagleEyeError("no valid token: ask the launcher for one, each is good for one drill")
    return fault_drills.prepare(str(message.get("drill")))
