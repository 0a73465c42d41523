"""A server, nodes and one job on this machine, and a reader of what they write: for the demo, benchmarks and scenario tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eagle_eye.app import drills
from eagle_eye.app.local_cluster import LocalCluster
from eagle_eye.clock import Clock
from eagle_eye.ports import free_port
from eagle_eye.rpc.control_client import call
from eagle_eye.rpc.control_messages import ReleaseNodeCommand

from .deployment_reader import DeploymentReader


@dataclass(slots=True, kw_only=True)
class DemoJob:
    """Server, nodes and one job. `command` is the training command; `folder` keeps state and logs."""

    folder: Path
    config: str
    """Text of the configuration; `{port}` in it becomes the server's."""
    command: Sequence[str]
    job: str = "demo/gpt"
    nodes: Sequence[str] = ("node-a", "node-b")
    workers_per_node: int = 2
    heal: str = "restart:100"
    server: Sequence[str] = ()
    """Further arguments of the server."""
    launch: Sequence[str] = ()
    """Further options of each launcher."""
    served: bool = True
    """False: launchers and agents alone, without a server."""
    clock: Clock
    on_look: Callable[[], None] = lambda: None
    """Called at each look, about 20 times a second."""
    cluster: LocalCluster = field(init=False)
    record: DeploymentReader = field(init=False)
    server_address: str = ""
    _rendezvous: str = ""

    def start(self) -> None:
        """Start everything; returns at once. The job's full name is `job`/run-1."""
        self.folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.server_address, self._rendezvous = f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"
        config_file = self.folder / "eagle-eye.toml"
        config_file.write_text(self.config.replace("{port}", str(port)))
        self.cluster = LocalCluster(folder=self.folder, config_file=config_file, clock=self.clock, state_dir=self.folder / "state")
        self.record = DeploymentReader.open(self.cluster.state_dir, f"{self.job}/run-1", self.clock)
        if self.served:
            self.cluster.start_server(*self.server)
        for node in self.nodes:
            self.start_node(node, first=node == self.nodes[0])

    def start_node(self, name: str, *, first: bool = False) -> None:
        """Start, or after a loss start again, a node's agent and launcher. The first one's launcher is the rendezvous."""
        self.cluster.start_node(
            name,
            [
                "--listen", self._rendezvous if first else "127.0.0.1:0", "--rdzv", self._rendezvous, "--job", self.job, "--run-id", "run-1",
                "--nnodes", f"1:{len(self.nodes)}", "--nproc-per-node", str(self.workers_per_node), "--heal", self.heal,
                *([] if self.served else ["--no-server"]), *self.launch, "--", *self.command,
            ],
        )  # fmt: skip

    def kill_node(self, name: str, detail: str = "") -> drills.ActiveDrill:
        """kill -9 of agent, launcher and workers of a node, and wait until they are gone."""
        workers = [worker.pid for worker in drills.running_workers([self.cluster.run_dir(name)])]
        struck = drills.kill_node(name, [*self.cluster.pids(name), *workers], self.clock, detail=detail)
        self.cluster.reap(name)
        return struck

    def release(self, name: str) -> None:
        """Release an evicted node: it may take part in its job again."""
        call(self.server_address, "release", ReleaseNodeCommand(node=name, person="demo"))

    def workers(self) -> list[drills.DrillTarget]:
        """Living workers of all nodes."""
        return drills.running_workers([self.cluster.run_dir(node) for node in self.nodes])

    def full(self) -> bool:
        """Every node takes part, and a step was committed since."""
        layout, steps = self.record.trace.layout, self.record.trace.steps
        return layout is not None and len(layout.placements) == len(self.nodes) * self.workers_per_node and bool(steps) and steps[-1].epoch == layout.epoch

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Look until the condition holds; False after `seconds`. Raises LaunchError when the server has ended."""
        deadline = self.clock.monotonic() + seconds
        while True:
            self.record.look()
            self.on_look()
            self.cluster.check()
            if condition():
                return True
            if self.clock.monotonic() >= deadline:
                return False
            self.clock.sleep(0.05)

    def wait_steps(self, count: int, seconds: float) -> bool:
        """Wait until so many further steps were committed."""
        goal = self.record.trace.highest() + count
        return self.wait(lambda: self.record.trace.highest() >= goal, seconds)

    def stop(self) -> None:
        """End every process and take a last look."""
        self.cluster.stop()
        self.record.look()
        self.record.close()
