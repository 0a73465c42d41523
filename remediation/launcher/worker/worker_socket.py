"""The unix socket to which the workers of a node talk, and anybody of the same user who wants a drill token."""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

from eagle_eye.errors import EagleEyeError, LaunchError
from eagle_eye.training import messages
from eagle_eye.writable_text import writable

log = logging.getLogger(__name__)

PATIENCE_S = 1.0
LOOK_S = 1.0
"""How often it is looked whether a socket is still there."""
Receive = Callable[[messages.ProbeMessage], bytes | None]
"""Takes one message; what it returns is the answer."""


class WorkerSocket:
    """Reads lines, hands messages on; a connection that speaks another language is closed."""

    def __init__(self, path: Path, receive: Receive) -> None:
        self._path = path
        self._receive = receive
        self._server: asyncio.Server | None = None

    def check_free(self) -> None:
        """Raises LaunchError while another launcher listens here: its workers, rings and listing would be mixed with ours."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.settimeout(PATIENCE_S)
            try:
                caller.connect(str(self._path))
            except OSError:
                return
        raise LaunchError(
            f"another launcher listens on {self._path}: choose another run name (--run-id); "
            "two nodes on one machine need a --run-dir each"
        )

    async def start(self) -> None:
        """Listen. A socket that a killed launcher left behind is replaced. Raises LaunchError where it is another user's."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._path.unlink(missing_ok=True)
        except PermissionError:
            raise LaunchError(f"{self._path} is another user's: choose another run name (--run-id), or a --run-dir of your own") from None
        self._server = await asyncio.start_unix_server(self._serve, str(self._path), limit=messages.LONGEST)
        self._path.chmod(0o600)

    async def keep(self) -> None:
        """Listen anew where the socket was taken away; until cancelled. Raises OSError, LaunchError."""
        await keep_listening(self._path, self.start, lambda: self._server)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not same_user(writer.get_extra_info("socket")):
                return
            while line := await reader.readline():
                answer = self._receive(writable(messages.decode(line)))
                if answer is not None:
                    writer.write(answer)
                    await writer.drain()
        except (OSError, ValueError, EagleEyeError) as error:
            log.warning("a message on %s was not understood: %s", self._path, error)
        except asyncio.CancelledError:  # the loop ends; the streams module would log it as an error
            pass
        finally:
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                writer.close()


async def keep_listening(path: Path, start: Callable[[], Awaitable[None]], server: Callable[[], asyncio.Server | None]) -> None:
    """Whoever tidies up a run directory would leave the workers that are started next without a launcher. Those that are connected stay so."""
    while True:
        await asyncio.sleep(LOOK_S)
        if not path.exists():
            log.warning("%s is gone: somebody has tidied up its directory; it is made again", path)
            before = server()
            await start()
            if before is not None:
                before.close()


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a unix socket belongs to our user."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(uid == os.getuid())
