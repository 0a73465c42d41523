"""A torchrun script that is no elastic worker: killed, and moved to another world size by its driver; it learns the same."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from eagle_eye.clock import SystemClock
from eagle_eye.types import Layout, WorkerStateReport
from fakes.json_lines import json_lines
from fakes.launchers import DEADLINE_S, FakeLeader, LauncherCluster, wait_until
from fakes.single_job_commander import LeaderCommands
from remediation.frameworks import Torchrun
from remediation.transition import plan_transition

STEPS, GATE = 16, 10
"""At the gate the script waits for a file, so that everything that is done to it is done in time."""

SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
import eagle_eye
from eagle_eye.training import checkpoint

torch.set_num_threads(1)
torch.manual_seed(3)
home = Path(__file__).parent
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
found = checkpoint.load()
if found:
    model.load_state_dict(found[0]["model"])
    optimizer.load_state_dict(found[0]["optimizer"])
start = found[1] + 1 if found else 0
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for step in eagle_eye.monitor().steps(range(start, int(sys.argv[1])), start):
    while step == int(sys.argv[2]) and not (home / "gate").exists():
        time.sleep(0.01)
    optimizer.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for micro_batch in range(rank, 8, world):
        draw = torch.Generator().manual_seed(100 * step + micro_batch)
        given = torch.randn(4, 8, generator=draw, dtype=torch.float64)
        loss = ((model(given) - given.sum(1, keepdim=True)) ** 2).mean() / 8
        loss.backward()
        total += loss.detach()
    for each in [total, *(parameter.grad for parameter in model.parameters())]:
        dist.all_reduce(each)
    optimizer.step()
    if rank == 0:  # the loss first: who is ended between the two computes the step again
        with (home / "losses").open("a") as losses:
            losses.write(json.dumps([step, world, total.item()]) + "\\n")
        checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)
    dist.barrier()
os._exit(0)
"""
COMMAND = (sys.executable, "train.py", str(STEPS), str(GATE))


def losses(home: Path) -> list[tuple[int, int, float]]:
    """(step, world, loss) in the order in which they were committed."""
    return [tuple(each) for each in json_lines(home / "losses")]


def undisturbed(home: Path) -> dict[int, float]:
    """Step → loss of one worker that nobody touches."""
    home.mkdir()
    (home / "train.py").write_text(SCRIPT)
    (home / "gate").touch()
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "EAGLE_EYE_CHECKPOINT_DIR": str(home / "kept")}
    subprocess.run(COMMAND, cwd=home, env={**os.environ, **alone}, check=True, timeout=60)
    return {step: loss for step, _, loss in losses(home)}


def without(layout: Layout, node: str) -> Layout:
    places = tuple(place for place in layout.placements if place.node != node)
    return msgspec.structs.replace(layout, epoch=layout.epoch + 1, placements=places, plan=f"without {node}", excluded=(node,))


def test_a_killed_script_and_one_with_fewer_nodes_learn_what_an_undisturbed_one_learns(cluster: LauncherCluster, leader: FakeLeader, tmp_path: Path) -> None:
    changes = {"nproc": 1, "command": COMMAND, "preload": ("torch", "torch.distributed"), "leader": leader.address}
    cluster.both(**changes)
    wait_until("some steps", lambda: len(losses(tmp_path)) >= 3)
    os.kill(cluster.pids(1)[0], signal.SIGKILL)
    cluster.began(2)
    wait_until("the gate", lambda: losses(tmp_path)[-1][0] == GATE - 1)

    layout = cluster.layouts()[-1]
    target = without(layout, "n1")
    held = [WorkerStateReport(worker=place.worker, node=place.node, step=GATE) for place in target.placements]
    wanted = plan_transition(layout.job, target.epoch, target, held, micro_batches=8, segments=1, layer_bytes=[1])
    outcome = Torchrun(commander=LeaderCommands(leader), clock=SystemClock()).apply(wanted)
    assert (outcome.state, outcome.plan) == ("done", "without n1"), outcome.detail
    wait_until("the newest layout's nodes", lambda: cluster.layouts()[-1].nodes == ("n0",))
    (tmp_path / "gate").touch()
    assert cluster.launchers[0].wait(DEADLINE_S) == 0

    seen = losses(tmp_path)
    assert {world for _, world, _ in seen} == {1, 2}, "it ran on two nodes, then on one"
    expected = undisturbed(tmp_path / "alone")
    assert sorted({step for step, _, _ in seen}) == sorted(expected) == list(range(STEPS))
    for step, _, loss in seen:
        assert loss == pytest.approx(expected[step], rel=1e-12)
