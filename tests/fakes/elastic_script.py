"""A small elastic job as a script, for real launchers: what it committed, and what a worker alone makes of it.

    python train.py STEPS SAVE_EVERY MEMORY_EVERY

As long as a file `slow` lies beside it a micro-batch takes a while: time for what a test wants to do to the job.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fakes.json_lines import json_lines

SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch
import eagle_eye

torch.set_num_threads(1)
torch.manual_seed(5)
home = Path(__file__).parent

def batch(step, micro_batch):
    if (home / "slow").exists():
        time.sleep(0.05)
    draw = torch.Generator().manual_seed(100 * step + micro_batch)
    given = torch.randn(4, 8, generator=draw)
    return given, given.sum(1, keepdim=True)

layers = [torch.nn.Linear(8, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1)]
worker = eagle_eye.elastic(
    layers, loss=torch.nn.functional.mse_loss, batch=batch, micro_batches=6, save_every=int(sys.argv[2]), memory_every=int(sys.argv[3]),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
)
for step in worker.steps(until=int(sys.argv[1])):
    first = worker.rank == 0  # with the step another may become that
    loss = step.run()
    if first:
        with (home / "steps").open("a") as out:
            out.write(json.dumps({"step": step.number, "loss": loss, "workers": len(step.result.micro_batches)}) + "\\n")
with (home / "digests").open("a") as out:
    out.write(worker.train_state.digest() + "\\n")
os._exit(0)
"""


def command(steps: int, save_every: int = 0, memory_every: int = 0) -> tuple[str, ...]:
    """That starts it where it lies. Nothing is kept in memory unless that is asked for."""
    return (sys.executable, "train.py", str(steps), str(save_every), str(memory_every))


def steps_of(home: Path) -> list[dict[str, Any]]:
    """What rank 0 has committed, in order: step, loss and how many workers took part."""
    return json_lines(home / "steps")


def undisturbed(home: Path, steps: int) -> tuple[list[float], str]:
    """Losses and digest of a worker alone, in a folder that is made for it."""
    home.mkdir()
    (home / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "EAGLE_EYE_CHECKPOINT_DIR": str(home / "kept"), "OMP_NUM_THREADS": "1"}
    subprocess.run(command(steps), cwd=home, env=environment, check=True, timeout=90)
    return [each["loss"] for each in steps_of(home)], (home / "digests").read_text().strip()
