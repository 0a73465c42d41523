"""A launcher that looks for its coordinator: who is believed, who is asked again, and that it comes in once."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from eagle_eye.clock import SystemClock
from eagle_eye.config import StallConfig
from eagle_eye.rpc.command_fence import CommandFence
from eagle_eye.rpc.control_messages import Body, Peer
from fakes.control_channel import RecordingHandler, at, run, served, until
from remediation.launcher.control_network import ControlNetwork
from remediation.launcher.event_log import EventLog
from remediation.launcher.follower import Follower
from remediation.launcher.launcher_settings import LauncherSettings
from remediation.launcher.loss_witness import LossWitness
from remediation.launcher.vote_log import VoteLog

PEER = Peer(role="launcher", node="n2", job="t/j/r", incarnation="b", address="127.0.0.1:1")


class Neighbour(RecordingHandler):
    """Answers requests to join in their order; takes everybody in once it has nothing else to say."""

    def __init__(self, *answers: Body) -> None:
        super().__init__()
        self.answers = list(answers)
        self.joins = 0

    async def request(self, peer: Peer, kind: str, body: Body) -> Body:
        self.joins += 1
        return self.answers.pop(0) if self.answers else {"accepted": True}


class Idle:
    """A member without workers."""

    registry: tuple[Body, ...] = ()
    broken = held = idle = False

    def __init__(self) -> None:
        self.moved = lambda _address: None
        self.overtaken_by = 0

    async def overtaken(self) -> None:
        self.overtaken_by += 1

    async def obey(self, _command: object) -> Body:
        return {}


@asynccontextmanager
async def a_follower(folder: Path) -> AsyncIterator[tuple[Follower, Idle]]:
    clock, member = SystemClock(), Idle()
    settings = LauncherSettings(job=PEER.job, node=PEER.node, command=("x",), state_dir=folder, run_dir=folder)

    async def nobody() -> str:
        return ""

    async def unknown(_node: str) -> bool | None:
        return None

    made = Follower(
        settings, PEER, member, VoteLog(folder, "r", "n2"), EventLog(PEER.job, "n2", "b", clock, lambda *_: None),
        ControlNetwork(settings, CommandFence(), clock, None), clock,
        witness=LossWitness(clock, 1.0, StallConfig(), list), coordinator_of=nobody, present=unknown,
    )  # fmt: skip
    try:
        yield made, member
    finally:
        await made.close()


def test_who_still_believes_in_a_coordinator_that_is_gone_is_asked_again(tmp_path: Path) -> None:
    async def play() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing, like a parted network
            gone = f"127.0.0.1:{silent.getsockname()[1]}"
            neighbour = Neighbour({"accepted": False, "coordinator": gone})
            async with a_follower(tmp_path) as (following, _), served(neighbour) as server:
                assert await following.join(at(server), 5.0, gone={gone})
                assert (following.address, neighbour.joins) == (at(server), 2)

    run(play())


def test_who_names_another_is_believed(tmp_path: Path) -> None:
    async def play() -> None:
        async with (
            a_follower(tmp_path) as (following, _), served(Neighbour()) as there,
            served(Neighbour({"accepted": False, "coordinator": at(there)})) as here,
        ):  # fmt: skip
            assert await following.join(at(here), 5.0)
            assert following.address == at(there)

    run(play())


def test_who_has_joined_follows_without_coming_in_anew(tmp_path: Path) -> None:
    async def play() -> None:
        first, second = Neighbour(), Neighbour()
        async with a_follower(tmp_path) as (following, member), served(first) as here, served(second) as there:
            assert await following.join(at(here), 5.0)
            task = asyncio.create_task(following.follow(at(here)))
            await asyncio.sleep(0)  # it follows by now
            member.moved(at(there))
            await until(lambda: following.address == at(there))
            assert (first.joins, second.joins) == (1, 1), "each coming and going costs the job an epoch"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(play())
