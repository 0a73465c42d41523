"""Ends of the control channel that send what cannot be, or nothing, and a machine that refuses a client its thread."""

import asyncio
import logging
import math
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from eagle_eye.errors import ControlError, Stale
from eagle_eye.rpc import control_client, control_server
from eagle_eye.rpc import control_pb2 as pb
from eagle_eye.rpc import control_pb2_grpc as stubs
from eagle_eye.rpc import protobuf_codec as wire
from eagle_eye.rpc.command_fence import CommandFence
from eagle_eye.rpc.control_client import ControlClient
from eagle_eye.rpc.control_messages import HIGHEST_FIRST_TERM, TERM_JUMP, HeartbeatSettings, Welcome
from fakes.control_channel import LAUNCHER, Hands, RecordingHandler, at, joined, run, served, until

NO_PERIODS = [(0.0, 3.0), (-1.0, 3.0), (math.nan, 3.0), (0.5, math.nan), (0.5, 1e300), (0.5, math.inf), (0.5, 0.0), (5.0, 1.0)]


# --- what comes over the wire -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heartbeat_s", "lease_s"), NO_PERIODS)
def test_periods_that_cannot_be_are_refused(heartbeat_s: float, lease_s: float) -> None:
    with pytest.raises(ControlError):
        wire.decode_heartbeat(pb.Heartbeat(heartbeat_s=heartbeat_s, lease_s=lease_s))
    with pytest.raises(ControlError):
        wire.decode_welcome(pb.Welcome(term=1, heartbeat_s=heartbeat_s, lease_s=lease_s))


@pytest.mark.parametrize(("heartbeat_s", "lease_s"), [(0.05, 0.2), (0.5, 3.0), (500.0, 3000.0)])
def test_periods_of_small_and_of_huge_clusters_are_taken(heartbeat_s: float, lease_s: float) -> None:
    welcome = Welcome(term=7, heartbeat=HeartbeatSettings(heartbeat_s=heartbeat_s, lease_s=lease_s))
    assert wire.decode_welcome(wire.encode_welcome(welcome).welcome) == welcome


@pytest.mark.parametrize("delay_s", [-1.0, math.nan, math.inf, 1e300])
@pytest.mark.parametrize("decode", [lambda m: wire.decode_ack(pb.Ack(**m)), lambda m: wire.decode_reply(pb.Reply(**m)), lambda m: wire.decode_response(pb.Response(**m))])
def test_a_delay_that_cannot_be_is_refused(delay_s: float, decode: Callable[[dict[str, Any]], object]) -> None:
    decode({"ok": False, "kind": "of a newer version", "error": "busy", "delay_s": 0.5})
    with pytest.raises(ControlError, match="delay"):
        decode({"ok": False, "kind": "temporary", "error": "busy", "delay_s": delay_s})


def test_terms_that_no_leader_can_have_are_refused() -> None:
    with pytest.raises(ControlError):
        wire.decode_welcome(pb.Welcome(term=2**64 - 1, heartbeat_s=0.5, lease_s=3.0))
    with pytest.raises(ControlError):
        wire.decode_command(pb.Command(action="start", leader_term=2**64 - 1))


@pytest.mark.parametrize(("known", "told"), [(7, 8 + TERM_JUMP), (7, 2**50), (0, HIGHEST_FIRST_TERM + 1)])
def test_a_fence_keeps_no_term_that_is_too_far_above_its_own(known: int, told: int) -> None:
    fence = CommandFence(term=known)
    with pytest.raises(ControlError, match="not believed"):
        fence.admit_term(told)
    assert fence.term == known
    fence.admit_term(known + 3)
    with pytest.raises(Stale):
        fence.admit_term(known + 2)


class OddServer(stubs.ControlServicer):
    """Welcomes whoever comes with these periods, and counts what it hears."""

    def __init__(self, heartbeat_s: float, lease_s: float) -> None:
        self.heard = 0
        self.welcome = pb.Welcome(term=3, heartbeat_s=heartbeat_s, lease_s=lease_s)

    async def Session(self, _requests: Any, context: Any) -> None:  # noqa: N802
        await context.read()
        await context.write(pb.FromServer(welcome=self.welcome))
        while await context.read() is not grpc.aio.EOF:
            self.heard += 1


def test_a_server_that_asks_for_a_flood_of_heartbeats_gets_none() -> None:
    async def test() -> None:
        odd, hands = OddServer(0.0, 3.0), Hands()
        server = grpc.aio.server()
        stubs.add_ControlServicer_to_server(odd, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        client = ControlClient(f"127.0.0.1:{port}", LAUNCHER, on_state=hands.states.append)
        await client.start()
        await until(lambda: hands.states)
        assert "heartbeat_s" in hands.states[0].reason
        assert (client.connected, odd.heard) == (False, 0)
        await client.stop()
        await server.stop(None)

    run(test())


# --- terms of a ledger that was lost ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("told", "superseded"), [(7, 7), (1 + TERM_JUMP, 1 + TERM_JUMP), (2 + TERM_JUMP, 0), (2**64 - 1, 0)])
def test_a_term_that_a_peer_has_seen_counts_within_bounds(told: int, superseded: int) -> None:
    async def test() -> None:
        async with served(RecordingHandler(), term=1) as server:
            await hello(server, told)
            assert server.superseded == superseded

    run(test())


def test_terms_of_many_hellos_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with served(RecordingHandler(), term=1) as server:
            for number in range(50):
                await hello(server, 2**64 - 1 - number)
            await hello(server, 7)

    with caplog.at_level(logging.INFO, "eagle_eye.rpc.control_server"):
        run(test())
    assert len([line for line in caplog.messages if "has seen leader term" in line]) == 1


async def hello(server: control_server.ControlServer, term: int) -> None:
    async with grpc.aio.insecure_channel(at(server)) as channel:
        call = stubs.ControlStub(channel).Session()  # type: ignore[no-untyped-call]
        peer = LAUNCHER
        await call.write(pb.FromClient(hello=pb.Hello(role=peer.role, node=peer.node, job=peer.job, incarnation=peer.incarnation, term=term)))
        with pytest.raises(grpc.aio.AioRpcError, match="has seen leader term"):
            await call.read()


# --- what a machine refuses -------------------------------------------------------------------------------------------


def test_a_client_that_is_refused_a_thread_tries_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its task ended without a word, and the launcher had no server for the rest of its life."""
    short = [True]

    class ShortOfThreads:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def to_thread(self, *words: Any) -> Any:
            if short:
                raise RuntimeError("can't start new thread")
            return await asyncio.to_thread(*words)

    async def test() -> None:
        hands = Hands()
        async with served(RecordingHandler()) as server:
            client = ControlClient(at(server), LAUNCHER, on_state=hands.states.append)
            monkeypatch.setattr(control_client, "asyncio", ShortOfThreads())
            await client.start()
            await until(lambda: hands.states)
            await asyncio.sleep(0.3)
            assert ["can't start new thread" in state.reason for state in hands.states] == [True], "told once"
            short.clear()
            await until(lambda: client.connected)
            await client.stop()

    run(test())
    assert len([line for line in caplog.messages if "can't start new thread" in line]) == 1


def test_an_address_that_cannot_be_told_now_is_asked_for_again() -> None:
    async def test() -> None:
        broken = [True]

        async with served(RecordingHandler()) as server:

            def address() -> str:
                if broken:
                    broken.clear()
                    raise OSError("the file is away")
                return at(server)

            client = ControlClient(address, LAUNCHER)
            await client.start()
            await until(lambda: client.connected)
            await client.stop()

    run(test())


SILENT = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5))
print("held", flush=True)
sys.stdin.read()
"""


def test_connections_that_say_nothing_are_closed_and_take_no_others_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """700 of them took all descriptors of a server, and none was closed."""
    options = {name: value for name, value in control_server.OPTIONS if isinstance(value, int)}
    assert options["grpc.server_handshake_timeout_ms"] == 5000
    monkeypatch.setattr(control_server, "OPTIONS", tuple((options | {"grpc.server_handshake_timeout_ms": 1000}).items()))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = max(256, 4 * len(list(Path("/proc/self/fd").iterdir())))
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        run(silent_connections(few + 50))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def silent_connections(number: int) -> None:
    async with served(RecordingHandler()) as server:
        attacker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SILENT, str(server.port), str(number), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert attacker.stdout is not None
        assert await attacker.stdout.readline() == b"held\n"
        with socket.socket():  # there are descriptors for the rest of the process
            async with joined(at(server)) as client:
                assert client.connected
                await asyncio.sleep(2.0)
                assert client.connected, "a session is no connection that says nothing"
        attacker.kill()
        await attacker.communicate()
