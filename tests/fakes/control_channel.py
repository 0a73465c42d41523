"""Both ends of a control channel: a server whose handler records what it receives, and a launcher's handler that carries out commands."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import structs

from eagle_eye.errors import PermanentError, Stale, TemporaryError
from eagle_eye.rpc.control_client import ControlClient
from eagle_eye.rpc.control_messages import (
    Body,
    Command,
    ConnectionState,
    Decision,
    OperatorCommand,
    Peer,
    PendingPlansQuery,
    ReleaseNodeCommand,
)
from eagle_eye.rpc.control_server import ControlServer

JOB = "tenant/gpt/run1"
LAUNCHER = Peer(role="launcher", node="node-a", job=JOB, incarnation="first")


class RecordingHandler:
    """A handler that records what it received and answers a few requests."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str, str]] = []
        self.never = asyncio.Event()

    def opened(self, peer: Peer) -> None:
        self.received.append(("opened", peer.node, peer.incarnation))

    def lost(self, peer: Peer, reason: str) -> None:
        self.received.append(("lost", peer.node, reason))

    async def request(self, peer: Peer, kind: str, body: Body) -> Body:
        if kind == "wait":
            await self.never.wait()
            self.received.append(("waited", peer.node, peer.incarnation))
        if kind == "later":
            raise TemporaryError("not everybody is there", delay=0.25)
        if kind == "bug":
            raise ValueError("a mistake")
        if kind == "unspeakable":
            return {"value": object()}
        return {"kind": kind, "from": peer.node, **body}

    def count(self, what: str) -> int:
        return sum(1 for word, *_ in self.received if word == what)


class Leader(RecordingHandler):
    """A handler that the operator may talk to."""

    async def decide(self, decision: Decision, approved: bool) -> Body:
        if decision.plan == "gone":
            raise Stale("plan gone was replaced")
        tenant = {"tenant": decision.tenant} if decision.tenant else {}
        return {"plan": decision.plan, "person": decision.person, "approved": approved, **tenant}

    async def release(self, release: ReleaseNodeCommand) -> Body:
        return {"released": release.node}

    async def status(self) -> Body:
        return {"mode": "observe"}

    async def pending_plans(self, question: PendingPlansQuery) -> Body:
        return {"plans": [], **structs.asdict(question)}

    async def order(self, order: OperatorCommand) -> Body:
        return {"kind": type(order).__name__, **structs.asdict(order)}


class Hands:
    """A launcher's side: carries out commands and records them."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.authorization = asyncio.Event()
        self.states: list[ConnectionState] = []

    async def obey(self, command: Command) -> Body:
        if command.action == "slow":
            await self.authorization.wait()
        if command.action == "impossible":
            raise PermanentError("no such worker")
        if command.action == "busy":
            raise TemporaryError("busy", delay=0.5)
        self.done.append(command.action)
        return {"did": command.action, "times": len(self.done)}


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def served(handler: RecordingHandler, address: str = "127.0.0.1:0", **settings: Any) -> AsyncIterator[ControlServer]:
    server = ControlServer(handler, address, **{"term": 1, "heartbeat_s": 0.1, "lease_s": 1.0, **settings})
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def joined(address: str | Callable[[], str], hands: Hands | None = None, **settings: Any) -> AsyncIterator[ControlClient]:
    hands = hands or Hands()
    peer = settings.pop("peer", LAUNCHER)
    client = ControlClient(address, peer, on_command=hands.obey, on_state=hands.states.append, **settings)
    await client.start()
    try:
        await until(lambda: client.connected)
        yield client
    finally:
        await client.stop()


def at(server: ControlServer) -> str:
    return f"127.0.0.1:{server.port}"


def run(test: Awaitable[None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(within())
