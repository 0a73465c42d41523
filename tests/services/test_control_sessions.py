"""How a session over real loopback gRPC begins, is lost and comes back, between event loops and between processes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import grpc
import msgspec
import pytest

from eagle_eye.clock import FakeClock
from eagle_eye.errors import ControlError, TemporaryError
from eagle_eye.ports import free_port
from eagle_eye.rpc import control_pb2_grpc as stubs
from eagle_eye.rpc import control_server
from eagle_eye.rpc import protobuf_codec as wire
from eagle_eye.rpc.command_fence import CommandFence
from eagle_eye.rpc.control_client import ControlClient, call
from eagle_eye.rpc.control_messages import Hello, Peer
from eagle_eye.rpc.control_server import ControlServer
from fakes.control_channel import JOB, LAUNCHER, Hands, Leader, RecordingHandler, at, joined, run, served, until

CHILD = """
import asyncio, os, sys
from eagle_eye.rpc.control_client import ControlClient
from eagle_eye.rpc.control_messages import Peer

async def main():
    peer = Peer(role="launcher", node="node-a", job="tenant/gpt/run1", incarnation="child", pid=os.getpid())
    await ControlClient(sys.argv[1], peer).start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


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


def test_a_clean_close_is_a_loss_at_once() -> None:
    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler, lease_s=600) as server:
            async with joined(at(server)):
                assert handler.received == [("opened", "node-a", "first")]
            await until(lambda: handler.count("lost"))
            assert server.peers == ()

    run(test())


@pytest.mark.parametrize("name", ["n" * 401, "node\na forged line of the log", "node\0a"])
def test_a_name_that_no_log_or_ledger_holds_opens_no_session(name: str) -> None:
    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler, lease_s=600) as server, grpc.aio.insecure_channel(at(server)) as channel:
            for peer in (msgspec.structs.replace(LAUNCHER, node=name), msgspec.structs.replace(LAUNCHER, job=name)):
                session = stubs.ControlStub(channel).Session()
                await session.write(wire.encode_hello(Hello(peer=peer)))
                with pytest.raises(grpc.aio.AioRpcError, match="cannot be printed"):
                    await session.read()
            assert handler.received == []

    run(test())


def test_a_killed_client_is_lost_at_once(child: Callable[[str], "subprocess.Popen[bytes]"]) -> None:
    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler, lease_s=600) as server:  # so no lease can be what noticed
            process = child(at(server))
            await until(lambda: handler.count("opened"), 20)
            os.kill(process.pid, signal.SIGKILL)
            await until(lambda: handler.count("lost"), 5)
            assert [word for word, *_ in handler.received] == ["opened", "lost"]

    run(test())


def test_a_stopped_client_is_lost_after_the_lease_and_comes_back(
    child: Callable[[str], "subprocess.Popen[bytes]"],
) -> None:
    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler) as server:
            process = child(at(server))
            await until(lambda: handler.count("opened"), 20)
            os.kill(process.pid, signal.SIGSTOP)
            await until(lambda: handler.count("lost"), 10)
            assert handler.received[-1] == ("lost", "node-a", "silent for longer than 1 s")
            os.kill(process.pid, signal.SIGCONT)
            await until(lambda: handler.count("opened") == 2, 10)

    run(test())


def test_a_server_that_overslept_calls_nobody_silent() -> None:
    async def test() -> None:
        handler, clock = RecordingHandler(), FakeClock()
        async with served(handler, clock=clock) as server, joined(at(server)) as client:
            clock.advance(600)  # as if it had been stopped: the lease is 1 s
            watched = asyncio.get_running_loop().time() + 0.5  # several of its ticks
            await until(lambda: asyncio.get_running_loop().time() > watched)
            assert client.connected
            assert handler.count("lost") == 0

    run(test())


def test_a_client_notices_a_server_that_is_silent_though_connected() -> None:
    async def test() -> None:
        hands, clock = Hands(), FakeClock()
        async with served(RecordingHandler()) as server, joined(at(server), hands, clock=clock):
            server._take = lambda session, up: None  # type: ignore[method-assign]  # deaf: no beat is answered
            while all(state.connected for state in hands.states):
                clock.advance(0.1)
                await asyncio.sleep(0.05)
            assert "the server was silent for longer than 1 s" in hands.states[1].reason

    run(test())


class AnsweredCancellation:
    """gRPC's session, where a cancellation comes as the call is ended: it is answered with an error of the call."""

    def __init__(self) -> None:
        self.reading = asyncio.Event()
        self.greeted = 0

    async def write(self, _message: object) -> None:
        self.greeted += 1

    async def read(self) -> None:
        self.reading.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise asyncio.InvalidStateError("RPC already finished.") from None


def test_a_client_ends_though_its_cancellation_is_answered_with_an_error_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It went on trying for ever, and the launcher or agent that waited for its end hung."""

    class Stub:
        def __init__(self, _channel: object) -> None:
            self.Session = lambda: session

    async def test() -> None:
        nonlocal session
        session = AnsweredCancellation()
        client = ControlClient(f"127.0.0.1:{free_port()}", LAUNCHER)
        await client.start()
        await session.reading.wait()
        async with asyncio.timeout(60):
            await client.stop()
        assert session.greeted == 1, "it does not try again"

    session: AnsweredCancellation
    monkeypatch.setattr(stubs, "ControlStub", Stub)
    run(test())


def test_a_second_process_of_one_name_takes_no_living_ones_place() -> None:
    """Two machines with one host name: each took the other's session, and the launchers of a job ended each other's workers in turn."""

    async def test() -> None:
        handler = RecordingHandler()
        second = Peer(role="launcher", node="node-a", job=JOB, incarnation="second")
        async with served(handler) as server, joined(at(server)) as first:
            hands = Hands()
            client = ControlClient(at(server), second, on_state=hands.states.append)
            await client.start()
            await until(lambda: hands.states)
            assert "another process is the launcher on node-a" in hands.states[0].reason
            assert first.connected
            assert handler.received == [("opened", "node-a", "first")]
            await first.stop()
            await until(lambda: client.connected)  # who has ended has none
            assert [word for word, *_ in handler.received] == ["opened", "lost", "opened"]
            await client.stop()

    run(test())


def test_twin_who_was_started_anew_takes_the_place_of_one_that_is_silent(child: Callable[[str], "subprocess.Popen[bytes]"]) -> None:
    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler) as server:
            process = child(at(server))
            await until(lambda: handler.count("opened"), 20)
            os.kill(process.pid, signal.SIGSTOP)
            client = ControlClient(at(server), Peer(role="launcher", node="node-a", job=JOB, incarnation="anew"))
            await client.start()
            await until(lambda: ("opened", "node-a", "anew") in handler.received)
            process.kill()
            await client.stop()

    run(test())


def test_a_node_that_invents_jobs_gets_no_session_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "SESSIONS_PER_NODE", 2)

    def of_job(number: int, node: str = "node-a") -> Peer:
        return Peer(role="launcher", node=node, job=f"tenant/gpt/run{number}", incarnation="one")

    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler) as server, joined(at(server), peer=of_job(1)) as first, joined(at(server), peer=of_job(2)):
            hands = Hands()
            third = ControlClient(at(server), of_job(3), on_state=hands.states.append)
            await third.start()
            await until(lambda: hands.states)
            assert "node-a has 2 sessions already" in hands.states[0].reason
            async with joined(at(server), peer=of_job(3, "node-b")) as other:
                assert other.connected, "another node has as many"
            await first.stop()
            await until(lambda: third.connected)
            await third.stop()
        assert handler.count("lost") >= 2

    run(test())


def test_the_same_life_connecting_again_is_no_loss() -> None:
    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler) as server, joined(at(server)):
            twin = ControlClient(at(server), LAUNCHER)  # the new connection, before the old one is seen to be dead
            await twin.start()
            await until(lambda: twin.connected)
            assert handler.received == [("opened", "node-a", "first")]
            await twin.stop()

    run(test())


def test_a_restarted_server_of_a_higher_term_is_found_again() -> None:
    async def test() -> None:
        hands, fence = Hands(), CommandFence()
        async with served(RecordingHandler(), term=1) as server:
            address = at(server)
            client = ControlClient(address, LAUNCHER, on_command=hands.obey, on_state=hands.states.append, fence=fence)
            await client.start()
            await until(lambda: client.connected)
        await until(lambda: not client.connected)
        with pytest.raises(TemporaryError, match="'join' waited"):
            await client.request("join", {}, timeout=0.05)
        async with served(RecordingHandler(), address, term=2) as server:
            assert (await client.request("join", {}, timeout=10))["kind"] == "join"
            assert fence.term == 2
            news = [state.term for state in hands.states if state.connected]
            assert news == [1, 2]
            assert "the server" in hands.states[1].reason
            await client.stop()

    run(test())


def test_a_port_that_stays_closed_costs_no_channel_and_is_found_once_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    channels, looks, connect = list[str](), list[int](), asyncio.open_connection
    make = grpc.aio.insecure_channel

    def counted(target: str, **options: object) -> grpc.aio.Channel:
        channels.append(target)
        return make(target, **options)

    def looked(host: str, port: int) -> object:
        looks.append(port)
        return connect(host, port)

    monkeypatch.setattr(grpc.aio, "insecure_channel", counted)
    monkeypatch.setattr(asyncio, "open_connection", looked)

    async def test() -> None:
        address, hands = f"127.0.0.1:{free_port()}", Hands()
        client = ControlClient(address, LAUNCHER, on_state=hands.states.append)
        await client.start()
        await until(lambda: len(looks) == 3)
        assert len(channels) == 2, "one at first, and one beside the first look"
        async with served(RecordingHandler(), address):
            await until(lambda: client.connected)
            await client.stop()
        assert ["refused" in state.reason for state in hands.states if not state.connected] == [True]

    run(test())


def test_a_client_follows_an_address_that_changes() -> None:
    async def test() -> None:
        async with served(RecordingHandler()) as first, served(RecordingHandler()) as second:
            where = [at(first)]
            async with joined(lambda: where[0]) as client:
                where[0] = at(second)
                client.reconnect("the coordinator moved")
                await until(lambda: second.peers and not first.peers)
                assert (await client.request("join", {}))["from"] == LAUNCHER.node

    run(test())


def test_of_several_addresses_the_one_that_leads_is_found_and_found_again() -> None:
    async def test() -> None:
        first, second = RecordingHandler(), RecordingHandler()
        async with served(first) as leader:
            ports = [leader.port, free_port()]
            everywhere = ", ".join(f"127.0.0.1:{port}" for port in reversed(ports))
            async with joined(everywhere) as client:
                assert first.count("opened") == 1
                await leader.stop()
                async with served(second, f"127.0.0.1:{ports[1]}", term=2):
                    await until(lambda: second.count("opened"))
                    assert await client.request("echo", {}) == {"kind": "echo", "from": "node-a"}

    run(test())


def test_the_operator_is_answered_by_whoever_leads() -> None:
    async def test() -> None:
        async with served(Leader()) as leader:
            everywhere = f"127.0.0.1:{free_port()},{at(leader)}"
            assert await asyncio.to_thread(call, everywhere, "status") == {"mode": "observe"}
            nowhere = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
            with pytest.raises(ControlError, match=f"no server answered 'status' at {nowhere.split(',', maxsplit=1)[0]}"):
                await asyncio.to_thread(call, nowhere, "status")

    run(test())


def test_a_port_in_use_is_named_with_the_remedy() -> None:
    async def test() -> None:
        async with served(RecordingHandler()) as server:
            intruder = ControlServer(RecordingHandler(), at(server), term=2)
            try:
                with pytest.raises(ControlError, match=rf"cannot listen on {at(server)}: it is in use.*another port"):
                    await intruder.start()
            finally:
                await intruder.stop()

    run(test())
