"""Attempts on a launcher: a leader of an older term, a command that comes again or is for another job, another user at its port."""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.attempt import Answer, Kind, line_with
from benchmarks.faults.local_users import CONTROL, SESSION
from benchmarks.faults.server_process import ANSWER_S, JOB, START_S, until
from eagle_eye.app.local_cluster import LocalCluster
from eagle_eye.clock import SystemClock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ports import free_port
from eagle_eye.rpc.control_messages import Body, Command, Peer
from eagle_eye.rpc.control_server import ControlServer
from tests.fakes.other_user import as_other_user

NODE = "node-a"
TERM = 7
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""
"""
SLEEP = "import time; time.sleep(600)"


@dataclass
class LeaderStub:
    """The other end of the launcher's session: a real control server whose orders we choose."""

    peers: dict[str, Peer] = field(default_factory=dict)
    epochs: list[int] = field(default_factory=list)

    def opened(self, peer: Peer) -> None:
        self.peers[peer.role] = peer

    def lost(self, peer: Peer, _reason: str) -> None:
        self.peers.pop(peer.role, None)

    async def request(self, _peer: Peer, kind: str, body: Body) -> Body:
        if kind == "layout":
            self.epochs.append(int(body["layout"]["epoch"]))
        return {}


@dataclass
class RunningJob:
    """A real launcher with a real worker, and whoever leads it."""

    cluster: LocalCluster
    port: int
    launcher_port: int
    leader: LeaderStub
    server: ControlServer

    @property
    def log(self) -> str:
        return self.cluster.tail("launcher-job", 10_000)

    async def command(self, command: Command) -> str:
        """Send it; why it was refused, '' if it was done."""
        try:
            await self.server.command(self.leader.peers["launcher"], command, ANSWER_S)
        except EagleEyeError as error:
            return str(error)
        return ""


async def _listening(leader: LeaderStub, port: int, term: int) -> ControlServer:
    server = ControlServer(leader, f"127.0.0.1:{port}", term=term, heartbeat_s=0.5, lease_s=2.0)
    await server.start()
    return server


@asynccontextmanager
async def running_job(folder: Path) -> AsyncIterator[RunningJob]:
    """A job of one worker, and a leader that it obeys."""
    port, launcher_port = free_port(), free_port()
    file = folder / "eagle-eye.toml"
    file.write_text(CONFIG.format(port=port))
    cluster = LocalCluster(folder=folder, config_file=file, clock=SystemClock(), state_dir=folder / "state")
    leader = LeaderStub()
    server = await _listening(leader, port, TERM)
    words = ["--job", JOB, "--node", NODE, "--listen", f"127.0.0.1:{launcher_port}", "--", sys.executable, "-c", SLEEP]
    cluster.start_launcher("job", NODE, words)
    job = RunningJob(cluster, port, launcher_port, leader, server)
    try:
        await until(lambda: leader.epochs and "launcher" in leader.peers, START_S)
        yield job
    finally:
        cluster.stop()
        await job.server.stop()


async def _another_job(job: RunningJob) -> Answer:
    why = await job.command(Command(action="restart", job="team-b/gpt/run1", leader_term=TERM, epoch=1, plan="p0", step="restart"))
    return Answer(bool(why) and job.leader.epochs[-1] == job.leader.epochs[0], line_with(why, "for team-b/gpt/run1 is not done here"))


async def _again(job: RunningJob) -> Answer:
    """The recorded answer is all that a second one gets."""
    order = Command(action="restart", job=JOB, leader_term=TERM, epoch=job.leader.epochs[-1], plan="p1", step="restart", arguments={"reason": "tried"})
    if why := await job.command(order):
        return Answer(False, f"the first was not done: {why}")
    await until(lambda: job.leader.epochs[-1] == order.epoch + 1, START_S)
    stale = Command(action="restart", job=JOB, leader_term=TERM, epoch=order.epoch, plan="p2", step="restart", arguments={"reason": "tried"})
    await job.command(order)
    why = await job.command(stale)
    begun = sorted(set(re.findall(r"epoch (\d+)", job.log)))
    return Answer(job.leader.epochs[-1] == order.epoch + 1 and bool(why), line_with(why, f"epoch {order.epoch} of {JOB} is over") and f"{why} (epochs begun: {', '.join(begun)})")


async def _older_leader(job: RunningJob) -> Answer:
    """It comes back after another was elected, and takes the address over."""
    await job.server.stop()
    job.leader.peers.clear()
    job.server = await _listening(job.leader, job.port, TERM - 1)
    with contextlib.suppress(TimeoutError):
        await until(lambda: job.server.superseded, ANSWER_S)
    refused = "launcher" not in job.leader.peers and job.server.superseded == TERM
    await job.server.stop()
    job.server = await _listening(job.leader, job.port, TERM)
    await until(lambda: "launcher" in job.leader.peers, START_S)
    return Answer(refused, f"has seen leader term {TERM}" if refused else "")


async def _another_user(job: RunningJob) -> Answer:
    address = f"127.0.0.1:{job.launcher_port}"
    done = await asyncio.to_thread(as_other_user, CONTROL, SESSION, address, "launcher", "node-x", JOB)
    with contextlib.suppress(TimeoutError):
        await until(lambda: "of its own user alone" in job.log, ANSWER_S)
    return Answer(done.stdout == "refused\n", line_with(job.log, "of its own user alone"))


KIND = Kind(
    "commands",
    running_job,
    {
        "a command for another job is sent to the job's launcher": _another_job,
        "another local user joins at the launcher's port": _another_user,
        "a leader of an older term commands the launcher": _older_leader,
        "a command is sent again, and one of an epoch that is over": _again,
    },
)
