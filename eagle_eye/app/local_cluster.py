"""A cluster on one machine: a server, and nodes that each have an agent and a launcher, all real processes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eagle_eye.clock import Clock
from eagle_eye.errors import LaunchError
from eagle_eye.parent_death import of_ours

LAUNCHERS_S = 30.0
"""A launcher gives its workers a grace of 10 s, kills who is left, and clears up: killed at that moment, it would leave sockets and lists of workers behind."""


@dataclass(slots=True)
class NodeProcesses:
    """The processes of one node."""

    name: str
    run_dir: Path
    agent: subprocess.Popen[bytes]
    launcher: subprocess.Popen[bytes]
    launch: tuple[str, ...] = ()
    """What follows `eagle-eye launch --node NAME`."""


@dataclass(slots=True, kw_only=True)
class LocalCluster:
    """Starts and ends the processes; everything they write lies under `folder`. Nothing outlives it."""

    folder: Path
    """Of the runtime directories and logs."""
    config_file: Path | None
    """None: each process finds its own."""
    clock: Clock
    state_dir: Path
    server: subprocess.Popen[bytes] | None = None
    further: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Servers beside it, by name: standbys, and processes that detect only."""
    nodes: dict[str, NodeProcesses] = field(default_factory=dict)
    launchers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Launchers of further jobs on nodes that are there, by name."""

    def run_dir(self, node: str) -> Path:
        """Runtime directory of a node: each has its own."""
        return self.folder / "run" / node

    def start_server(self, *arguments: str) -> None:
        """Start `eagle-eye server` with these arguments; returns at once."""
        self.server = self._start("server", ["server", "--run-dir", str(self.run_dir("server")), *arguments])

    def start_further(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one more `eagle-eye server`; returns at once."""
        process = self.further[name] = self._start(name, ["server", "--run-dir", str(self.run_dir(name)), *arguments])
        return process

    def restart_server(self, *arguments: str) -> None:
        """kill -9 the server and start it again at once."""
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        self.start_server(*arguments)

    def start_agent(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the agent of a node, without a launcher. The kernel's log is the machine's and none of its nodes'."""
        command = ["agent", "--node", name, "--run-dir", str(self.run_dir(name)), "--without", "kernel_log", *arguments]
        return self._start(f"agent-{name}", command)

    def start_node(self, name: str, launch: Sequence[str]) -> None:
        """Start an agent and a launcher; `launch` is what follows `eagle-eye launch --node NAME`."""
        agent = self.start_agent(name)
        self.nodes[name] = NodeProcesses(name=name, run_dir=self.run_dir(name), agent=agent, launcher=self._start_launcher(name, name, launch), launch=tuple(launch))

    def start_launcher(self, name: str, node: str, launch: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start one more launcher on a node: each job has its own there."""
        process = self.launchers[name] = self._start_launcher(name, node, launch)
        return process

    def pids(self, name: str) -> list[int]:
        """Agent and launcher of a node."""
        node = self.nodes[name]
        return [node.agent.pid, node.launcher.pid]

    def reap(self, name: str, seconds: float = 10.0) -> None:
        """Wait until the processes of a killed node are gone."""
        for process in (self.nodes[name].agent, self.nodes[name].launcher):
            process.wait(seconds)

    def check(self) -> None:
        """Raise LaunchError with the last lines of the log when a server has ended by itself."""
        for name, process in [("server", self.server), *self.further.items()]:
            if process is not None and process.poll() is not None:
                raise LaunchError(f"the {name} ended with {process.returncode}:\n{self.tail(name)}")

    def tail(self, name: str, lines: int = 15) -> str:
        """Last lines that a process wrote."""
        with contextlib.suppress(OSError):
            return "\n".join(self._log(name).read_text(errors="replace").splitlines()[-lines:])
        return ""

    def stop(self, launchers_s: float = LAUNCHERS_S, grace: float = 10.0) -> None:
        """End everything: the launchers together, so that none looks lost to the others, then the agents, then the servers."""
        launchers = [*(node.launcher for node in self.nodes.values()), *self.launchers.values()]
        agents = [node.agent for node in self.nodes.values()]
        servers = [*self.further.values(), *([self.server] if self.server else [])]
        for together, seconds in ((launchers, launchers_s), (agents, grace), (servers, grace)):
            for process in together:
                _signal(process, signal.SIGTERM)
            for process in together:
                _outlive(process, seconds)

    def _start_launcher(self, name: str, node: str, launch: Sequence[str]) -> subprocess.Popen[bytes]:
        return self._start(f"launcher-{name}", ["launch", "--node", node, "--run-dir", str(self.run_dir(node)), *launch])

    def _start(self, name: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "eagle_eye.app.cli", *arguments[:1]]
        command += ["--config", str(self.config_file)] if self.config_file else []
        command += ["--state-dir", str(self.state_dir), *arguments[1:]]
        self._log(name).parent.mkdir(parents=True, exist_ok=True)
        with self._log(name).open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env=of_ours())

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"


def end(process: subprocess.Popen[bytes], grace: float = 10.0) -> None:
    """SIGTERM, and SIGKILL when that does not help in time."""
    _signal(process, signal.SIGTERM)
    _outlive(process, grace)


def _outlive(process: subprocess.Popen[bytes], grace: float) -> None:
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
