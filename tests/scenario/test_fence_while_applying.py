"""An epoch begins while a step that is committed is applied here and not yet there: it counts, is applied once, and the next is the epoch's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.elastic_processes import Job, Worker
from fakes.launchers import wait_until

SCRIPT = """
import json, os, time
from pathlib import Path
import torch
import eagle_eye
from eagle_eye.errors import Broken
from eagle_eye.training.elastic import worker as elastic_worker

torch.set_num_threads(1)
torch.manual_seed(5)

def say(**words):
    os.write(1, json.dumps(words).encode() + b"\\n")

class Held(torch.optim.AdamW):
    updates = 0

    def step(self, closure=None):
        say(update=self.updates)
        while self.updates == 2 and os.environ.get("HOLDS") and not Path("go").exists():
            time.sleep(0.01)
        Held.updates += 1
        return super().step(closure)

class Late:
    # a group over whose connections the last answer of a commit does not come through before they are cut

    def __init__(self, group):
        self._group = group

    def __getattr__(self, name):
        return getattr(self._group, name)

    def all_gather(self, outputs, tensor):
        self._group.all_gather(outputs, tensor)
        if self.epoch == 1 and tensor.tolist()[0] == 2:
            say(late=2)
            while not Path("go").exists():
                time.sleep(0.01)
            raise Broken("the answer of the others came too late")

if os.environ.get("LATE"):
    form = elastic_worker.form
    elastic_worker.form = lambda *about: Late(form(*about))

def batch(step, micro_batch):
    say(batch=[step, micro_batch])
    given = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + micro_batch))
    return given, given.sum(1, keepdim=True)

worker = eagle_eye.elastic(
    [torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)], loss=torch.nn.functional.mse_loss, batch=batch, micro_batches=6, save_every=0,
    optimizer=lambda parameters: Held(parameters, lr=1e-2),
)
for step in worker.steps(until=5):
    say(loss=step.run())
say(digest=worker.train_state.digest())
os._exit(0)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, SCRIPT)
    yield made
    made.close()


def results(said: list[dict[str, object]]) -> list[dict[str, object]]:
    return [words for words in said if words.keys() & {"update", "loss", "digest"}]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """What a worker alone says."""
    worker = Worker(tmp_path_factory.mktemp("alone"), "alone", SCRIPT)
    try:
        return results(worker.end())
    finally:
        worker.close()


def test_a_step_that_is_being_applied_when_an_epoch_begins_is_applied_once(job: Job, tmp_path: Path, undisturbed: list[dict[str, object]]) -> None:
    names = [job.start(slot, HOLDS="1") for slot in range(3)]
    job.launcher.wait_for_joins(*names)
    job.launcher.form(1, *names)
    for name in names:
        wait_until(f"{name} to apply", lambda name=name: {"update": 2} in job.workers[name].said())
    job.workers[names[1]].kill()
    orders = job.launcher.form(2, names[0], names[2])
    assert orders[names[0]].finish, "all hold the whole gradient, and nobody has told that it is applied"
    (tmp_path / "go").touch()
    assert [words["update"] for words in undisturbed if "update" in words] == list(range(5))
    for name in (names[0], names[2]):
        assert results(job.workers[name].end()) == undisturbed


def test_who_applies_a_step_after_the_others_does_of_the_next_one_what_the_epoch_says(
    job: Job, tmp_path: Path, undisturbed: list[dict[str, object]]
) -> None:
    first, dead, late = [job.start(slot, LATE="1" if slot == 2 else "") for slot in range(3)]
    job.launcher.wait_for_joins(first, dead, late)
    job.launcher.form(1, first, dead, late)
    wait_until("the late one to be late", lambda: {"late": 2} in job.workers[late].said())
    wait_until("the next step to be begun", lambda: {"batch": [3, 1]} in job.workers[first].said())
    job.workers[dead].kill()
    orders = job.launcher.form(2, first, late)
    mine = orders[late]
    assert (mine.step, mine.finish, mine.moves) == (3, (), ()), "the late one holds the sum of step 2 and has only to apply it"
    assert mine.current != mine.shares, "else nobody would see which of them it works off"
    (tmp_path / "go").touch()
    assert results(job.workers[late].end()) == undisturbed
    assert results(job.workers[first].end()) == undisturbed
    computed = [words["batch"][1] for words in job.workers[late].said() if words.get("batch", [0])[0] == 3]  # type: ignore[index]
    assert sorted(computed) == list(mine.current[mine.rank])
