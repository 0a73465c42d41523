"""Real launchers on this machine for scenarios: their processes, what they wrote, and a leader that answers as it is told."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle_eye import wire
from eagle_eye.errors import TemporaryError
from eagle_eye.ports import free_port
from eagle_eye.rpc.control_messages import Body, Command, Peer
from eagle_eye.rpc.control_server import ControlServer
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import Event, Layout
from remediation.launcher.__main__ import settings_json
from remediation.launcher.launcher_settings import LauncherSettings

SCRIPT = '''
import os, socket, sys, time
import eagle_eye

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
peers = []
if rank == 0:
    with socket.create_server(place) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
while rank and not peers:
    try:
        peers = [socket.create_connection(place)]
    except OSError:
        time.sleep(0.01)

def barrier():
    for peer in peers:
        if rank == 0 and not peer.recv(1):
            raise RuntimeError("Connection closed by peer")
    for peer in peers:
        peer.sendall(b"x")
        if rank and not peer.recv(1):
            raise RuntimeError("Connection closed by peer")

if rank == 0:
    print(f"began epoch {os.environ['EAGLE_EYE_EPOCH']} world {world} password=hunter2", flush=True)
for step in eagle_eye.monitor().steps(range(int(sys.argv[1]))):
    barrier()
    time.sleep(0.02)
    while rank == world - 1 and step > 5 and os.path.exists("pause-0"):
        open("paused", "w").close()
        sum(range(100_000))
    if rank == world - 1 and os.path.exists(f"poison-{step}"):
        raise ValueError("negative length")
    if rank == (world - int(os.environ["EAGLE_EYE_EPOCH"])) % world and os.path.exists(f"moving-exit-{step}"):
        os._exit(3)
    if rank == world - 1 and os.path.exists(f"exit-{step}"):
        os._exit(1)
    if os.path.exists(f"poison-all-{step}"):
        raise ValueError("negative length")
    if os.path.exists(f"outage-{step}") and os.environ["EAGLE_EYE_EPOCH"] == "1":
        raise OSError("the token server does not answer")
    if rank == world - 1 and os.path.exists(f"leave-{step}"):
        sys.exit(0)
'''

DEADLINE_S = 150.0
SESSIONS = 5


def wait_until(what: str, condition: Callable[[], Any], seconds: float = DEADLINE_S) -> Any:
    """Look again and again; the first true value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        threading.Event().wait(0.02)
    raise AssertionError(f"waited {seconds:g} s for: {what}")


def living(run: str) -> list[int]:
    """Processes of a run, by their environment; a zombie has none (proc(5))."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"EAGLE_EYE_RUN={run}\0".encode() in (directory / "environ").read_bytes():
                found.append(int(directory.name))
    return found


def free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


class LauncherCluster:
    """Nodes on this machine, two unless a test starts more of the four that there may be, their launchers, and what they wrote."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run_dirs = Path(tempfile.mkdtemp(prefix="run"))  # short: paths of unix sockets are limited
        self.run = f"r{os.getpid()}x{time.monotonic_ns() % 10**9}"
        self.ports = free_ports(4)
        self.launchers: dict[int, subprocess.Popen[bytes]] = {}
        (directory / "train.py").write_text(SCRIPT)
        self.stream = EmbeddedStream(directory / "state" / "stream")

    def run_dir(self, node: int) -> Path:
        return self.run_dirs / f"n{node}"

    def settings(self, node: int, /, **changes: Any) -> LauncherSettings:
        given: dict[str, Any] = {
            "job": f"test/loop/{self.run}", "node": f"n{node}", "nproc": 2, "nnodes": (1, 2), "lease_s": 1.0,
            "command": (sys.executable, "train.py", "100000"), "working_dir": self.directory, "preload": (),
            "state_dir": self.directory / "state", "run_dir": self.run_dir(node), "console": False,
            "address": f"127.0.0.1:{self.ports[node]}", "rendezvous": f"127.0.0.1:{self.ports[0]}",
            "join_timeout_s": 5.0, "stop_grace_s": 2.0,
        }  # fmt: skip
        return LauncherSettings(**given | changes)

    def inside(self, _node: int) -> tuple[str, ...]:
        """Words before the command of a node's launcher, where it is to run in a place of its own."""
        return ()

    def launch(self, node: int, /, **changes: Any) -> subprocess.Popen[bytes]:
        log = (self.directory / f"launcher{node}.log").open("ab")
        process = subprocess.Popen(
            [*self.inside(node), sys.executable, "-m", "remediation.launcher"], stdin=subprocess.PIPE, stderr=log, stdout=log,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        log.close()
        assert process.stdin is not None
        process.stdin.write(settings_json(self.settings(node, **changes)))
        process.stdin.close()
        self.launchers[node] = process
        return process

    def job(self, node: int) -> dict[str, Any]:
        """What the launcher says of its workers."""
        try:
            return json.loads((self.run_dir(node) / "jobs" / f"{self.run}.json").read_text())
        except OSError:
            return {"epoch": 0, "workers": []}

    def pids(self, node: int) -> list[int]:
        return [worker["pid"] for worker in self.job(node)["workers"]]

    def records(self) -> list[Any]:
        messages = self.stream.read(OBSERVATIONS, 0, 0, 100_000)
        return [wire.decode(message.value, {}) for message in messages]

    def events(self, name: str) -> list[Event]:
        return [record for record in self.records() if isinstance(record, Event) and record.name == name]

    def event(self, name: str) -> Event:
        """Wait for the first event of that name: it is written beside what it tells, and may come later than that."""
        return wait_until(f"an event {name}", lambda: self.events(name))[0]

    def layouts(self) -> list[Layout]:
        return [record for record in self.records() if isinstance(record, Layout)]

    def began(self, epoch: int) -> Event:
        """Wait for the event that says that an epoch's workers were started."""
        return wait_until(
            f"epoch {epoch}",
            lambda: next((e for e in self.events("epoch.started") if int(e.attributes["epoch"]) >= epoch), None),
        )

    def both(self, **changes: Any) -> None:
        """Start both nodes and wait until they train."""
        for node in (0, 1):
            self.launch(node, **changes)
        self.began(1)

    def close(self) -> None:
        for process in self.launchers.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        self.stream.close()
        wait_until("no process left behind", lambda: not living(self.run))
        shutil.rmtree(self.run_dirs)
        for path in Path("/dev/shm").glob(f"*{self.run}*"):
            path.unlink()


class FakeLeader:
    """A leader that knows one coordinator and gives its voice as it is told; a real server in a thread of its own."""

    def __init__(self, grants: bool) -> None:
        self.grants = grants
        self.asked: list[Body] = []
        self.peers: dict[str, Peer] = {}
        self.known: Body = {}
        self.cordons: dict[str, Body] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._call(self._serve())
        self.address = f"127.0.0.1:{self._server.port}"

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def _serve(self) -> ControlServer:
        server = ControlServer(self, "127.0.0.1:0", term=1, heartbeat_s=0.2, lease_s=1.0)
        await server.start()
        return server

    def opened(self, peer: Peer) -> None:
        self.peers[peer.node] = peer

    def lost(self, peer: Peer, reason: str) -> None:
        self.peers.pop(peer.node, None)

    async def request(self, peer: Peer, kind: str, body: Body) -> Body:
        if kind == "layout":
            self.known = {"address": peer.address, "node": peer.node, "epoch": body["layout"]["epoch"]}
            return {}
        if kind == "coordinator_of":
            return self.known if self.known.get("node") in self.peers else {}
        if kind == "present":
            return {"present": body["node"] in self.peers, "known": True}
        if kind == "cordon_of":
            return self.cordons.get(body["node"], {})
        self.asked.append(body)
        return {"granted": self.grants and not any(node in self.peers for node in body["missing"]), "reason": "as told"}

    def command(self, action: str, arguments: Body, *, epoch: int, step: str) -> Body:
        """A session that breaks on a busy machine comes back, and a command that was done is not done again."""
        for left in reversed(range(SESSIONS)):
            peer = wait_until("a session with the coordinator", lambda: self.peers.get(self.known["node"]))
            order = Command(action=action, job=peer.job, leader_term=1, epoch=epoch, plan="p1", step=step, arguments=arguments)
            try:
                return self._call(self._server.command(peer, order, 10.0))
            except TemporaryError:
                if not left:
                    raise
        raise AssertionError

    async def _end(self) -> None:
        """Nothing of it may be left to the garbage collector: that would speak up in whichever test runs then."""
        await self._server.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
