"""The control channel over real loopback gRPC, between event loops and between processes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.clock import FakeClock
from eagle_eye.errors import ControlError, PermanentError, Stale, TemporaryError
from eagle_eye.rpc.client import ControlClient, call
from eagle_eye.rpc.fence import Fence
from eagle_eye.rpc.messages import Body, Command, Connection, Decision, Peer, Release
from eagle_eye.rpc.server import REQUESTS_PER_SESSION, ControlServer

JOB = "tenant/gpt/run1"
LAUNCHER = Peer(role="launcher", node="node-a", job=JOB, boot="first")

CHILD = """
import asyncio, os, sys
from eagle_eye.rpc.client import ControlClient
from eagle_eye.rpc.messages import Peer

async def main():
    peer = Peer(role="launcher", node="node-a", job="tenant/gpt/run1", boot="child", pid=os.getpid())
    await ControlClient(sys.argv[1], peer).start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Office:
    """A handler that writes down what it was told and answers a few requests."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.never = asyncio.Event()

    def opened(self, peer: Peer) -> None:
        self.told.append(("opened", peer.node, peer.boot))

    def lost(self, peer: Peer, reason: str) -> None:
        self.told.append(("lost", peer.node, reason))

    async def request(self, peer: Peer, kind: str, body: Body) -> Body:
        if kind == "wait":
            await self.never.wait()
            self.told.append(("waited", peer.node, peer.boot))
        if kind == "later":
            raise TemporaryError("not everybody is there", delay=0.25)
        if kind == "bug":
            raise ValueError("a mistake")
        if kind == "unspeakable":
            return {"value": object()}
        return {"kind": kind, "from": peer.node, **body}

    def count(self, what: str) -> int:
        return sum(1 for word, *_ in self.told if word == what)


class Leader(Office):
    """A handler that the operator may talk to."""

    async def decide(self, decision: Decision, approved: bool) -> Body:
        if decision.plan == "gone":
            raise Stale("plan gone was replaced")
        return {"plan": decision.plan, "person": decision.person, "approved": approved}

    async def release(self, release: Release) -> Body:
        return {"released": release.node}

    async def status(self) -> Body:
        return {"mode": "observe"}


class Hands:
    """A launcher's side: does what it is told, and remembers."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.gate = asyncio.Event()
        self.states: list[Connection] = []

    async def obey(self, command: Command) -> Body:
        if command.action == "slow":
            await self.gate.wait()
        if command.action == "impossible":
            raise PermanentError("no such worker")
        if command.action == "busy":
            raise TemporaryError("busy", delay=0.5)
        self.done.append(command.action)
        return {"did": command.action, "times": len(self.done)}


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def served(handler: Office, address: str = "127.0.0.1:0", **settings: Any) -> AsyncIterator[ControlServer]:
    server = ControlServer(handler, address, **{"term": 1, "beat_s": 0.1, "lease_s": 1.0, **settings})
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


@pytest.fixture
def child() -> Iterator[Callable[[str], "subprocess.Popen[bytes]"]]:
    children: list[subprocess.Popen[bytes]] = []

    def begin(address: str) -> "subprocess.Popen[bytes]":
        children.append(subprocess.Popen([sys.executable, "-c", CHILD, address]))
        return children[-1]

    yield begin
    for process in children:
        process.kill()
        process.wait()


def test_requests_are_answered_and_failures_keep_their_kind() -> None:
    async def test() -> None:
        async with served(Office()) as server, joined(at(server)) as client:
            assert await client.request("join", {"slots": 4}) == {"kind": "join", "from": "node-a", "slots": 4}
            with pytest.raises(TemporaryError, match="not everybody") as told:
                await client.request("later", {})
            assert told.value.delay == 0.25
            with pytest.raises(ControlError, match="ValueError in the handler of 'bug': a mistake"):
                await client.request("bug", {})
            with pytest.raises(ControlError, match="cannot hold"):
                await client.request("unspeakable", {})
            with pytest.raises(TemporaryError, match="did not answer 'wait' within"):
                await client.request("wait", {}, timeout=0.1)
            assert (await client.request("join", {}))["kind"] == "join"  # the line lives on

    run(test())


def test_commands_are_acknowledged_with_what_they_led_to() -> None:
    async def test() -> None:
        async with served(Office()) as server, joined(at(server)):
            assert (await server.command(LAUNCHER, Command(action="start", job=JOB), 5))["did"] == "start"
            with pytest.raises(PermanentError, match="no such worker"):
                await server.command(LAUNCHER, Command(action="impossible", job=JOB), 5)
            with pytest.raises(TemporaryError, match="busy") as told:
                await server.command(LAUNCHER, Command(action="busy", job=JOB), 5)
            assert told.value.delay == 0.5
            with pytest.raises(TemporaryError, match="did not answer 'slow' within"):
                await server.command(LAUNCHER, Command(action="slow", job=JOB), 0.1)

    run(test())


def test_a_command_to_nobody_or_to_an_earlier_life_is_not_sent() -> None:
    async def test() -> None:
        hands = Hands()
        async with served(Office()) as server, joined(at(server), hands):
            with pytest.raises(TemporaryError, match="no session to the launcher on node-b"):
                await server.command(Peer(role="launcher", node="node-b", job=JOB), Command(action="stop"), 5)
            earlier = Peer(role="launcher", node="node-a", job=JOB, boot="zeroth")
            with pytest.raises(ControlError, match="started anew"):
                await server.command(earlier, Command(action="stop"), 5)
            anyone = Peer(role="launcher", node="node-a", job=JOB)
            assert (await server.command(anyone, Command(action="start"), 5))["did"] == "start"
            assert hands.done == ["start"]

    run(test())


def test_commands_of_a_job_wait_for_one_another_but_a_dump_runs_beside() -> None:
    async def test() -> None:
        hands = Hands()
        async with served(Office()) as server, joined(at(server), hands):
            slow = asyncio.create_task(server.command(LAUNCHER, Command(action="slow", job=JOB), 10))
            start = asyncio.create_task(server.command(LAUNCHER, Command(action="start", job=JOB), 10))
            await server.command(LAUNCHER, Command(action="dump", job=JOB), 10)
            await server.command(LAUNCHER, Command(action="start", job="tenant/other/run1"), 10)
            assert hands.done == ["dump", "start"]
            hands.gate.set()
            await asyncio.gather(slow, start)
            assert hands.done == ["dump", "start", "slow", "start"]

    run(test())


def test_a_command_that_comes_twice_is_done_once_even_by_a_restarted_launcher(tmp_path: Path) -> None:
    async def test() -> None:
        order = Command(action="restart", job=JOB, leader_term=1, epoch=1, plan="plan-1", step="restart")
        hands = Hands()
        async with served(Office()) as server:
            async with joined(at(server), hands, fence=Fence(tmp_path)):
                both = await asyncio.gather(*(server.command(LAUNCHER, order, 5) for _ in range(2)))
            assert both == [{"did": "restart", "times": 1}] * 2
            again = Peer(role="launcher", node="node-a", job=JOB, boot="second")
            async with joined(at(server), hands, fence=Fence(tmp_path), peer=again):
                assert await server.command(again, order, 5) == both[0]
            assert hands.done == ["restart"]

    run(test())


def test_a_command_under_way_when_its_session_breaks_is_done_once(tmp_path: Path) -> None:
    async def test() -> None:
        order = Command(action="slow", job=JOB, leader_term=1, plan="plan-1", step="slow")
        hands = Hands()
        async with served(Office()) as server, joined(at(server), hands, fence=Fence(tmp_path)) as client:
            first = asyncio.create_task(server.command(LAUNCHER, order, 10))
            await server.command(LAUNCHER, Command(action="dump"), 5)  # the first has begun by now
            client.reconnect("try another way")
            with pytest.raises(TemporaryError, match="ended before it answered"):
                await first
            await until(lambda: client.connected)
            hands.gate.set()
            assert (await server.command(LAUNCHER, order, 10))["did"] == "slow"
            assert hands.done.count("slow") == 1

    run(test())


def test_a_request_under_way_when_its_session_breaks_is_done_to_its_end() -> None:
    async def test() -> None:
        office = Office()
        async with served(office) as server:
            async with joined(at(server)) as client:
                with pytest.raises(TemporaryError, match="did not answer"):
                    await client.request("wait", {}, timeout=0.1)
            await until(lambda: office.count("lost"))
            office.never.set()
            await until(lambda: office.count("waited"))

    run(test())


def test_a_peer_that_asks_too_much_is_told_to_come_again() -> None:
    async def test() -> None:
        office = Office()
        async with served(office) as server, joined(at(server)) as client:
            many = [asyncio.create_task(client.request("wait", {}, timeout=20)) for _ in range(REQUESTS_PER_SESSION)]
            await asyncio.sleep(0)  # they are sent first
            with pytest.raises(TemporaryError, match="257 requests are under way"):
                await client.request("join", {})
            office.never.set()
            await asyncio.gather(*many)

    run(test())


def test_a_clean_close_is_a_loss_at_once() -> None:
    async def test() -> None:
        office = Office()
        async with served(office, lease_s=600) as server:
            async with joined(at(server)):
                assert office.told == [("opened", "node-a", "first")]
            await until(lambda: office.count("lost"))
            assert server.peers == ()

    run(test())


def test_a_killed_client_is_lost_at_once(child: Callable[[str], "subprocess.Popen[bytes]"]) -> None:
    async def test() -> None:
        office = Office()
        async with served(office, lease_s=600) as server:  # so no lease can be what noticed
            process = child(at(server))
            await until(lambda: office.count("opened"), 20)
            os.kill(process.pid, signal.SIGKILL)
            await until(lambda: office.count("lost"), 5)

    run(test())


def test_a_stopped_client_is_lost_after_the_lease_and_comes_back(
    child: Callable[[str], "subprocess.Popen[bytes]"],
) -> None:
    async def test() -> None:
        office = Office()
        async with served(office) as server:
            process = child(at(server))
            await until(lambda: office.count("opened"), 20)
            os.kill(process.pid, signal.SIGSTOP)
            await until(lambda: office.count("lost"), 10)
            assert office.told[-1] == ("lost", "node-a", "silent for longer than 1 s")
            os.kill(process.pid, signal.SIGCONT)
            await until(lambda: office.count("opened") == 2, 10)

    run(test())


def test_a_server_that_overslept_calls_nobody_silent() -> None:
    async def test() -> None:
        office, clock = Office(), FakeClock()
        async with served(office, clock=clock) as server, joined(at(server)) as client:
            clock.advance(600)  # as if it had been stopped: the lease is 1 s
            watched = asyncio.get_running_loop().time() + 0.5  # several of its ticks
            await until(lambda: asyncio.get_running_loop().time() > watched)
            assert client.connected
            assert office.count("lost") == 0

    run(test())


def test_a_client_notices_a_server_that_is_silent_though_connected() -> None:
    async def test() -> None:
        hands, clock = Hands(), FakeClock()
        async with served(Office()) as server, joined(at(server), hands, clock=clock):
            server._take = lambda session, up: None  # type: ignore[method-assign]  # deaf: no beat is answered
            while all(state.connected for state in hands.states):
                clock.advance(0.1)
                await asyncio.sleep(0.05)
            assert "the server was silent for longer than 1 s" in hands.states[1].reason

    run(test())


def test_a_newer_life_replaces_the_older_one() -> None:
    async def test() -> None:
        office = Office()
        second = Peer(role="launcher", node="node-a", job=JOB, boot="second")
        async with served(office) as server, joined(at(server)) as first:
            client = ControlClient(at(server), second)
            await client.start()
            await until(lambda: ("opened", "node-a", "second") in office.told)
            assert office.told[:3] == [
                ("opened", "node-a", "first"),
                ("lost", "node-a", "it was started anew"),
                ("opened", "node-a", "second"),
            ]
            await first.stop()
            await client.stop()

    run(test())


def test_the_same_life_connecting_again_is_no_loss() -> None:
    async def test() -> None:
        office = Office()
        async with served(office) as server, joined(at(server)):
            twin = ControlClient(at(server), LAUNCHER)  # the new connection, before the old one is seen to be dead
            await twin.start()
            await until(lambda: twin.connected)
            assert office.told == [("opened", "node-a", "first")]
            await twin.stop()

    run(test())


def test_a_restarted_server_of_a_higher_term_is_found_again() -> None:
    async def test() -> None:
        hands, fence = Hands(), Fence()
        async with served(Office(), term=1) as server:
            address = at(server)
            client = ControlClient(address, LAUNCHER, on_command=hands.obey, on_state=hands.states.append, fence=fence)
            await client.start()
            await until(lambda: client.connected)
        await until(lambda: not client.connected)
        with pytest.raises(TemporaryError, match="'join' waited"):
            await client.request("join", {}, timeout=0.05)
        async with served(Office(), address, term=2) as server:
            assert (await client.request("join", {}, timeout=10))["kind"] == "join"
            assert fence.term == 2
            news = [state.term for state in hands.states if state.connected]
            assert news == [1, 2]
            assert "the server" in hands.states[1].reason
            await client.stop()

    run(test())


def test_an_older_leader_is_refused_and_learns_it() -> None:
    async def test() -> None:
        hands = Hands()
        async with served(Office(), term=3) as server:
            client = ControlClient(at(server), LAUNCHER, on_state=hands.states.append, fence=Fence(term=5))
            await client.start()
            await until(lambda: hands.states)
            assert not client.connected
            assert "has seen leader term 5, this leader has 3" in hands.states[0].reason
            assert server.superseded == 5
            await client.stop()

    run(test())


def test_of_two_commanders_the_older_one_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        hands, fence = Hands(), Fence(tmp_path)
        old, new = Command(action="start", job=JOB, leader_term=1), Command(action="start", job=JOB, leader_term=2)
        async with (
            served(Office(), term=1) as before,
            served(Office(), term=2) as after,
            joined(at(before), hands, fence=fence),
        ):
            await before.command(LAUNCHER, old, 5)
            async with joined(at(after), hands, fence=fence):
                await after.command(LAUNCHER, new, 5)
                with pytest.raises(Stale, match="leader term 1 is older than term 2"):
                    await before.command(LAUNCHER, old, 5)
        assert hands.done == ["start", "start"]
        assert Fence(tmp_path).term == 2

    run(test())


def test_a_coordinator_without_a_leader_is_fenced_by_the_epoch() -> None:
    async def test() -> None:
        fence = Fence(term=7)
        async with served(Office(), term=0) as server, joined(at(server), fence=fence):
            await server.command(LAUNCHER, Command(action="prepare", job=JOB, epoch=4), 5)
            with pytest.raises(Stale, match="epoch 3 of tenant/gpt/run1 is over: epoch 4"):
                await server.command(LAUNCHER, Command(action="prepare", job=JOB, epoch=3), 5)
            assert fence.term == 7

    run(test())


def test_a_client_follows_an_address_that_changes() -> None:
    async def test() -> None:
        async with served(Office()) as first, served(Office()) as second:
            where = [at(first)]
            async with joined(lambda: where[0]) as client:
                where[0] = at(second)
                client.reconnect("the coordinator moved")
                await until(lambda: second.peers and not first.peers)

    run(test())


def test_a_port_in_use_is_named_with_the_remedy() -> None:
    async def test() -> None:
        async with served(Office()) as server:
            intruder = ControlServer(Office(), at(server), term=2)
            try:
                with pytest.raises(ControlError, match=rf"cannot listen on {at(server)}: it is in use.*another port"):
                    await intruder.start()
            finally:
                await intruder.stop()

    run(test())


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.0.0.1:7000", "[::]:0", "node-a:7000"])
def test_a_server_without_tls_stays_on_this_machine(address: str) -> None:
    with pytest.raises(ControlError, match="no TLS yet"):
        ControlServer(Leader.__new__(Leader), address, term=1)


def test_the_beat_slows_down_as_the_cluster_grows() -> None:
    server = ControlServer(Leader.__new__(Leader), term=1, beat_s=0.5, lease_s=3.0)
    assert (server.rhythm.beat_s, server.rhythm.lease_s) == (0.5, 3.0)
    server._sessions = dict.fromkeys([("agent", str(number), "") for number in range(20_000)])  # type: ignore[arg-type]
    assert (server.rhythm.beat_s, server.rhythm.lease_s) == (10.0, 60.0)


def test_the_operator_is_answered_over_unary_calls() -> None:
    async def test() -> None:
        async with served(Leader()) as server:
            word = Decision(plan="plan-1", person="ada")
            ask = asyncio.to_thread
            answer = await ask(call, at(server), "approve", word)
            assert answer == {"plan": "plan-1", "person": "ada", "approved": True}
            assert (await ask(call, at(server), "refuse", word))["approved"] is False
            assert await ask(call, at(server), "release", Release(node="n1", person="ada")) == {"released": "n1"}
            assert await ask(call, at(server), "status") == {"mode": "observe"}
            with pytest.raises(Stale, match="plan gone was replaced"):
                await ask(call, at(server), "approve", Decision(plan="gone", person="ada"))
            with pytest.raises(ControlError, match="cannot ask 'approve' with NoneType"):
                await ask(call, at(server), "approve")
            address = at(server)
        with pytest.raises(ControlError, match=r"no server answered 'status'.*eagle-eye server"):
            await ask(call, address, "status")

    run(test())


def test_who_is_no_leader_says_so_to_the_operator() -> None:
    async def test() -> None:
        async with served(Office()) as server:
            with pytest.raises(ControlError, match="is no leader and cannot status"):
                await asyncio.to_thread(call, at(server), "status")

    run(test())
