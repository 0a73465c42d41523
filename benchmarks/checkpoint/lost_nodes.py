"""Four nodes train, some of them are lost with their memory: where each rank's state comes from, and whether it is bit for bit what was saved.

    python -m benchmarks.checkpoint.lost_nodes              each node alone, each pair of adjacent ones, each pair of others: ten losses
    python -m benchmarks.checkpoint.lost_nodes --one-each   one of each kind
    python -m benchmarks.checkpoint.lost_nodes --nodes 1 2  this loss alone

Real launchers and workers on loopback, a worker a node, each rank with a state of its own. A worker notes the SHA-256 of each state that it saves, and of
the state that it loads. A node is lost: its launcher is killed (SIGKILL), with it the workers, and its shared memory is removed, its own copies and those
that it kept for its neighbour. Then an empty node takes its place. Copies lie on the next node of the ring: of two adjacent nodes both copies of one rank
are lost, and all ranks have to go on from storage; else from memory, the lost ranks from their neighbours, and the others from their own.
"""

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track

from benchmarks.report import Row, report
from eagle_eye.config import CheckpointsConfig
from tests.fakes.launchers import LauncherCluster, wait_until

NODES = 4
STORAGE_S = 0.3
"""Between two checkpoints in storage."""
LINES = 12
"""Of each launcher's log are shown, where a loss comes to no end."""
TORCH = ("torch", "torch.distributed", "torch._dynamo")
KINDS = ("any one node lost", "two lost that are not adjacent", "two adjacent ones lost")
SHARED = Path("/dev/shm")
SCRIPT = """
import hashlib, json, os, time
from pathlib import Path
import torch
import eagle_eye

home = Path(__file__).parent
rank, epoch = int(os.environ["RANK"]), int(os.environ["EAGLE_EYE_EPOCH"])
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
torch.manual_seed(rank)
parameters = [torch.nn.Parameter(torch.randn(count)) for count in (200_000, 7, 50_001)]
optimizer = torch.optim.AdamW(parameters, lr=0.01)
memory = eagle_eye.MemoryCheckpoints([optimizer])
state = lambda: {"model": parameters, "optimizer": optimizer.state_dict()}

def digest():
    found = hashlib.sha256()
    for each in parameters:
        for tensor in (each, *(optimizer.state[each][name] for name in ("exp_avg", "exp_avg_sq", "step"))):
            found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()

def train(step):
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    for each in parameters:
        each.grad = torch.randn(each.shape, generator=generator)
    optimizer.step()

train(0)  # the optimizer has its state
found = memory.load(state())
if found:
    optimizer.load_state_dict(found.state["optimizer"])
words = {"step": found.step, "digest": digest()} if found else {"step": -1, "digest": ""}
unfinished = home / f"unfinished-{epoch}-{rank}"
unfinished.write_text(json.dumps(words))
unfinished.rename(home / f"loaded-{epoch}-{rank}")
memory.prepare(state())
for step in eagle_eye.monitor().steps(range(found.step if found else 1, 100_000)):
    torch.distributed.barrier()
    train(step)
    if (step + 1) % 5 == 0:
        with (home / f"saved-{rank}").open("a") as notes:
            notes.write(f"{step + 1} {digest()}\\n")
        memory.save(state(), step + 1)
        memory.finish()
    time.sleep(0.02)
"""


class Loss(NamedTuple):
    """What was lost, and what came of it."""

    kind: str
    nodes: tuple[int, ...]
    safe: int
    """The step that was told to be safe from this loss before it came: on a second node for all nodes, or in storage."""
    step: int
    """All ranks go on from this one; -1: they do not agree, or have nothing."""
    exact: bool
    tiers: dict[int, str]
    """By rank, as the events say it; memory where none was told: its own."""

    @property
    def right(self) -> bool:
        """Whether it came back as it should, and from where it should."""
        lost = "storage" if self.kind == KINDS[2] else "neighbour"
        kept = "storage" if self.kind == KINDS[2] else "memory"
        return self.step >= self.safe > 0 and self.exact and all(tier == (lost if rank in self.nodes else kept) for rank, tier in self.tiers.items())


@contextmanager
def training() -> Iterator[LauncherCluster]:
    """The nodes, as they train."""
    with tempfile.TemporaryDirectory(prefix="eagle-eye-lost-") as folder:
        cluster = LauncherCluster(Path(folder))
        try:
            (Path(folder) / "train.py").write_text(SCRIPT)
            for node in range(NODES):
                launch(cluster, node)
            cluster.began(1)
            yield cluster
            cluster.launchers[0].terminate()
            wait_until("the end of the launchers", lambda: all(each.poll() is not None for each in cluster.launchers.values()))
        except AssertionError:  # of wait_until
            for path in sorted(cluster.directory.glob("launcher*.log")):
                print(path.name, *path.read_text(errors="replace").splitlines()[-LINES:], sep="\n  ", file=sys.stderr)
            raise
        finally:
            cluster.close()


def launch(cluster: LauncherCluster, node: int) -> None:
    """One node's launcher."""
    cluster.launch(
        node, nnodes=(NODES, NODES), nproc=1, command=(sys.executable, "train.py"), preload=TORCH, join_timeout_s=60.0,
        checkpoint_dir=cluster.directory / "kept", backup=CheckpointsConfig(storage_interval_s=STORAGE_S),
    )  # fmt: skip


def lose(kind: str, nodes: tuple[int, ...]) -> Loss:
    """Once all have a step on a second node, and one in storage."""
    with training() as cluster:
        wait_until("a step that all have on a second node", lambda: safe_step(cluster, stored=False) > 0)
        wait_until("a checkpoint in storage", lambda: safe_step(cluster, stored=True) > 0)
        before, safe = len(cluster.events("checkpoint.loaded")), safe_step(cluster, stored=kind == KINDS[2])
        for node in nodes:
            cluster.launchers[node].kill()
        for node in nodes:
            cluster.launchers[node].wait()
            for path in SHARED.glob(f"*{cluster.run}-n{node}-*.memory"):
                path.unlink()
        for node in nodes:
            launch(cluster, node)
        loaded = wait_until("what all ranks have loaded", lambda: all_loaded(cluster.directory))
        told = wait_until("the events of it", lambda: told_of(cluster, before, len(nodes) if kind != KINDS[2] else NODES))
        return outcome(Loss(kind, nodes, safe, -1, False, {}), cluster.directory, loaded, told)


def safe_step(cluster: LauncherCluster, *, stored: bool) -> int:
    """The newest in storage, or the newest that every node has told to be on a second one; -1: none."""
    if stored:
        return max((int(event.attributes["step"]) for event in cluster.events("checkpoint.saved")), default=-1)
    newest = {f"n{node}": -1 for node in range(NODES)}
    for event in cluster.events("checkpoint.safe"):
        newest[event.node] = max(newest[event.node], int(event.attributes.get("backup_step", -1)))
    return min(newest.values())


def all_loaded(folder: Path) -> dict[int, dict[str, Any]]:
    """By rank, of the newest epoch in which all began again; empty: there is none yet."""
    epochs = sorted({int(path.name.split("-")[1]) for path in folder.glob("loaded-*-*")} - {1}, reverse=True)
    for epoch in epochs:
        found = {int(path.name.split("-")[2]): json.loads(path.read_text()) for path in folder.glob(f"loaded-{epoch}-*")}
        if len(found) == NODES:
            return found
    return {}


def told_of(cluster: LauncherCluster, before: int, count: int) -> dict[int, str]:
    """Rank → tier, of what was told since; empty: not all have told yet."""
    ranks = {place.worker: place.rank for place in cluster.layouts()[-1].placements}
    tiers = {ranks[event.attributes["worker"]]: event.attributes["tier"] for event in cluster.events("checkpoint.loaded")[before:] if event.attributes["worker"] in ranks}
    return tiers if len(tiers) >= count else {}


def outcome(loss: Loss, folder: Path, loaded: dict[int, dict[str, Any]], told: dict[int, str]) -> Loss:
    """Compared with what was noted when it was saved."""
    saved = {rank: dict(line.split() for line in (folder / f"saved-{rank}").read_text().splitlines()) for rank in loaded}
    steps = {words["step"] for words in loaded.values()}
    exact = all(saved[rank].get(str(words["step"])) == words["digest"] for rank, words in loaded.items())
    return loss._replace(step=steps.pop() if len(steps) == 1 else -1, exact=exact, tiers={rank: told.get(rank, "memory") for rank in loaded})


def losses(*, one_each: bool) -> list[tuple[str, tuple[int, ...]]]:
    """Kind and nodes."""
    pairs = list(itertools.combinations(range(NODES), 2))
    adjacent = [pair for pair in pairs if (pair[1] - pair[0]) % NODES in {1, NODES - 1}]
    by_kind: list[tuple[str, Sequence[tuple[int, ...]]]] = [
        (KINDS[0], [(node,) for node in range(NODES)]), (KINDS[1], [pair for pair in pairs if pair not in adjacent]), (KINDS[2], adjacent),
    ]  # fmt: skip
    return [(kind, nodes) for kind, each in by_kind for nodes in (each[1:2] if one_each else each)]


def rows_of(found: Sequence[Loss]) -> list[Row]:
    """One for each kind."""
    goals = dict(zip(KINDS, ("memory, bit-exact", "memory, bit-exact", "storage, bit-exact"), strict=True))
    rows = []
    for kind in dict.fromkeys(loss.kind for loss in found):
        mine = [loss for loss in found if loss.kind == kind]
        wrong = [f"nodes {loss.nodes}: step {loss.step} ({loss.safe} was safe), {'' if loss.exact else 'not '}exact, from {loss.tiers}" for loss in mine if not loss.right]
        figure = f"{len(mine) - len(wrong)} of {len(mine)} losses, of {NODES} nodes: all ranks bit for bit, at the step that was said to be safe or a later one, and told"
        rows.append(Row(kind, "; ".join([figure, *wrong]), goals[kind], not wrong))
    return rows


def main() -> int:
    """Lose them one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one-each", action="store_true", help="one loss of each kind")
    parser.add_argument("--nodes", type=int, nargs="+", choices=range(NODES), help="these alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = [each for each in losses(one_each=options.one_each) if options.nodes is None or each[1] == tuple(sorted(options.nodes))]
    found = [attempted(kind, nodes) for kind, nodes in track(wanted, "losses", console=Console(stderr=True))]
    return report(rows_of(found), options.json, "nodes lost, with their memory")


def attempted(kind: str, nodes: tuple[int, ...]) -> Loss:
    """One that comes to no end is none that was survived; the others are still to be tried."""
    try:
        return lose(kind, nodes)
    except AssertionError as error:  # of wait_until
        print(f"nodes {nodes}: {error}", file=sys.stderr)
        return Loss(kind, nodes, -1, -1, False, {})


if __name__ == "__main__":
    sys.exit(main())
