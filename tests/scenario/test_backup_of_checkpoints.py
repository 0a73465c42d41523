"""Checkpoints in memory of nodes that are lost: two real launchers, what one has kept for the other, and what both have brought to storage."""

import json
import sys
from pathlib import Path

from eagle_eye.config import CheckpointsConfig
from eagle_eye.place_file import write_place
from eagle_eye.training import checkpoint
from eagle_eye.types import NodePlace
from fakes.elastic_processes import TORCH
from fakes.launchers import LauncherCluster, living, wait_until

SCRIPT = """
import json, os, time
from pathlib import Path
import torch
import eagle_eye

home = Path(__file__).parent
rank, epoch = int(os.environ["RANK"]), int(os.environ["EAGLE_EYE_EPOCH"])
torch.distributed.init_process_group("gloo")
parameters = [torch.nn.Parameter(torch.zeros(500_000)) for _ in range(3)]
optimizer = torch.optim.SGD(parameters, lr=1.0)  # its step adds one, and the rank
memory = eagle_eye.MemoryCheckpoints([optimizer])
state = lambda: {"model": parameters}
for index, each in enumerate(parameters):
    each.data.fill_(100.0 * rank + index)
found = memory.load(state())
start = found.step if found else 0
whole = all(bool((each == 100.0 * rank + index + start).all()) for index, each in enumerate(parameters))
(home / f"start-{epoch}-{rank}").write_text(json.dumps({"start": start, "whole": whole, "node": os.environ["EAGLE_EYE_NODE"], "skipped": found.skipped if found else []}))
memory.prepare(state())
for step in eagle_eye.monitor().steps(range(start, 100_000)):
    torch.distributed.barrier()
    for each in parameters:
        each.grad = -torch.ones_like(each)
    optimizer.step()
    if (home / "stop").exists():
        continue
    if (step + 1) % 5 == 0:
        memory.save(state(), step + 1)
        memory.finish()
        (home / f"saves-{rank}").write_text(str((step + 1) // 5))
    time.sleep(0.02)
"""


def test_the_shard_of_a_lost_node_comes_from_its_neighbour_bit_for_bit(cluster: LauncherCluster) -> None:
    (cluster.directory / "train.py").write_text(SCRIPT)
    given = {"nnodes": (2, 2), "nproc": 1, "command": (sys.executable, "train.py"), "preload": TORCH}
    cluster.both(**given)
    shared = Path("/dev/shm")
    _backed_up(cluster, 2)
    [own] = shared.glob(f"*{cluster.run}-n1-*-0.memory")
    lost = cluster.launchers[1]
    lost.kill()
    lost.wait()
    own.unlink()  # with the node its memory is gone
    for path in shared.glob(f"*{cluster.run}-n1-*-backup-*.memory"):
        path.unlink()
    cluster.launch(1, **given)
    found = wait_until("its successor", lambda: next(iter(sorted(cluster.directory.glob("start-[2-9]-1"))), None))
    words = wait_until("what it has loaded", lambda: _read(found))
    assert words["node"] == "n1"
    assert words["whole"]
    assert words["start"] > 0
    epoch = found.name.split("-")[1]
    assert wait_until("the other rank", lambda: _read(cluster.directory / f"start-{epoch}-0"))["start"] == words["start"]
    told = wait_until("the event", lambda: [event for event in cluster.events("checkpoint.loaded") if event.attributes["tier"] == "neighbour"])
    assert (told[0].attributes["source"], told[0].attributes["step"]) == ("n0", str(words["start"]))
    assert not list(shared.glob(f"*{cluster.run}*-fetched.memory")), "what was fetched is given back"
    for launcher in cluster.launchers.values():
        launcher.terminate()
    wait_until("the end", lambda: not living(cluster.run))
    wait_until("the launchers' end", lambda: all(launcher.poll() is not None for launcher in cluster.launchers.values()))
    assert not list(shared.glob(f"*{cluster.run}*.memory")), "all of it goes with the job"


def test_workers_of_a_lost_node_read_at_once_what_all_ranks_hold_alike(cluster: LauncherCluster) -> None:
    """It is fetched for the first that asks; the other one has it open at the same time."""
    (cluster.directory / "train.py").write_text(SCRIPT.replace("([optimizer])", "([optimizer], replicated=True)").replace("100.0 * rank", "0.0"))
    given = {"nnodes": (2, 2), "nproc": 2, "command": (sys.executable, "train.py"), "preload": TORCH}
    cluster.both(**given)
    _backed_up(cluster, 2)
    lost = cluster.launchers[1]
    lost.kill()
    lost.wait()
    for path in Path("/dev/shm").glob(f"*{cluster.run}-n1-*.memory"):
        path.unlink()
    cluster.launch(1, **given)
    found = wait_until("what all have loaded", lambda: len(words := _starts(cluster)) == 4 and words)
    assert all(words["whole"] for words in found.values())
    [start] = {words["start"] for words in found.values()}
    assert start > 0
    told = wait_until("the events", lambda: len(events := [event for event in cluster.events("checkpoint.loaded") if event.attributes["tier"] == "neighbour"]) >= 2 and events)
    assert {(event.node, event.attributes["source"], event.attributes["step"]) for event in told} == {("n1", "n0", str(start))}
    assert not list(Path("/dev/shm").glob(f"*{cluster.run}*-fetched.memory")), "what was fetched is given back"
    cluster.launchers[0].terminate()
    wait_until("the end", lambda: not living(cluster.run))
    wait_until("the launchers' end", lambda: all(launcher.poll() is not None for launcher in cluster.launchers.values()))


def test_where_both_copies_in_memory_are_lost_the_job_goes_on_from_storage(cluster: LauncherCluster) -> None:
    (cluster.directory / "train.py").write_text(SCRIPT)
    kept = cluster.directory / "kept"
    given = {
        "nnodes": (2, 2), "nproc": 1, "command": (sys.executable, "train.py"), "preload": TORCH, "checkpoint_dir": kept, "backup": CheckpointsConfig(storage_interval_s=0.3),
    }  # fmt: skip
    cluster.both(**given)
    saved = wait_until("a checkpoint in storage", lambda: cluster.events("checkpoint.saved"))[0]
    assert (saved.attributes["finite"], Path(saved.attributes["path"]).parent) == ("True", kept / "memory")
    for launcher in cluster.launchers.values():
        launcher.kill()
        launcher.wait()
    wait_until("the workers' end", lambda: not living(cluster.run))
    for path in Path("/dev/shm").glob(f"*{cluster.run}*.memory"):
        path.unlink()
    newest = [entry.step for entry in checkpoint.entries(kept / "memory") if not entry.missing][-1]
    cluster.both(**given)
    found = wait_until("what both have loaded", lambda: len(words := {path.name[-1]: read for path in cluster.directory.glob("start-[2-9]-*") if (read := _read(path))}) == 2 and words)
    assert {(words["start"], words["whole"]) for words in found.values()} == {(newest, True)}, "each rank has its own back"
    told = wait_until("the events", lambda: len(events := [event for event in cluster.events("checkpoint.loaded") if event.attributes["tier"] == "storage"]) == 2 and events)
    assert {event.attributes["step"] for event in told} == {str(newest)}
    cluster.launchers[0].terminate()
    wait_until("the end", lambda: all(launcher.poll() is not None for launcher in cluster.launchers.values()))
    assert not list(Path("/dev/shm").glob(f"*{cluster.run}*.memory"))


def test_two_nodes_behind_one_switch_are_lost_and_both_shards_come_from_behind_the_other(cluster: LauncherCluster) -> None:
    """In the order of the layout n2's copies would lie on n3."""
    (cluster.directory / "train.py").write_text(SCRIPT)
    given = {"nnodes": (4, 4), "nproc": 1, "command": (sys.executable, "train.py"), "preload": TORCH, "join_timeout_s": 60.0}
    for node in range(4):
        cluster.run_dir(node).mkdir(parents=True)
        write_place(cluster.run_dir(node), f"n{node}", NodePlace(switch="leaf-1" if node < 2 else "leaf-2"))  # as its agent does
        cluster.launch(node, **given)
    cluster.began(1)
    shared = Path("/dev/shm")
    _backed_up(cluster, 4)
    assert {node: place.switch for node, place in cluster.layouts()[-1].places.items()} == {"n0": "leaf-1", "n1": "leaf-1", "n2": "leaf-2", "n3": "leaf-2"}
    for node in (2, 3):
        cluster.launchers[node].kill()
    for node in (2, 3):
        cluster.launchers[node].wait()
        for path in shared.glob(f"*{cluster.run}-n{node}-*.memory"):  # with the node its memory is gone
            path.unlink()
    for node in (2, 3):
        cluster.launch(node, **given)
    found = wait_until("what all have loaded", lambda: len(words := _starts(cluster)) == 4 and words)
    assert all(words["whole"] for words in found.values())
    assert {words["start"] > 0 for words in found.values()} == {True}
    assert len({words["start"] for words in found.values()}) == 1
    told = wait_until("the events", lambda: len(events := [event for event in cluster.events("checkpoint.loaded") if event.attributes["tier"] == "neighbour"]) == 2 and events)
    assert {event.attributes["source"] for event in told} <= {"n0", "n1"}
    cluster.launchers[0].terminate()
    wait_until("the end", lambda: not living(cluster.run))
    wait_until("the launchers' end", lambda: all(launcher.poll() is not None for launcher in cluster.launchers.values()))


def test_where_each_tenth_save_alone_is_copied_a_lost_node_takes_no_step_from_the_others(cluster: LauncherCluster) -> None:
    """The copies of n0 lay on the lost node: n0 itself still has the step that n1's shard comes back with, however often it has saved since."""
    (cluster.directory / "train.py").write_text(SCRIPT)
    given = {"nnodes": (2, 2), "nproc": 1, "command": (sys.executable, "train.py"), "preload": TORCH, "backup": CheckpointsConfig(backup_every=50)}
    cluster.both(**given)
    shared = Path("/dev/shm")
    _backed_up(cluster, 2)
    begun = _saves(cluster)
    wait_until("more saves than there are slots", lambda: _saves(cluster) > begun + 4)
    lost = cluster.launchers[1]
    lost.kill()
    lost.wait()
    for path in [*shared.glob(f"*{cluster.run}-n1-*-0.memory"), *shared.glob(f"*{cluster.run}-n1-*-backup-*.memory")]:
        path.unlink()
    cluster.launch(1, **given)
    found = wait_until("what both have loaded", lambda: len(words := _starts(cluster)) == 2 and words)
    assert all(words["whole"] for words in found.values())
    assert len({words["start"] for words in found.values()} - {0}) == 1, "the same step, and not the beginning"
    cluster.launchers[0].terminate()
    wait_until("the end", lambda: not living(cluster.run))
    wait_until("the launchers' end", lambda: all(launcher.poll() is not None for launcher in cluster.launchers.values()))


def _backed_up(cluster: LauncherCluster, nodes: int) -> None:
    """Wait until each node has told that all have a step on a second one."""
    wait_until("a step that all have on a second node", lambda: len({event.node for event in cluster.events("checkpoint.safe") if int(event.attributes.get("backup_step", -1)) >= 0}) == nodes)


def _saves(cluster: LauncherCluster) -> int:
    """So many saves rank 0 has made."""
    return int((cluster.directory / "saves-0").read_text() or 0) if (cluster.directory / "saves-0").exists() else 0


def _starts(cluster: LauncherCluster) -> dict[str, dict]:
    """Rank → what it has loaded in the newest epoch that began again."""
    epoch = max((int(path.name.split("-")[1]) for path in cluster.directory.glob("start-*-*")), default=0)
    return {path.name: words for path in cluster.directory.glob(f"start-{epoch}-*") if epoch > 1 and (words := _read(path))}


def _read(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
