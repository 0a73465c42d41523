"""A job of ours on one machine: one launcher or several, without a server or with one, and what they wrote about it."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.elastic.commits import FOLDER, Commits
from benchmarks.processes import naming
from eagle_eye import wire
from eagle_eye.ports import free_port
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import Event
from remediation.launcher.__main__ import settings_json
from remediation.launcher.launcher_settings import LauncherSettings

GRACE_S = 20.0
FAULTS = "EAGLE_EYE_FAULTS"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be started."""

    program: str = "benchmarks.elastic.job"
    """Module that the workers run."""
    script: tuple[str, ...] = ()
    """Its options."""
    nodes: Mapping[str, int] = field(default_factory=lambda: {"n0": 4})
    """Node → workers."""
    heal: str = "in-place:50"
    faults: tuple[Mapping[str, object], ...] = ()
    """What the workers do to themselves: see eagle_eye/training/elastic/fault_injection.py."""
    leader: str = ""
    """host:port of a server; empty: none."""
    lease_s: float = 2.0


class OurJob:
    """Launchers, one a node."""

    def __init__(self, folder: Path, order: Order) -> None:
        self.name, self.order, self.folder = "ours", order, folder
        self.workers = sum(order.nodes.values())
        self.run = f"bench{os.getpid()}x{secrets.token_hex(3)}"
        self.job = f"bench/elastic/{self.run}"
        self.commits = Commits(folder / "commits")
        self._ports = {node: free_port() for node in order.nodes}
        self._first = next(iter(order.nodes))
        self.launchers = {node: self._launch(node) for node in order.nodes}

    def _launch(self, node: str) -> subprocess.Popen[bytes]:
        order = self.order
        environment = os.environ | {FOLDER: str(self.commits.folder), FAULTS: json.dumps(order.faults), "PYTHONPATH": str(ROOT)}
        if not order.faults:
            del environment[FAULTS]
        settings = LauncherSettings(
            job=self.job, node=node, command=(sys.executable, "-m", order.program, *order.script),
            state_dir=self.folder / "state", run_dir=self.folder / f"run-{node}", nproc=order.nodes[node],
            nnodes=(1, len(order.nodes)), address=f"127.0.0.1:{self._ports[node]}",
            rendezvous=f"127.0.0.1:{self._ports[self._first]}", leader=order.leader, heal=order.heal, lease_s=order.lease_s,
            environment=environment, console=False, stop_grace_s=5.0,
        )  # fmt: skip
        with (self.folder / f"launcher-{node}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "remediation.launcher"], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=ROOT
            )
        if process.stdin is not None:
            process.stdin.write(settings_json(settings))
            process.stdin.close()
        return process

    # --- what trials need -------------------------------------------------------------------------------------------

    def pids(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for node in self.order.nodes:
            with contextlib.suppress(OSError, ValueError):
                listing = json.loads((self.folder / f"run-{node}" / "jobs" / f"{self.run}.json").read_text())
                found |= {worker["worker"]: worker["pid"] for worker in listing["workers"]}
        return found

    def failed(self) -> str:
        ended = {node: process.poll() for node, process in self.launchers.items()}
        words = [f"launcher {node} ended with {code}: {self.tail(node)}" for node, code in ended.items() if code not in (None, -9)]
        return "; ".join(words) if all(code is not None for code in ended.values()) else ""

    def repair(self, worker: str) -> None:
        """The launcher does it by itself."""

    def end(self) -> None:
        for process in self.launchers.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.launchers.values():
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # --- what is left to look at ------------------------------------------------------------------------------------

    def tail(self, node: str, lines: int = 4) -> str:
        """The last lines of a launcher's log."""
        text = (self.folder / f"launcher-{node}.log").read_text(errors="replace")
        return " | ".join(text.strip().splitlines()[-lines:])

    def events(self, *names: str) -> list[Event]:
        """What the launchers wrote to the stream, in its order."""
        with contextlib.closing(EmbeddedStream(self.folder / "state" / "stream")) as stream:
            found, reader = list[Event](), wire.RecordReader()
            for partition in range(stream.partitions(OBSERVATIONS)):
                offset = 0
                while messages := stream.read(OBSERVATIONS, partition, offset):
                    offset = messages[-1].offset + 1
                    found += [record for message in messages if isinstance(record := reader.read(message.value), Event)]
        return [event for event in found if event.job == self.job and (not names or event.name in names)]

    def living(self) -> list[int]:
        """Processes of this run, by their environment."""
        return list(naming(f"EAGLE_EYE_RUN={self.run}\0".encode()))

    def left_behind(self, killed: Collection[str] = ()) -> Sequence[str]:
        """Processes, sockets, shared memory and lists of workers that should be gone once the job is over.

        `killed`: nodes whose launcher could not clear up; what is on their disk is for the next one there.
        """
        shared = [path for path in Path("/dev/shm").iterdir() if self.run in path.name]
        files = [path for node in self.order.nodes for kind in ("*.sock", "jobs/*.json") for path in (self.folder / f"run-{node}").rglob(kind)]
        theirs = [f"{mark}{node}{mark}" for node in killed for mark in "-/"] + [f"/run-{node}/" for node in killed]
        found = [str(path) for path in [*shared, *files] if not any(mark in str(path) for mark in theirs)]
        return [*(f"process {pid}" for pid in self.living()), *found]

    def clear_up(self) -> None:
        """Unlink the run's own rings, which a launcher that was killed leaves to the next one of its node."""
        for path in Path("/dev/shm").glob(f"*{self.run}*"):
            path.unlink(missing_ok=True)
