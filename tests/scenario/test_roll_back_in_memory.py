"""A job goes back, and dies again before it has saved anything: real launchers and workers, copies in memory and on the neighbour."""

import json
import re
import sys
from contextlib import closing
from pathlib import Path

from eagle_eye.config import CheckpointsConfig
from fakes.elastic_processes import TORCH
from fakes.launchers import FakeLeader, LauncherCluster, living, wait_until
from remediation.checkpoint.copy_files import CopyFiles

SCRIPT = """
import json, os, time
from pathlib import Path
import torch
import eagle_eye

home = Path(__file__).parent
rank, epoch = int(os.environ["RANK"]), int(os.environ["EAGLE_EYE_EPOCH"])
torch.distributed.init_process_group("gloo")
parameters = [torch.nn.Parameter(torch.full((200_000,), 100.0 * rank))]
optimizer = torch.optim.SGD(parameters, lr=1.0)  # its step adds one
memory = eagle_eye.MemoryCheckpoints([optimizer])
state = lambda: {"model": parameters}
found = memory.load(state())
start = found.step if found else 0
whole = bool((parameters[0] == 100.0 * rank + start).all())
(home / f"start-{epoch}-{rank}").write_text(json.dumps({"start": start, "whole": whole}))
memory.prepare(state())
for step in eagle_eye.monitor().steps(range(start, 100_000)):
    torch.distributed.barrier()
    for each in parameters:
        each.grad = -torch.ones_like(each)
    optimizer.step()
    if (home / "stop").exists():
        (home / f"stopped-{epoch}-{rank}").touch()
    elif (step + 1) % 5 == 0:
        memory.save(state(), step + 1)
        memory.finish()
    time.sleep(0.02)
"""
KEPT = CheckpointsConfig(memory_steps=6, backup_steps=4)


def test_nothing_brings_back_what_was_abandoned_neither_the_own_memory_nor_the_neighbour_s(cluster: LauncherCluster, leader: FakeLeader) -> None:
    given = {"nnodes": (2, 2), "nproc": 1, "command": (sys.executable, "train.py"), "preload": TORCH, "backup": KEPT}
    cluster.both(**given, leader=leader.address)
    wait_until("the leader to know", lambda: leader.known)
    wait_until("two steps that all have, also on the neighbour", lambda: len(_common(cluster)) > 1)
    (cluster.directory / "stop").touch()
    wait_until("no more saves", lambda: len(list(cluster.directory.glob("stopped-1-*"))) == 2)
    back, newest = _common(cluster)[-2:]
    leader.command("restart", {"resume_step": back, "own": False}, epoch=1, step="a")
    assert _loaded(cluster, 2) == {back}
    lost = cluster.launchers[1]
    lost.kill()
    lost.wait()
    for path in Path("/dev/shm").glob(f"*{cluster.run}-n1-*.memory"):  # with the node its memory is gone
        path.unlink()
    assert newest in _steps(cluster, "n0", 0, 2), "rank 0 still has what was abandoned"
    assert back in _steps(cluster, "n0", 1, 2), "and the neighbour what rank 1 goes on from"
    cluster.launch(1, **given, leader=leader.address)
    epoch = wait_until("the next start", lambda: next((layout.epoch for layout in cluster.layouts() if layout.epoch > 2 and len(layout.nodes) == 2), None))
    assert _loaded(cluster, epoch) == {back}
    assert cluster.layouts()[-1].rolled_back == ((2, back),)
    cluster.launchers[0].terminate()
    wait_until("the end", lambda: not living(cluster.run))
    wait_until("the launchers' end", lambda: all(launcher.poll() is not None for launcher in cluster.launchers.values()))


def _loaded(cluster: LauncherCluster, epoch: int) -> set[int]:
    """The steps from which its ranks begin, with the values of that step."""
    found = wait_until(f"what both load in epoch {epoch}", lambda: len(words := [read for rank in range(2) if (read := _read(cluster.directory / f"start-{epoch}-{rank}"))]) == 2 and words)
    assert all(words["whole"] for words in found)
    return {words["start"] for words in found}


def _common(cluster: LauncherCluster) -> list[int]:
    """Steps that both ranks have on their nodes, and rank 1 on the other one as well."""
    return sorted(_steps(cluster, "n0", 0, 2, own=True) & _steps(cluster, "n1", 1, 2, own=True) & _steps(cluster, "n0", 1, 2))


def _steps(cluster: LauncherCluster, node: str, rank: int, world: int, *, own: bool = False) -> set[int]:
    """Of a rank, on a node. `own`: in the memory of its worker."""
    found: set[int] = set()
    for path in Path("/dev/shm").glob(f"*{cluster.run}-{node}-*.memory"):
        prefix = re.sub(r"(\d+|backup-\d+of\d+)\.memory$", "", path.name)
        with closing(CopyFiles(path.parent, prefix, 1)) as files:
            found |= {name.step for name in files.names(rank, world) if not own or not name.backup}
    return found


def _read(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
