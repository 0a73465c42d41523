"""Checkpoints in memory under a real launcher: a worker is killed in the middle of a copy, and its successor goes on with the one before."""

import json
import sys
from pathlib import Path

from eagle_eye.types import digest_of
from fakes.elastic_processes import TORCH
from fakes.launchers import LauncherCluster, wait_until

STEPS, KILLED_AT = 12, 6

SCRIPT = """
import ctypes, json, os, signal
from pathlib import Path
from types import SimpleNamespace
import torch
import eagle_eye
from eagle_eye.training.checkpoint import state_copy

STEPS, KILLED_AT = 12, 6
place, home = Path(os.environ["EAGLE_EYE_CHECKPOINT_MEMORY"]), Path(__file__).parent
first = os.environ["EAGLE_EYE_EPOCH"] == "1"
parameters = [torch.nn.Parameter(torch.zeros(1_000_000)) for _ in range(4)]
optimizer = torch.optim.SGD(parameters, lr=1.0)  # its step adds one
memory = eagle_eye.MemoryCheckpoints([optimizer])
state = lambda: {"model": parameters, "random": eagle_eye.random_state(), "position": step}
step, copies = 0, 0

def memmove(*arguments):
    global copies
    copies += 1
    if first and step == KILLED_AT - 1 and copies == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return ctypes.memmove(*arguments)

found = memory.load(state())
start = found.step if found else 0
words = {"start": start, "whole": all(bool((each == start).all()) for each in parameters), "skipped": found.skipped if found else []}
if first:
    eagle_eye.MemoryCheckpoints([], "/dev/shm/none/0.memory").prepare(state())
memory.prepare(state())
state_copy.ctypes = SimpleNamespace(memmove=memmove)
for step in eagle_eye.monitor().steps(range(start, STEPS)):
    for each in parameters:
        each.grad = -torch.ones_like(each)
    optimizer.step()
    copies = 0
    memory.save(state(), step + 1)
    memory.finish()
    if step == start:
        words |= {"path": str(place), "mode": place.stat().st_mode & 0o777}
        (home / f"start-{os.environ['EAGLE_EYE_EPOCH']}").write_text(json.dumps(words))
"""


def test_a_worker_that_is_killed_in_a_copy_goes_on_with_the_one_before(cluster: LauncherCluster) -> None:
    launcher = cluster.launch(0, nnodes=(1, 1), nproc=1, command=(sys.executable, "train.py"), preload=TORCH)
    wait_until("the end of the job", lambda: launcher.poll() is not None)
    assert launcher.returncode == 0
    before, after = (json.loads((cluster.directory / f"start-{epoch}").read_text()) for epoch in (1, 2))
    assert (before["start"], before["whole"], before["mode"]) == (0, True, 0o600)
    assert (after["start"], after["whole"], after["path"]) == (KILLED_AT - 1, True, before["path"])
    [why] = after["skipped"]
    assert "nothing whole is there" in why
    [failed] = cluster.events("checkpoint.memory_failed")
    assert (failed.attributes["errno"], failed.attributes["path"]) == ("ENOENT", "/dev/shm/none/0.memory")
    assert digest_of(str(cluster.run_dir(0).absolute()))[:8] in before["path"]
    assert not Path(before["path"]).exists(), "it goes with the job"
