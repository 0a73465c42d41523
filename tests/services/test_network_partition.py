"""The network parts the launchers of a torch job: three nodes in network namespaces, whose links are really cut and mended.

The side with the majority goes on, with a server or without; the other one's workers are left as they are until it is known that the others
have gone on, and nothing of it counts.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.training import checkpoint
from fakes.json_lines import json_lines
from fakes.launchers import DEADLINE_S, LauncherCluster, living, wait_until
from fakes.launchers import SCRIPT as PLAIN
from remediation.launcher.launcher_settings import LauncherSettings
from servers.network import Network, namespaces

NODES = (0, 1, 2)
START_S = 180.0
"""Three launchers import torch at once; on a busy machine that takes its time."""
STEPS = 160
MICRO_BATCHES = 6
SAVE_EVERY = 10
SCRIPT = f"""
import json, os, sys, time
from pathlib import Path
import torch
import eagle_eye

torch.set_num_threads(1)
torch.manual_seed(5)
home = Path(__file__).parent
node = os.environ.get("EAGLE_EYE_NODE", "alone")

def batch(step, micro_batch):
    if not (home / "hurry").exists():
        time.sleep(0.1)  # until everything was done to it that the test wants to do
    draw = torch.Generator().manual_seed(100 * step + micro_batch)
    given = torch.randn(4, 8, generator=draw)
    return given, given.sum(1, keepdim=True)

layers = [torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)]
worker = eagle_eye.elastic(
    layers, loss=torch.nn.functional.mse_loss, batch=batch, micro_batches={MICRO_BATCHES}, save_every={SAVE_EVERY},
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
)
with (home / f"steps-{{node}}").open("a", buffering=1) as out:
    for step in worker.steps(until={STEPS}):
        done = {{name.split("/")[-2] if "/" in name else name: mine for name, mine in step.result.micro_batches.items()}}
        out.write(json.dumps({{"step": step.number, "loss": step.run(), "done": done, "pid": os.getpid()}}) + "\\n")
with (home / "digests").open("a") as out:
    out.write(worker.train_state.digest() + "\\n")
os._exit(0)
"""
COMMAND = (sys.executable, "train.py")
PRELOAD = ("torch", "torch.distributed", "torch._dynamo", "eagle_eye.training.elastic.api")


def steps(home: Path, node: str) -> list[dict[str, Any]]:
    """What the workers of a node have committed."""
    return json_lines(home / f"steps-{node}")


class Undisturbed:
    """The same training by one worker alone."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Beside what the test waits for then."""
        if self.process is None:
            (self.home / "train.py").write_text(SCRIPT)
            (self.home / "hurry").touch()
            environment = {**os.environ, "EAGLE_EYE_CHECKPOINT_DIR": str(self.home / "kept"), "OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(COMMAND, cwd=self.home, env=environment)

    def result(self) -> tuple[list[float], str]:
        """Losses by step, and the digest of what was trained."""
        assert self.process is not None
        assert self.process.wait(120) == 0
        return [each["loss"] for each in steps(self.home, "alone")], (self.home / "digests").read_text().strip()


class PartitionedCluster(LauncherCluster):
    """Nodes on a network that can be parted."""

    def __init__(self, directory: Path, network: Network) -> None:
        super().__init__(directory)
        self.network = network
        self.ports = [29400 for _ in NODES]  # of machines of their own
        (directory / "train.py").write_text(SCRIPT)

    def settings(self, node: int, /, **changes: Any) -> LauncherSettings:
        given = {
            "command": COMMAND, "preload": PRELOAD, "nproc": 1, "nnodes": (1, len(NODES)), "insecure": True, "lease_s": 1.5,
            "join_timeout_s": START_S,
            "address": f"{self.network.address(node)}:{self.ports[node]}",
            "rendezvous": f"{self.network.address(0)}:{self.ports[0]}",
        }  # fmt: skip
        return super().settings(node, **given | changes)

    def inside(self, node: int) -> tuple[str, ...]:
        return self.network.inside(node)

    def train(self, *nodes: int, within: float = DEADLINE_S) -> None:
        """Wait until these nodes, and no others, have committed a step together."""
        names = {f"n{node}" for node in nodes}

        def together() -> bool:
            newest = [steps(self.directory, name)[-1:] for name in sorted(names)]
            return all(each and set(each[0]["done"]) == names for each in newest)

        wait_until(f"a step of {sorted(names)}", together, within)

    def cut_off(self, node: int) -> None:
        """Cut a node's link; returns once the others train on. Nobody may have ended its workers: it cannot know that they do."""
        workers = self.pids(node)
        self.network.cut(node)
        self.train(*(other for other in NODES if other != node))
        assert set(workers) <= set(living(self.run))

    def runs_on(self, *nodes: str) -> None:
        """Wait until an epoch with these nodes has begun."""

        def newest() -> set[str]:
            begun = {int(event.attributes["epoch"]) for event in self.events("epoch.started")}
            return next((set(layout.nodes) for layout in reversed(self.layouts()) if layout.epoch in begun), set())

        wait_until(f"an epoch of {sorted(nodes)}", lambda: newest() == set(nodes))

    def said(self, node: int) -> str:
        """By a launcher, on stderr."""
        return (self.directory / f"launcher{node}.log").read_text()

    def ends(self, *nodes: int) -> None:
        """Let the training come to its end, and wait for it."""
        (self.directory / "hurry").touch()
        assert [self.launchers[node].wait(DEADLINE_S) for node in nodes] == [0] * len(nodes)
        assert len(self.events("job.finished")) == 1
        assert not self.events("job.failed"), "whoever was cut off does not speak for the job"

    def close(self) -> None:
        for log in sorted(self.directory.glob("*.log")):  # shown where a test fails
            sys.stdout.write(f"--- {log.name}\n{log.read_text()[-4000:]}\n")
        try:
            super().close()
        finally:
            self.network.close()


def one_history(cluster: PartitionedCluster, undisturbed: Undisturbed) -> None:
    """Everybody tells the same of a step; each micro-batch of each is in it once; and the bits are those of one worker alone."""
    told: dict[int, dict[str, Any]] = {}
    for node in NODES:
        for record in steps(cluster.directory, f"n{node}"):
            own = {name: record[name] for name in ("loss", "done")}
            if not own["done"]:  # the others completed it while this worker was cut off in the middle of it
                continue
            assert told.setdefault(record["step"], own) == own, f"n{node} tells otherwise of step {record['step']}"
    assert sorted(told) == list(range(STEPS))
    for step, record in told.items():
        assert sorted(each for mine in record["done"].values() for each in mine) == list(range(MICRO_BATCHES)), step
    losses, digest = undisturbed.result()
    assert [told[step]["loss"] for step in range(STEPS)] == losses
    assert set((cluster.directory / "digests").read_text().split()) == {digest}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    made = Undisturbed(tmp_path_factory.mktemp("alone"))
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[PartitionedCluster]:
    made = PartitionedCluster(tmp_path, Network(len(NODES)))
    yield made
    made.close()


@pytest.fixture
def server(cluster: PartitionedCluster) -> Iterator[str]:
    """Address of a real server where the switch is: whoever is cut off does not reach it."""
    address, state = f"{cluster.network.server}:7467", cluster.directory / "state"
    config = cluster.directory / "config.toml"
    config.write_text(f'[server]\nlisten = "{address}"\nhttp = ""\ninsecure = true\n[history]\nenabled = false\n')
    command = [*cluster.network.inside_switch, sys.executable, "-m", "eagle_eye.app.cli", "server", "--config", str(config)]
    log = cluster.directory / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--state-dir", str(state), "--run-dir", str(cluster.directory / "run")], stdout=out, stderr=out)
    wait_until("a server that leads", lambda: process.poll() is not None or "leading in term" in log.read_text())
    assert process.poll() is None, log.read_text()
    yield address
    process.terminate()
    process.wait(DEADLINE_S)


def test_who_is_cut_off_does_nothing_and_comes_back_with_the_link(cluster: PartitionedCluster, server: str, undisturbed: Undisturbed) -> None:
    for node in NODES:
        cluster.launch(node, leader=server)
    cluster.train(*NODES, within=START_S)
    undisturbed.begin()
    for alone in (2, 0):  # a follower, then the coordinator
        cluster.cut_off(alone)
        cluster.network.mend(alone)
        cluster.train(*NODES)
    wait_until("the newest layout's coordinator", lambda: cluster.layouts()[-1].coordinator == "n1")
    held = {(layout.epoch, layout.coordinator, layout.workers) for layout in cluster.layouts()}  # one is told again when more is known of its places
    assert len({epoch for epoch, *_ in held}) == len(held), "no epoch is there twice"
    cluster.ends(*NODES)
    one_history(cluster, undisturbed)


def test_without_a_server_the_majority_goes_on_and_the_one_alone_stops_and_says_why(cluster: PartitionedCluster, undisturbed: Undisturbed) -> None:
    for node in NODES:
        cluster.launch(node, wait_nodes_s=5.0 if node == 0 else 600.0)
    cluster.train(*NODES, within=START_S)
    undisturbed.begin()
    cluster.network.cut(0)
    cluster.train(1, 2)  # on a busy machine the first one has given up by then
    last = steps(cluster.directory, "n0")[-1]["step"]
    assert "n1, n2 cannot be reached and 1 of 3 launchers are too few" in cluster.said(0)
    assert cluster.launchers[0].wait(DEADLINE_S) == 1
    assert "n1, n2 could not be reached for 5 s" in cluster.said(0)
    cluster.ends(1, 2)
    one_history(cluster, undisturbed)
    saved = [(int(event.attributes["step"]), event.node) for event in cluster.events("checkpoint.saved")]
    assert [step for step, _ in saved] == list(range(SAVE_EVERY, STEPS + 1, SAVE_EVERY)), "each once"
    assert {node for step, node in saved if step > last + 1} == {"n1"}
    assert {node for step, node in saved if step <= last} <= {"n0"}
    newest = checkpoint.entries(cluster.settings(0).checkpoints)[-1]
    assert newest.step == STEPS


def test_a_job_of_restarts_goes_on_without_its_coordinator_and_takes_it_back(cluster: PartitionedCluster) -> None:
    (cluster.directory / "restarts.py").write_text(PLAIN)
    given = {"command": (sys.executable, "restarts.py", "100000"), "preload": (), "lease_s": 1.0}
    for node in NODES:
        cluster.launch(node, **given, wait_nodes_s=1.0 if node == 0 else 600.0)
    cluster.runs_on("n0", "n1", "n2")
    workers = cluster.pids(0)
    cluster.network.cut(0)
    cluster.runs_on("n1", "n2")
    assert cluster.launchers[0].wait(DEADLINE_S) == 1
    assert "n1, n2 could not be reached for 1 s" in cluster.said(0)
    assert not set(workers) & set(living(cluster.run))
    cluster.network.mend(0)
    cluster.launch(0, **given)
    cluster.runs_on("n0", "n1", "n2")
    assert cluster.layouts()[-1].coordinator == "n1", "it joined; it did not begin a second job"


def test_what_a_killed_run_left_of_its_network_is_taken_away() -> None:
    script = "import os, signal\nfrom servers.network import Network, namespaces\nNetwork(1)\nprint(*namespaces(), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True) as killed:
        told, _ = killed.communicate(timeout=60)
    left = {name for name in told.split() if f"-{killed.pid}-" in name}
    assert len(left) == 2, "a node and a switch"
    Network(0).close()
    assert not left & set(namespaces())
