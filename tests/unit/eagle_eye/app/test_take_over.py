"""A standby that cannot take over, a former leader that is only stopped, and a ledger whose terms were lost."""

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.app.serving import lead_role
from eagle_eye.app.serving.lead_role import LeadRole
from eagle_eye.app.serving.leader_election import LEASE, new_holder
from eagle_eye.app.serving.process_context import ProcessContext
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import ControlError, StreamError
from eagle_eye.ledger import Ledger
from eagle_eye.ports import free_port
from eagle_eye.rpc.command_fence import CommandFence
from eagle_eye.rpc.control_client import ControlClient
from eagle_eye.rpc.control_messages import Peer
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.types import Notice

PATIENCE_S = 60.0
LAUNCHER = Peer(role="launcher", node="node-a", job="tenant/gpt/run1", incarnation="first", pid=1)


class Server:
    """The role `lead` of one process, on a ledger that others may hold."""

    def __init__(self, directory: Path) -> None:
        self.told: list[Notice] = []
        self.clock, self.stop = SystemClock(), threading.Event()
        self.ledger = Ledger.open(directory / "ledger.sqlite")
        notices: Any = type("Notices", (), {"put": staticmethod(self.told.append)})
        self.context = ProcessContext(
            config=Config(state_dir=str(directory)), clock=self.clock, ledger=self.ledger, stream=MemoryStream(clock=self.clock), incarnation="i", notices=notices
        )

    @property
    def names(self) -> list[str]:
        return [notice.name for notice in self.told]

    def until_it_leads(self, listen: str = "127.0.0.1:0", meanwhile: Callable[[], None] = lambda: None) -> int:
        """Its term. `meanwhile` is called again and again until then. Raises what ends the role."""

        async def lead() -> int:
            running = asyncio.create_task(LeadRole(self.context, listen, 0.2, self.stop).run())
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while self.context.leading is None and not running.done():
                        meanwhile()
                        await asyncio.sleep(0.01)
                return self.context.leading.term if self.context.leading is not None else 0
            finally:
                self.stop.set()
                await running

        return asyncio.run(lead())


@pytest.fixture
def server(tmp_path: Path, empty_ledger: Path) -> Iterator[Server]:
    (tmp_path / "ledger.sqlite").write_bytes(empty_ledger.read_bytes())
    made = Server(tmp_path)
    yield made
    made.ledger.close()


def stands_by_first(server: Server) -> None:
    """Another server holds the lease for a moment."""
    assert server.ledger.acquire(LEASE, new_holder(), 0.5, server.clock.now()) == 1


def test_a_standby_whose_port_is_taken_stands_by_again(server: Server) -> None:
    stands_by_first(server)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert server.until_it_leads(address, lambda: other.close() if "leader.failing" in server.names else None) > 1
    assert server.names == ["leader.failing", "leader.elected"]
    assert "it is in use" in server.told[0].message


@pytest.mark.parametrize("error", [OSError(errno.EROFS, "Read-only file system"), OSError(errno.ENOSPC, "No space left on device"), StreamError("held")])
def test_a_standby_that_cannot_open_its_spool_stands_by_again(server: Server, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    stands_by_first(server)
    left = [error, error]

    def writer(*words: Any, **options: Any) -> SpooledWriter:
        if left:
            raise left.pop()
        return SpooledWriter(*words, **options)

    monkeypatch.setattr(lead_role, "SpooledWriter", writer)
    assert server.until_it_leads() > 1
    assert server.names == ["leader.failing", "leader.elected"], "told once"


def test_a_server_that_cannot_lead_at_its_start_says_so_and_ends(server: Server) -> None:
    """A port that is taken is the mistake of whoever has just started it."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ControlError, match="it is in use"):
            server.until_it_leads(f"127.0.0.1:{other.getsockname()[1]}")


def test_what_is_a_mistake_of_ours_still_ends_a_standby(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    stands_by_first(server)

    def writer(*_: Any, **__: Any) -> SpooledWriter:
        raise TypeError("a mistake")

    monkeypatch.setattr(lead_role, "SpooledWriter", writer)
    with pytest.raises(TypeError):
        server.until_it_leads()


def test_launchers_of_a_ledger_that_was_lost_are_led_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new ledger gives term 1, the launchers of running jobs have seen 7: they were refused for ever."""
    monkeypatch.setattr(lead_role, "FIRST_RISE_S", 0.2)
    address = f"127.0.0.1:{free_port('127.0.0.1')}"

    async def play() -> tuple[int, int]:
        running = asyncio.create_task(LeadRole(server.context, address, 0.2, server.stop).run())
        client = ControlClient(address, LAUNCHER, fence=CommandFence(term=7))
        await client.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not client.connected:
                    await asyncio.sleep(0.01)
            return client._fence.term, server.ledger.holder_of(LEASE).term  # type: ignore[union-attr]
        finally:
            await client.stop()
            server.stop.set()
            await running

    assert asyncio.run(play()) == (8, 8)
    assert server.names == ["leader.elected", "leader.superseded", "leader.elected"]


def test_a_peer_that_invents_terms_ends_fewer_and_fewer_of_ours(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lead_role, "FIRST_RISE_S", 0.5)
    waited: list[float] = []

    class Term:
        def __init__(self, *_: Any) -> None:
            pass

        async def run(self, stop: threading.Event, begun: threading.Event, rise_s: float) -> int:
            waited.append(rise_s)
            if len(waited) == 20:
                stop.set()
            return len(waited)

    monkeypatch.setattr(lead_role, "LeaderTerm", Term)
    asyncio.run(LeadRole(server.context, "", 0.2, server.stop).run())
    assert waited[:4] == [0.5, 1.0, 2.0, 4.0]
    assert waited[-1] == lead_role.LONGEST_RISE_S
