"""An epoch begins while workers apply a step that is committed: it counts, and is applied once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.launchers import wait_until
from fakes.rehearsed import Job, Worker

SCRIPT = """
import json, os, time
from pathlib import Path
import torch
import eagle_eye

torch.set_num_threads(1)
torch.manual_seed(5)

def say(**words):
    os.write(1, json.dumps(words).encode() + b"\\n")

class Held(torch.optim.AdamW):
    updates = 0

    def step(self, closure=None):
        say(update=self.updates)
        while self.updates == 2 and not Path("go").exists():
            time.sleep(0.01)
        Held.updates += 1
        return super().step(closure)

def batch(step, micro_batch):
    given = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + micro_batch))
    return given, given.sum(1, keepdim=True)

worker = eagle_eye.elastic(
    [torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)], loss=torch.nn.functional.mse_loss, batch=batch, micro_batches=6, save_every=0,
    optimizer=lambda parameters: Held(parameters, lr=1e-2),
)
for step in worker.steps(until=5):
    say(loss=step.run())
say(digest=worker.inventory.digest())
os._exit(0)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, SCRIPT)
    yield made
    made.close()


def test_a_step_that_is_being_applied_when_an_epoch_begins_is_applied_once(job: Job, tmp_path: Path) -> None:
    names = [job.start(slot) for slot in range(3)]
    job.launcher.entered(*names)
    job.launcher.form(1, *names)
    for name in names:
        wait_until(f"{name} to apply", lambda name=name: {"update": 2} in job.workers[name].said())
    job.workers[names[1]].kill()
    orders = job.launcher.form(2, names[0], names[2])
    assert orders[names[0]].finish, "all hold the whole gradient, and nobody has told that it is applied"
    (tmp_path / "go").touch()
    alone = Worker(tmp_path, "alone", SCRIPT)
    undisturbed = alone.end()
    assert [words["update"] for words in undisturbed if "update" in words] == list(range(5))
    for name in (names[0], names[2]):
        assert job.workers[name].end() == undisturbed
