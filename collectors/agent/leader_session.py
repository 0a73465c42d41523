"""The agent's session on the leader's control channel: proof, beside its batches, that this node is alive."""

import asyncio
import logging
import threading

from eagle_eye.access.credentials import Credentials

log = logging.getLogger(__name__)


class LeaderSession:
    """Keeps a session to the leader open, in its own thread, until it is closed. Errors are logged, never raised."""

    def __init__(self, address: str, node: str, incarnation: str, pid: int, credentials: Credentials | None = None) -> None:
        """`address`: host:port; empty: no session is held."""
        self._credentials = credentials
        self._address, self._node, self._incarnation, self._pid = address, node, incarnation, pid
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader-session", daemon=True)

    def start(self) -> None:
        if self._address:
            self._thread.start()

    def close(self, timeout: float) -> None:
        """End the session; gives up waiting for it after `timeout` seconds."""
        self._closing.set()
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            asyncio.run(self._hold())
        except Exception:  # boundary: the agent works without a session
            log.exception("no session to %s is held any more", self._address)

    async def _hold(self) -> None:
        from eagle_eye.rpc.control_client import ControlClient
        from eagle_eye.rpc.control_messages import ConnectionState, Peer

        def on_state(connection: ConnectionState) -> None:
            if connection.connected:
                log.info("session to the leader at %s", connection.address)
            else:
                log.info("no session to the leader at %s: %s", connection.address, connection.reason)

        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        peer = Peer(role="agent", node=self._node, incarnation=self._incarnation, pid=self._pid)
        client = ControlClient(self._address, peer, on_state=on_state, credentials=self._credentials)
        await client.start()
        if not self._closing.is_set():
            await self._stop.wait()
        await client.stop()
