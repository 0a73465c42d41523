"""Requests and commands over real loopback gRPC: answers, order, once only, and who is refused."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from eagle_eye.errors import ControlError, PermanentError, Stale, TemporaryError
from eagle_eye.rpc.command_fence import CommandFence
from eagle_eye.rpc.control_client import ControlClient, call
from eagle_eye.rpc.control_messages import (
    BreakerCommand,
    Command,
    Decision,
    MaintenanceCommand,
    NoteCommand,
    OperatorCommand,
    Peer,
    ReleaseNodeCommand,
    SilenceCommand,
)
from eagle_eye.rpc.control_server import REQUESTS_PER_SESSION
from fakes.control_channel import JOB, LAUNCHER, Hands, Leader, RecordingHandler, at, joined, run, served, until


def test_requests_are_answered_and_failures_keep_their_kind() -> None:
    async def test() -> None:
        async with served(RecordingHandler()) as server, joined(at(server)) as client:
            assert await client.request("join", {"slots": 4}) == {"kind": "join", "from": "node-a", "slots": 4}
            with pytest.raises(TemporaryError, match="not everybody") as raised:
                await client.request("later", {})
            assert raised.value.delay == 0.25
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
        async with served(RecordingHandler()) as server, joined(at(server)):
            assert (await server.command(LAUNCHER, Command(action="start", job=JOB), 5))["did"] == "start"
            with pytest.raises(PermanentError, match="no such worker"):
                await server.command(LAUNCHER, Command(action="impossible", job=JOB), 5)
            with pytest.raises(TemporaryError, match="busy") as raised:
                await server.command(LAUNCHER, Command(action="busy", job=JOB), 5)
            assert raised.value.delay == 0.5
            with pytest.raises(TemporaryError, match="did not answer 'slow' within"):
                await server.command(LAUNCHER, Command(action="slow", job=JOB), 0.1)

    run(test())


def test_a_command_to_nobody_or_to_an_earlier_life_is_not_sent() -> None:
    async def test() -> None:
        hands = Hands()
        async with served(RecordingHandler()) as server, joined(at(server), hands):
            with pytest.raises(TemporaryError, match="no session to the launcher on node-b"):
                await server.command(Peer(role="launcher", node="node-b", job=JOB), Command(action="stop"), 5)
            earlier = Peer(role="launcher", node="node-a", job=JOB, incarnation="zeroth")
            with pytest.raises(ControlError, match="started anew"):
                await server.command(earlier, Command(action="stop"), 5)
            anyone = Peer(role="launcher", node="node-a", job=JOB)
            assert (await server.command(anyone, Command(action="start"), 5))["did"] == "start"
            assert hands.done == ["start"]

    run(test())


def test_commands_of_a_job_wait_for_one_another_but_a_dump_runs_beside() -> None:
    async def test() -> None:
        hands = Hands()
        async with served(RecordingHandler()) as server, joined(at(server), hands):
            slow = asyncio.create_task(server.command(LAUNCHER, Command(action="slow", job=JOB), 10))
            start = asyncio.create_task(server.command(LAUNCHER, Command(action="start", job=JOB), 10))
            await server.command(LAUNCHER, Command(action="dump", job=JOB), 10)
            await server.command(LAUNCHER, Command(action="start", job="tenant/other/run1"), 10)
            assert hands.done == ["dump", "start"]
            hands.authorization.set()
            await asyncio.gather(slow, start)
            assert hands.done == ["dump", "start", "slow", "start"]

    run(test())


def test_a_command_that_comes_twice_is_done_once_even_by_a_restarted_launcher(tmp_path: Path) -> None:
    async def test() -> None:
        order = Command(action="restart", job=JOB, leader_term=1, epoch=1, plan="plan-1", step="restart")
        hands = Hands()
        async with served(RecordingHandler()) as server:
            async with joined(at(server), hands, fence=CommandFence(tmp_path)):
                both = await asyncio.gather(*(server.command(LAUNCHER, order, 5) for _ in range(2)))
            assert both == [{"did": "restart", "times": 1}] * 2
            again = Peer(role="launcher", node="node-a", job=JOB, incarnation="second")
            async with joined(at(server), hands, fence=CommandFence(tmp_path), peer=again):
                assert await server.command(again, order, 5) == both[0]
            assert hands.done == ["restart"]

    run(test())


def test_a_command_under_way_when_its_session_breaks_is_done_once(tmp_path: Path) -> None:
    async def test() -> None:
        order = Command(action="slow", job=JOB, leader_term=1, plan="plan-1", step="slow")
        hands = Hands()
        async with served(RecordingHandler()) as server, joined(at(server), hands, fence=CommandFence(tmp_path)) as client:
            first = asyncio.create_task(server.command(LAUNCHER, order, 10))
            await server.command(LAUNCHER, Command(action="dump"), 5)  # the first has begun by now
            client.reconnect("try another way")
            with pytest.raises(TemporaryError, match="ended before it answered"):
                await first
            await until(lambda: client.connected)
            hands.authorization.set()
            assert (await server.command(LAUNCHER, order, 10))["did"] == "slow"
            assert hands.done.count("slow") == 1

    run(test())


def test_a_request_under_way_when_its_session_breaks_is_done_to_its_end() -> None:
    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler) as server:
            async with joined(at(server)) as client:
                with pytest.raises(TemporaryError, match="did not answer"):
                    await client.request("wait", {}, timeout=0.1)
            await until(lambda: handler.count("lost"))
            handler.never.set()
            await until(lambda: handler.count("waited"))

    run(test())


def test_a_peer_that_asks_too_much_is_told_to_come_again() -> None:
    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler) as server, joined(at(server)) as client:
            many = [asyncio.create_task(client.request("wait", {}, timeout=20)) for _ in range(REQUESTS_PER_SESSION)]
            await asyncio.sleep(0)  # they are sent first
            with pytest.raises(TemporaryError, match="257 requests are under way"):
                await client.request("join", {})
            handler.never.set()
            await asyncio.gather(*many)

    run(test())


def test_an_older_leader_is_refused_and_learns_it() -> None:
    async def test() -> None:
        hands = Hands()
        async with served(RecordingHandler(), term=3) as server:
            client = ControlClient(at(server), LAUNCHER, on_state=hands.states.append, fence=CommandFence(term=5))
            await client.start()
            await until(lambda: hands.states)
            assert not client.connected
            assert "has seen leader term 5, this leader has 3" in hands.states[0].reason
            assert server.superseded == 5
            await client.stop()

    run(test())


def test_of_two_commanders_the_older_one_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        hands, fence = Hands(), CommandFence(tmp_path)
        old, new = Command(action="start", job=JOB, leader_term=1), Command(action="start", job=JOB, leader_term=2)
        async with (
            served(RecordingHandler(), term=1) as before,
            served(RecordingHandler(), term=2) as after,
            joined(at(before), hands, fence=fence),
        ):
            await before.command(LAUNCHER, old, 5)
            async with joined(at(after), hands, fence=fence):
                await after.command(LAUNCHER, new, 5)
                with pytest.raises(Stale, match="leader term 1 is older than term 2"):
                    await before.command(LAUNCHER, old, 5)
        assert hands.done == ["start", "start"]
        assert CommandFence(tmp_path).term == 2

    run(test())


def test_a_coordinator_without_a_leader_is_fenced_by_the_epoch() -> None:
    async def test() -> None:
        fence = CommandFence(term=7)
        async with served(RecordingHandler(), term=0) as server, joined(at(server), fence=fence):
            await server.command(LAUNCHER, Command(action="prepare", job=JOB, epoch=4), 5)
            with pytest.raises(Stale, match="epoch 3 of tenant/gpt/run1 is over: epoch 4"):
                await server.command(LAUNCHER, Command(action="prepare", job=JOB, epoch=3), 5)
            assert fence.term == 7

    run(test())


def test_the_operator_is_answered_over_unary_calls() -> None:
    async def test() -> None:
        async with served(Leader()) as server:
            word = Decision(plan="plan-1", person="ada")
            ask = asyncio.to_thread
            answer = await ask(call, at(server), "approve", word)
            assert answer == {"plan": "plan-1", "person": "ada", "approved": True}
            assert (await ask(call, at(server), "refuse", word))["approved"] is False
            assert await ask(call, at(server), "release", ReleaseNodeCommand(node="n1", person="ada")) == {"released": "n1"}
            assert await ask(call, at(server), "status") == {"mode": "observe"}
            with pytest.raises(Stale, match="plan gone was replaced"):
                await ask(call, at(server), "approve", Decision(plan="gone", person="ada"))
            with pytest.raises(ControlError, match="cannot ask 'approve' with NoneType"):
                await ask(call, at(server), "approve")
            address = at(server)
        with pytest.raises(ControlError, match=r"no server answered 'status'.*eagle-eye server"):
            await ask(call, address, "status")

    run(test())


ORDERS: dict[str, OperatorCommand] = {
    "silence": SilenceCommand(person="ada", job="team/gpt", node="rack-1-*", cause="slow *", seconds=60.0, reason="benchmark", ahead=True),
    "maintain": MaintenanceCommand(person="ada", nodes=("rack-1-*", "n9"), jobs=("team/*",), begins_in_s=5.0, seconds=60.0, reason="cables"),
    "close_breaker": BreakerCommand(id="b1", person="ada"),
    "note": NoteCommand(incident="i1", person="ada", text="the cable was loose — «again»"),
}


@pytest.mark.parametrize("what", ORDERS)
def test_an_order_arrives_as_it_was_given(what: str) -> None:
    async def test() -> None:
        async with served(Leader()) as server:
            answer = await asyncio.to_thread(call, at(server), what, ORDERS[what])
            given = msgspec.json.decode(msgspec.json.encode(ORDERS[what]))
            assert answer == {"kind": type(ORDERS[what]).__name__, **given}
            with pytest.raises(ControlError, match=f"cannot ask '{what}' with Release"):
                await asyncio.to_thread(call, at(server), what, ReleaseNodeCommand(node="n1", person="ada"))

    run(test())


def test_who_is_no_leader_says_so_to_the_operator() -> None:
    async def test() -> None:
        async with served(RecordingHandler()) as server:
            with pytest.raises(ControlError, match="is no leader and cannot status"):
                await asyncio.to_thread(call, at(server), "status")

    run(test())
