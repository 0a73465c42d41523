"""Sessions of several users of one machine, without certificates: real processes of `nobody` beside those of the server's own user."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import Mock

import msgspec
import pytest

from eagle_eye.access import authorization
from eagle_eye.access.authorization import Authorization
from eagle_eye.access.caller import Caller
from eagle_eye.access.roles import Role
from eagle_eye.access.tokens import Tokens
from eagle_eye.errors import NotAuthenticated
from eagle_eye.rpc import control_server
from eagle_eye.rpc.control_client import ControlClient
from eagle_eye.rpc.control_messages import Peer
from fakes.control_channel import JOB, Hands, RecordingHandler, at, joined, run, served, until
from fakes.other_user import BECOME, ROOT, needs_root
from remediation.launcher import participation

SQUAT = f"""
import sys, socket, encodings.idna, concurrent.futures.thread, asyncio, json
from eagle_eye.rpc.control_client import ControlClient
from eagle_eye.rpc.control_messages import Peer
{BECOME}
async def open_one(role, node, job):
    states = []
    client = ControlClient(sys.argv[1], Peer(role=role, node=node, job=job, incarnation="evil"), on_state=states.append)
    await client.start()
    while not states:
        await asyncio.sleep(0.01)
    return "" if states[0].connected else states[0].reason, client

async def main():
    opened = [await open_one(*peer) for peer in json.loads(sys.argv[2])]
    print(json.dumps([reason for reason, _ in opened]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""
AGENT = ("agent", "node-a", "")
LAUNCHER = ("launcher", "node-a", JOB)


@asynccontextmanager
async def squatted(address: str, *peers: tuple[str, str, str]) -> AsyncIterator[list[str]]:
    """While a process of `nobody` tries to hold these sessions; why it got none, '' for one that it has."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-c", SQUAT, address, json.dumps(peers)]
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        yield json.loads(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


def peer(role: str, node: str, job: str) -> Peer:
    return Peer(role=role, node=node, job=job, incarnation="true")


@needs_root
def test_another_user_opens_no_session_of_an_agent() -> None:
    async def test() -> None:
        async with served(RecordingHandler()) as server, squatted(at(server), AGENT) as reasons:
            assert "the user nobody may not take the place of the agent on node-a" in reasons[0]
            assert "agents run as the user root" in reasons[0], "the remedy"
            async with joined(at(server), peer=peer(*AGENT)) as agent:
                assert agent.connected

    run(test())


@needs_root
def test_the_server_s_user_takes_back_what_another_holds() -> None:
    """That user was only faster: one was lost, and another began."""

    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler) as server, squatted(at(server), LAUNCHER) as reasons:
            assert reasons == [""], "the twin: nobody has declared the job, so that user may open it"
            async with joined(at(server), peer=peer(*LAUNCHER)) as launcher:
                assert launcher.connected
                await until(lambda: ("opened", "node-a", "true") in handler.received)
                assert [kind for kind, _, _ in handler.received] == ["opened", "lost", "opened"]
                assert "the user nobody" in handler.received[1][2]
                await asyncio.sleep(1.0)  # the other tries again meanwhile
                assert launcher.connected

    run(test())


@needs_root
def test_the_sessions_of_another_user_are_none_of_the_node_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever nodes it names."""
    monkeypatch.setattr(control_server, "SESSIONS_PER_NODE", 2)

    async def test() -> None:
        wanted = [("launcher", node, f"t/n/{number}") for number, node in enumerate(("node-a", "node-a", "node-a", "node-b"))]
        async with served(RecordingHandler()) as server, squatted(at(server), *wanted) as reasons:
            assert reasons[:2] == ["", ""]
            assert all("the user nobody has 2 sessions already" in reason for reason in reasons[2:])
            async with joined(at(server), peer=peer(*AGENT)) as agent, joined(at(server), peer=peer(*LAUNCHER)) as launcher:
                assert (agent.connected, launcher.connected) == (True, True)

    run(test())


@pytest.mark.parametrize("role", ["x", "operator", "Agent"])
def test_a_role_that_is_none_opens_no_session(role: str) -> None:
    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler) as server:
            hands = Hands()
            client = ControlClient(at(server), peer(role, "node-a", ""), on_state=hands.states.append)
            await client.start()
            await until(lambda: hands.states)
            assert f"sessions are opened as agent or launcher, not as '{role}'" in hands.states[0].reason
            await client.stop()
        assert handler.received == []

    run(test())


def test_refused_callers_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "TOLD_KEPT", 10)
    refusing = Authorization(Tokens.none(), trust_claims=True)
    for user in range(70_000, 70_100):
        with pytest.raises(NotAuthenticated):
            refusing.admit(Role.VIEWER, "reading", caller=Caller(local=True, user=user))
    assert len(refusing._refused) <= 10


def test_a_launcher_remembers_a_bounded_number_of_refused_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is told once; what is told is an event in the job's stream."""
    monkeypatch.setattr(participation, "TOLD_KEPT", 10)
    refusing = participation.Participation.__new__(participation.Participation)
    refusing._refused, refusing._settings, refusing._event_log = set(), Mock(node="node-a"), Mock()
    for user in range(70_000, 70_100):
        for _ in range(3):
            refusing.refused(msgspec.structs.replace(peer(*LAUNCHER), caller=Caller(local=True, user=user)), "no")
    assert len(refusing._refused) <= 10
    assert refusing._event_log.of_node.call_count == 100
