"""A launcher that looks for its coordinator: who is believed, who is asked again, and that it comes in once."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from eagle_eye.clock import Clock, FakeClock, SystemClock
from eagle_eye.config import StallConfig
from eagle_eye.errors import TemporaryError
from eagle_eye.rpc.command_fence import CommandFence
from eagle_eye.rpc.control_messages import Body, ConnectionState, Peer
from eagle_eye.types import Layout, RankPlacement
from fakes.control_channel import RecordingHandler, at, run, served, until
from remediation.launcher.control_network import ControlNetwork
from remediation.launcher.event_log import EventLog
from remediation.launcher.follower import SESSION_POLL_S, Follower
from remediation.launcher.launcher_loss_witness import LauncherLossWitness
from remediation.launcher.launcher_settings import LauncherSettings
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

    async def overtaken(self, epoch: int) -> None:
        """It has none to end."""

    async def coordinator_lost(self) -> None:
        """There are no workers to fence."""

    async def obey(self, _command: object) -> Body:
        return {}


class HeldUp:
    """A network whose coordinator takes everybody in, until its process is held up or ends."""

    def __init__(self) -> None:
        self.connected = True
        self.tell: Callable[[ConnectionState], None] = lambda _state: None

    def client(self, _address: str, _peer: Peer, *, on_state: Callable[[ConnectionState], None] = lambda _state: None, **_options: object) -> "HeldUp":
        self.tell = on_state
        return self

    async def start(self) -> None:
        """Nothing to open."""

    async def stop(self) -> None:
        """Nothing to close."""

    async def request(self, _kind: str, _body: Body, timeout: float = 5.0) -> Body:
        if not self.connected:
            raise TemporaryError(f"no answer in {timeout} s")
        return {"accepted": True}

    def ends(self, reason: str) -> None:
        self.connected = False
        self.tell(ConnectionState(connected=False, address="n0:1", reason=reason))


@asynccontextmanager
async def a_follower(folder: Path, clock: Clock | None = None, network: HeldUp | None = None) -> AsyncIterator[tuple[Follower, Idle]]:
    clock, member = clock or SystemClock(), Idle()
    settings = LauncherSettings(job=PEER.job, node=PEER.node, command=("x",), state_dir=folder, run_dir=folder)

    async def nobody() -> str:
        return ""

    async def unknown(_node: str) -> bool | None:
        return None

    made = Follower(
        settings, PEER, member, VoteLog(folder, "r", "n2"), EventLog(PEER.job, "n2", "b", clock, lambda *_: None),
        network or ControlNetwork(settings, CommandFence(), clock, None), clock,
        witness=LauncherLossWitness(clock, 1.0, StallConfig(), list), coordinator_of=nobody, present=unknown,
    )  # fmt: skip
    try:
        yield made, member
    finally:
        await made.close()


LAST = Layout(
    job="t/j/r", epoch=1, time=0.0, coordinator="n0", launchers={"n0": "n0:1", "n2": PEER.address},
    placements=tuple(RankPlacement(worker=f"r/{node}/0", node=node, rank=rank, local_rank=0) for rank, node in enumerate(("n0", "n2"))),
)  # fmt: skip


@pytest.mark.parametrize(("reason", "waits"), [("the server was silent for longer than 2 s", True), ("the connection was closed", False)])
def test_a_coordinator_that_is_only_silent_is_waited_for_although_the_workers_have_failed(tmp_path: Path, reason: str, waits: bool) -> None:
    async def play() -> None:
        clock, network = FakeClock(), HeldUp()
        async with a_follower(tmp_path, clock, network) as (following, member):
            following._votes.valid(LAST)
            assert await following.join("n0:1", 5.0)
            task = asyncio.create_task(following.follow("n0:1"))
            await asyncio.sleep(0)
            member.broken = True
            network.ends(reason)
            done, _ = await asyncio.wait({task}, timeout=3 * SESSION_POLL_S)
            assert (task not in done) is waits
            clock.advance(5.0)
            assert await task == ("n0",), "it is our turn"

    run(play())


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
