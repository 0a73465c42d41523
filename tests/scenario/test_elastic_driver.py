"""An elastic job that loses a worker and is then resized by its driver, in place: every bit of an undisturbed run."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eagle_eye.clock import SystemClock
from eagle_eye.types import Holding, Layout
from fakes.commands import LeaderCommands
from fakes.launchers import FakeLeader, Stage, wait_until
from remediation.frameworks import ElasticWorkers
from remediation.transition import plan_transition

STEPS = 120
SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch
import eagle_eye

torch.set_num_threads(1)
torch.manual_seed(5)
home = Path(__file__).parent

def batch(step, micro_batch):
    if not (home / "hurry").exists():
        time.sleep(0.05)  # until everything was done to it that the test wants to do
    draw = torch.Generator().manual_seed(100 * step + micro_batch)
    given = torch.randn(4, 8, generator=draw)
    return given, given.sum(1, keepdim=True)

layers = [torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)]
worker = eagle_eye.elastic(
    layers, loss=torch.nn.functional.mse_loss, batch=batch, micro_batches=6, save_every=0,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
)
for step in worker.steps(until=int(sys.argv[1])):
    loss = step.run()
    if worker.rank == 0:
        with (home / "steps").open("a") as out:
            out.write(json.dumps({"step": step.number, "loss": loss, "workers": len(step.result.micro_batches)}) + "\\n")
with (home / "digests").open("a") as out:
    out.write(worker.inventory.digest() + "\\n")
os._exit(0)
"""
COMMAND = (sys.executable, "train.py", str(STEPS))
PRELOAD = ("torch", "torch.distributed", "torch._dynamo", "eagle_eye.training.elastic.assembly")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    yield made
    made.close()


def steps(home: Path) -> list[dict[str, Any]]:
    path = home / "steps"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def undisturbed(home: Path) -> tuple[list[float], str]:
    """Losses and digest of a worker alone."""
    home.mkdir()
    (home / "train.py").write_text(SCRIPT)
    (home / "hurry").touch()
    environment = {**os.environ, "EAGLE_EYE_CHECKPOINT_DIR": str(home / "kept"), "OMP_NUM_THREADS": "1"}
    subprocess.run(COMMAND, cwd=home, env=environment, check=True, timeout=90)
    return [each["loss"] for each in steps(home)], (home / "digests").read_text().strip()


def smaller(layout: Layout, workers: int) -> Layout:
    return msgspec.structs.replace(layout, epoch=layout.epoch + 1, places=layout.places[:workers], plan="smaller")


def test_a_killed_and_resized_job_ends_with_the_bits_of_an_undisturbed_one(stage: Stage, leader: FakeLeader, tmp_path: Path) -> None:
    stage.launch(0, nnodes=(1, 1), nproc=3, command=COMMAND, preload=PRELOAD, leader=leader.address)
    wait_until("three workers", lambda: any(each["workers"] == 3 for each in steps(tmp_path)))
    os.kill(next(each["pid"] for each in stage.job(0)["workers"] if each["slot"] == 1), signal.SIGKILL)
    wait_until("two to go on", lambda: any(each["workers"] == 2 for each in steps(tmp_path)))
    wait_until("a replacement", lambda: steps(tmp_path)[-1]["workers"] == 3)

    layout = stage.layouts()[-1]
    target = smaller(layout, 2)
    held = [Holding(worker=place.worker, node=place.node, step=steps(tmp_path)[-1]["step"]) for place in target.places]
    wanted = plan_transition(layout.job, target.epoch, target, held, micro_batches=6, segments=1, layer_bytes=[1, 0, 1])
    outcome = ElasticWorkers(commander=LeaderCommands(leader), clock=SystemClock()).apply(wanted)
    assert (outcome.state, outcome.plan) == ("done", "smaller"), outcome.detail
    wait_until("two workers", lambda: steps(tmp_path)[-1]["workers"] == 2)
    (tmp_path / "hurry").touch()
    assert stage.launchers[0].wait(90) == 0

    losses, digest = undisturbed(tmp_path / "alone")
    assert [each["step"] for each in steps(tmp_path)] == list(range(STEPS)), "no step is lost or done twice"
    assert [each["loss"] for each in steps(tmp_path)] == losses
    assert set((tmp_path / "digests").read_text().split()) == {digest}
