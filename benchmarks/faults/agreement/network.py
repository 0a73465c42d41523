"""A simulated network of processes: links that lose, delay and cut messages one way or both, and the control channel's sessions over it."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from eagle_eye.errors import EagleEyeError, TemporaryError
from eagle_eye.rpc.control_client import OnCommand, OnState, ignore_state, refuse_all
from eagle_eye.rpc.control_messages import SILENT, Body, Command, ConnectionState, Peer
from eagle_eye.rpc.control_server import Handler
from eagle_eye.rpc.protobuf_codec import decode_body, encode_body

from .virtual_time import VirtualLoop, VirtualTime

LATENCY_S = 0.001
RETRANSMIT_S, LONGEST_LATE_S = 0.2, 3.0
BEATS = 5
"""In one lease."""
RETRY_S = 0.3


class Links:
    """What happens to what one process sends to another one."""

    def __init__(self, time: VirtualTime, chance: random.Random) -> None:
        self._time = time
        self._chance = chance
        self.cut: set[tuple[str, str]] = set()
        """(from, to)."""
        self.loss = 0.0
        """Of messages; what carries a session is sent again, and arrives late."""
        self.delay_s = 0.0
        """At most, on top of the latency."""

    def whole(self, one: str, other: str) -> bool:
        return (one, other) not in self.cut and (other, one) not in self.cut

    def send(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        """Unless the link is cut. A packet that is lost is sent again by the kernel, and arrives late."""
        if (source, target) in self.cut:
            return
        late_s, again_s = 0.0, RETRANSMIT_S
        while self._chance.random() < self.loss and late_s < LONGEST_LATE_S:
            late_s, again_s = late_s + again_s, 2 * again_s
        self._time.call_later(LATENCY_S + late_s + self._chance.random() * self.delay_s, arrive)


class Process:
    """Something that has a loop, lives and may be paused."""

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self.loop = loop
        self.alive = True
        self.held: list[Callable[[], None]] = []

    def deliver(self, work: Callable[[], None]) -> None:
        """What arrives at a paused process is read when it thaws; at one that is gone never."""
        if self.alive:
            self.loop.call_soon(work)

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return self.loop.create_task(work)


class Session:
    """Between a client and a server. Each end knows by itself when it has heard nothing for a lease."""

    def __init__(self, client: "SimulatedClient", server: "SimulatedServer", lease_s: float) -> None:
        self.client, self.server, self.lease_s = client, server, lease_s
        now = client.process.loop.time()
        self.heard = {True: now, False: now}
        """True: by the client."""
        self.open = {True: True, False: True}
        self.answers: dict[int, asyncio.Future[Any]] = {}

    def end(self, at_client: bool, reason: str) -> None:
        """One end closes; the other one hears of it if it can."""
        if not self.open[at_client]:
            return
        self.open[at_client] = False
        (self.client.ended if at_client else self.server.ended)(self, reason)
        here, there = (self.client.process, self.server.process) if at_client else (self.server.process, self.client.process)
        self.client.network.links.send(here.name, there.name, lambda: there.deliver(lambda: self.end(not at_client, "the connection was closed")))


class SimulatedServer:
    """As `ControlServer`."""

    def __init__(self, network: "SimulatedNetwork", handler: Handler, address: str) -> None:
        self.network, self.process = network, network.process
        self.handler = handler
        self.host, _, port = address.rpartition(":")
        self.port = int(port) or 1
        self.sessions: dict[tuple[str, str, str], Session] = {}

    async def start(self) -> None:
        self.network.servers[f"{self.host}:{self.port}"] = self

    async def stop(self) -> None:
        self.network.servers.pop(f"{self.host}:{self.port}", None)
        for session in tuple(self.sessions.values()):
            session.end(False, "the server stopped")

    @property
    def peers(self) -> tuple[Peer, ...]:
        return tuple(session.client.peer for session in self.sessions.values())

    def peer(self, role: str, node: str, job: str = "") -> Peer | None:
        session = self.sessions.get((role, node, job))
        return session.client.peer if session is not None else None

    def admit(self, session: Session) -> None:
        peer = session.client.peer
        before = self.sessions.pop(peer.key, None)
        if before is not None:
            before.open[False] = False
            self.handler.lost(peer, "a newer session")
        self.sessions[peer.key] = session
        self.handler.opened(peer)

    def ended(self, session: Session, reason: str) -> None:
        peer = session.client.peer
        if self.sessions.get(peer.key) is session:
            del self.sessions[peer.key]
            self.handler.lost(peer, reason)

    async def command(self, peer: Peer, command: Command, timeout: float) -> Body:
        session = self.sessions.get(peer.key)
        if session is None:
            raise TemporaryError(f"no session to the {peer}: {command.action!r} was not sent")
        sent = msgspec.structs.replace(command, arguments=decode_body(encode_body(command.arguments)))

        async def obey() -> Body:
            return await session.client.on_command(sent)

        return await exchange(self.network.links, self.process, session.client.process, obey, timeout, lambda: session.open[False])


async def exchange(
    links: Links, here: Process, there: Process, work: Callable[[], Coroutine[Any, Any, Body]], timeout: float, lives: Callable[[], bool]
) -> Body:
    """Ask the other process and wait for its answer. Raises what it raised; TemporaryError if none comes."""
    future: asyncio.Future[Body] = asyncio.get_running_loop().create_future()

    async def answer() -> None:
        try:
            result: Body | EagleEyeError = decode_body(encode_body(await work()))
        except EagleEyeError as error:
            result = error
        links.send(there.name, here.name, lambda: here.deliver(lambda: settle(result)))

    def settle(result: Body | EagleEyeError) -> None:
        if future.done():
            return
        if isinstance(result, EagleEyeError):
            future.set_exception(result)
        else:
            future.set_result(result)

    links.send(here.name, there.name, lambda: there.deliver(lambda: _begin(there, answer())))
    try:
        async with asyncio.timeout(timeout):
            while not future.done():
                await asyncio.wait({future}, timeout=0.2)
                if not lives():
                    break
    except TimeoutError:
        future.cancel()
        raise TemporaryError(f"{there.name} did not answer within {timeout:g} s") from None
    if not future.done():
        future.cancel()
        raise TemporaryError(f"the session to {there.name} ended before it answered")
    return future.result()


def _begin(process: Process, work: Coroutine[Any, Any, None]) -> None:
    process.spawn(work)


class SimulatedClient:
    """As `ControlClient`."""

    def __init__(self, network: "SimulatedNetwork", address: str, peer: Peer, on_command: OnCommand, on_state: OnState, welcome_s: float) -> None:
        self.network, self.process = network, network.process
        self.address, self.peer, self.welcome_s = address, peer, welcome_s
        self.on_command, self.on_state = on_command, on_state
        self.session: Session | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self.session is not None and self.session.open[True]

    async def start(self) -> None:
        self._task = self.process.spawn(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.session is not None:
            self.session.end(True, "closed")

    def ended(self, session: Session, reason: str) -> None:
        if self.session is session:
            self.session = None
            self.on_state(ConnectionState(connected=False, address=self.address, term=0, reason=reason))

    async def request(self, kind: str, body: Body, timeout: float = 5.0) -> Body:
        began = self.network.time.now_s
        while not self.connected:
            if self.network.time.now_s - began >= timeout:
                raise TemporaryError(f"no session to {self.address}: {kind!r} waited {timeout:g} s")
            await asyncio.sleep(min(0.02, timeout))
        session = self.session
        assert session is not None
        asked = decode_body(encode_body(body))

        async def ask() -> Body:
            return await session.server.handler.request(self.peer, kind, asked)

        left = max(timeout - (self.network.time.now_s - began), 0.01)
        return await exchange(self.network.links, self.process, session.server.process, ask, left, lambda: session.open[True])

    async def _run(self) -> None:
        while True:
            opened = self.process.loop.create_future()
            self._connect(opened)
            try:
                async with asyncio.timeout(self.welcome_s):
                    self.session = await opened
            except TimeoutError:
                await asyncio.sleep(RETRY_S)
                continue
            self.on_state(ConnectionState(connected=True, address=self.address, term=0))
            await self._beat(self.session)
            await asyncio.sleep(RETRY_S / 2)

    def _connect(self, opened: "asyncio.Future[Session]") -> None:
        """A handshake there and back."""

        def arrive() -> None:
            server = self.network.servers.get(self.address)
            if server is None or not server.process.alive:
                return
            server.process.deliver(lambda: welcome(server))

        def welcome(server: "SimulatedServer") -> None:
            session = Session(self, server, self.network.lease_s)

            def done() -> None:
                if opened.done() or not session.open[False]:
                    return
                opened.set_result(session)

            server.admit(session)
            server.process.spawn(beats(session, False))
            self.network.links.send(server.process.name, self.process.name, lambda: self.process.deliver(done))

        target = self.network.servers.get(self.address)
        name = target.process.name if target is not None else self.network.owner_of(self.address)
        self.network.links.send(self.process.name, name, arrive)

    async def _beat(self, session: Session) -> None:
        session.heard[True] = self.network.time.now_s
        await beats(session, True)


async def beats(session: Session, at_client: bool) -> None:
    """Send heartbeats, and end this end when nothing was heard for a lease. A pause of this process counts as nobody's silence."""
    network = session.client.network
    here, there = (session.client.process, session.server.process) if at_client else (session.server.process, session.client.process)
    beat_s, looked = session.lease_s / BEATS, network.time.now_s

    def heard() -> None:
        session.heard[not at_client] = network.time.now_s

    while session.open[at_client]:
        network.links.send(here.name, there.name, lambda: there.deliver(heard))
        await asyncio.sleep(beat_s)
        now = network.time.now_s
        if now - looked > 3 * beat_s:
            session.heard[at_client] = now
        elif now - session.heard[at_client] > session.lease_s:
            session.end(at_client, f"{SILENT} {session.lease_s:g} s")
        looked = now


class SimulatedNetwork:
    """What one process sees of the network: makes its servers and clients."""

    def __init__(self, time: VirtualTime, links: Links, process: Process, servers: dict[str, SimulatedServer], lease_s: float) -> None:
        self.time, self.links, self.process, self.servers, self.lease_s = time, links, process, servers, lease_s

    def owner_of(self, address: str) -> str:
        """Node at an address at which nothing listens now."""
        return address.rpartition(":")[0]

    def server(self, handler: Handler, address: str) -> SimulatedServer:
        return SimulatedServer(self, handler, address)

    def client(
        self, address: str, peer: Peer, *, on_command: OnCommand = refuse_all, on_state: OnState = ignore_state, welcome_s: float = 5.0
    ) -> SimulatedClient:
        return SimulatedClient(self, address, peer, on_command, on_state, welcome_s)
