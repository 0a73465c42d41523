"""Parts of a deployment that can be away: each a context, in which the part is away and after which it is back."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.parts_away.outage import NODES
from benchmarks.faults.parts_away.parted_network import PartedNetwork
from benchmarks.harm.deployment import Deployment, HarmJob
from eagle_eye.stream.embedded import EmbeddedStream

DISK_BYTES = 48 << 20
"""Of a state directory that can be filled: the records of a run take a few MiB."""
BLOCK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchers:
    """All that watches one job."""

    deployment: Deployment
    job: HarmJob
    network: PartedNetwork

    @property
    def coordinator(self) -> str:
        """Node of the launcher that coordinates now."""
        return self.job.record.layouts[-1].coordinator

    def launcher(self, node: str) -> subprocess.Popen[bytes]:
        return self.deployment.cluster.nodes[node].launcher

    def agent(self, node: str) -> subprocess.Popen[bytes]:
        return self.deployment.cluster.nodes[node].agent

    @property
    def processes(self) -> dict[str, subprocess.Popen[bytes]]:
        """Those that run now, by name."""
        server = self.deployment.cluster.server
        nodes = {f"{kind} {node}": process for node in self.job.nodes for kind, process in (("launcher", self.launcher(node)), ("agent", self.agent(node)))}
        return nodes | ({} if server is None else {"server": server})


Part = Callable[[Watchers], AbstractContextManager[None]]


@contextmanager
def _stopped(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    """SIGSTOP, and SIGCONT. Workers are children of a launcher's child and go on."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@contextmanager
def server_stopped(watchers: Watchers) -> Iterator[None]:
    """With the processes that it has started."""
    server = watchers.deployment.cluster.server
    assert server is not None
    os.killpg(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGCONT)


@contextmanager
def server_killed(watchers: Watchers) -> Iterator[None]:
    """kill -9, and started again."""
    cluster = watchers.deployment.cluster
    assert cluster.server is not None
    _kill(cluster.server)
    cluster.server = None
    try:
        yield
    finally:
        watchers.deployment.start_server()


def agents_stopped(watchers: Watchers) -> AbstractContextManager[None]:
    """On all nodes."""
    return _stopped(*(watchers.agent(node) for node in watchers.job.nodes))


@contextmanager
def agents_killed(watchers: Watchers) -> Iterator[None]:
    """kill -9 on all nodes, and started again."""
    cluster = watchers.deployment.cluster
    for node in watchers.job.nodes:
        _kill(watchers.agent(node))
    try:
        yield
    finally:
        for number, node in enumerate(watchers.job.nodes):
            with watchers.network.entered(number):
                cluster.nodes[node].agent = cluster.start_agent(node)


def coordinator_stopped(watchers: Watchers) -> AbstractContextManager[None]:
    """The coordinator's launcher alone."""
    return _stopped(watchers.launcher(watchers.coordinator))


def follower_stopped(watchers: Watchers) -> AbstractContextManager[None]:
    """The other launcher."""
    return _stopped(*(watchers.launcher(node) for node in watchers.job.nodes if node != watchers.coordinator))


def launchers_parted(watchers: Watchers) -> AbstractContextManager[None]:
    """No packet of Eagle Eye gets from one node to the other."""
    return watchers.network.parted()


@contextmanager
def node_out_of_sight(watchers: Watchers) -> Iterator[None]:
    """Eagle Eye's network of the node that does not coordinate is cut, and its agent stopped: the stream here is no network."""
    number, node = next((number, node) for number, node in enumerate(watchers.job.nodes) if node != watchers.coordinator)
    with watchers.network.cut(number), _stopped(watchers.agent(node)):
        yield


@contextmanager
def stream_held(watchers: Watchers) -> Iterator[None]:
    """Nobody can append."""
    with closing(EmbeddedStream(watchers.deployment.cluster.state_dir / "stream")) as stream, stream.hold():
        yield


@contextmanager
def disk_full(watchers: Watchers) -> Iterator[None]:
    """The state directory's disk, to its last block."""
    filler = watchers.deployment.cluster.state_dir / "filler"
    fill(filler)
    try:
        yield
    finally:
        filler.unlink()


def fill(file: Path) -> None:
    """Write until the disk takes no more."""
    with file.open("wb", buffering=0) as out:
        for size in (1 << 20, BLOCK):
            with suppress(OSError):
                while True:
                    out.write(bytes(size))


@contextmanager
def everything(watchers: Watchers) -> Iterator[None]:
    """Server and agents killed, launchers stopped, their network cut, the disk full."""
    with ExitStack() as away:
        for part in (server_killed, agents_killed, disk_full):
            away.enter_context(part(watchers))
        away.enter_context(watchers.network.cut(*range(NODES)))
        away.enter_context(_stopped(*(watchers.launcher(node) for node in watchers.job.nodes)))
        yield


PARTS: dict[str, Part] = {
    each.__name__.replace("_", " "): each
    for each in (
        server_stopped, server_killed, agents_stopped, agents_killed, coordinator_stopped, follower_stopped, launchers_parted, node_out_of_sight,
        stream_held, disk_full, everything,
    )
}  # fmt: skip
"""Name of a run's part → the part."""


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of DISK_BYTES at `folder`. Raises OSError where that is not allowed."""
    folder.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "away", str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        raise PermissionError(f"{folder} cannot be mounted: {done.stderr.strip()}; it needs root with CAP_SYS_ADMIN")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)
