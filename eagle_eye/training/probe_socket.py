"""The probe's unix socket: a daemon thread that answers `status`, and does drills for the launcher's user alone."""

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
_PATIENCE_S = 1.0
_CREDENTIALS = struct.Struct("3i")


class ProbeState(Protocol):
    """What is needed of a monitor."""

    def status(self) -> dict[str, Any]: ...


UidOf = Callable[[socket.socket], int]
"""Under which uid the process at the other end connected."""


def uid_of(connection: socket.socket) -> int:
    """What the kernel says (SO_PEERCRED, unix(7)); the visitor cannot choose it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return int(uid)


def serve(path: str, voice: ProbeState, gate: messages.TokenVerifier, uid_of: UidOf = uid_of) -> threading.Thread:
    """Listen on `path` (made anew, mode 0600) and answer from a daemon thread. Raises OSError."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    Path(path).chmod(0o600)  # before the first connection can come
    listener.listen(8)
    os.register_at_fork(after_in_child=listener.close)
    thread = threading.Thread(target=_accept, args=(listener, voice, gate, uid_of), name="eagle-eye-probe", daemon=True)
    thread.start()
    return thread


def _accept(listener: socket.socket, voice: ProbeState, gate: messages.TokenVerifier, uid_of: UidOf) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # closed
        with connection:
            try:
                _answer(connection, voice, gate, uid_of)
            except Exception:  # noqa: BLE001 - one bad visitor must not silence the probe
                _log.debug("a visitor of the probe's socket was sent away", exc_info=True)


def _answer(connection: socket.socket, voice: ProbeState, gate: messages.TokenVerifier, uid_of: UidOf) -> None:
    connection.settimeout(_PATIENCE_S)
    try:
        message = _request(connection)
        if message["kind"] == "status":
            reply, act = messages.reply(True, **voice.status()), None
        elif message["kind"] == "drill":
            reply, act = messages.reply(True), _drill(uid_of(connection), message, gate)
        else:
            raise EagleEyeError(f"unknown request {message['kind']!r}; the probe knows status and drill")
    except EagleEyeError as error:
        reply, act = messages.reply(False, error=str(error)), None
    connection.sendall(reply)
    connection.close()  # the answer is out before the act: afterwards nobody may be able to send it
    if act is not None:
        act()


def _request(connection: socket.socket) -> messages.Message:
    lines = messages.Lines()
    while data := connection.recv(65536):
        for line in lines.feed(data):
            return messages.decode(line)
    raise EagleEyeError("the connection was closed before a whole line had come")


def _drill(uid: int, message: messages.Message, gate: messages.TokenVerifier) -> Callable[[], None]:
    """The act, after the visitor has proved that it may ask for it and we know that it can be done."""
    if uid != os.getuid():
        raise EagleEyeError("drills are done for the user of the training job only")
    if not gate.take(message.get("token")):
        raise EagleEyeError("no valid token: ask the launcher for one, each is good for one drill")
    return fault_drills.prepare(str(message.get("drill")))
