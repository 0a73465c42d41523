"""The launcher's ends of the control channel: its own server, and clients to the leader and to other launchers."""

from typing import Protocol

from eagle_eye.access.credentials import Credentials
from eagle_eye.clock import Clock
from eagle_eye.rpc.command_fence import CommandFence
from eagle_eye.rpc.control_client import ControlClient, OnCommand, OnState, ignore_state, refuse_all
from eagle_eye.rpc.control_messages import Body, Command, Peer
from eagle_eye.rpc.control_server import ControlServer, Handler

from .launcher_settings import LauncherSettings

BEAT_SHARE = 0.2
"""Of the lease: how often a beat is sent."""


class Client(Protocol):
    """As `ControlClient`."""

    @property
    def connected(self) -> bool: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def request(self, kind: str, body: Body, timeout: float = 5.0) -> Body: ...


class Server(Protocol):
    """As `ControlServer`."""

    port: int

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    @property
    def peers(self) -> tuple[Peer, ...]: ...
    def peer(self, role: str, node: str, job: str = "") -> Peer | None: ...
    async def command(self, peer: Peer, command: Command, timeout: float) -> Body: ...


class Network(Protocol):
    """Makes both. A simulation has one of its own."""

    def server(self, handler: Handler, address: str) -> Server: ...
    def client(
        self, address: str, peer: Peer, *, on_command: OnCommand = refuse_all, on_state: OnState = ignore_state, welcome_s: float = 5.0
    ) -> Client: ...  # fmt: skip


class ControlNetwork:
    """Over gRPC."""

    def __init__(self, settings: LauncherSettings, fence: CommandFence, clock: Clock, credentials: Credentials | None) -> None:
        self._settings = settings
        self._fence = fence
        self._clock = clock
        self._credentials = credentials

    def server(self, handler: Handler, address: str) -> ControlServer:
        lease_s = self._settings.lease_s
        return ControlServer(
            handler, address, term=0, heartbeat_s=lease_s * BEAT_SHARE, lease_s=lease_s, clock=self._clock,
            credentials=self._credentials, insecure=self._settings.insecure,
        )  # fmt: skip

    def client(
        self, address: str, peer: Peer, *, on_command: OnCommand = refuse_all, on_state: OnState = ignore_state, welcome_s: float = 5.0
    ) -> ControlClient:
        return ControlClient(
            address, peer, on_command=on_command, on_state=on_state, fence=self._fence, clock=self._clock, welcome_s=welcome_s,
            credentials=self._credentials,
        )  # fmt: skip


