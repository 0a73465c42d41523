"""A real Trainer of Lightning on the CPU, watched by the callback: what is in the ring afterwards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagle_eye.training.messages import PHASES
from eagle_eye.training.ring_buffer import RingReader, StepRecord

DEADLINE_S = 200.0
SCRIPT = """
import json, logging, sys, time, warnings
warnings.simplefilter("ignore")
import torch
import pytorch_lightning as lightning
from pytorch_lightning.callbacks import ModelCheckpoint
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
from eagle_eye.training.integrations.lightning import StepCallback

what = sys.argv[1]
torch.manual_seed(1)

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.losses, self.evaluated = torch.nn.Linear(8, 1), [], 0
    def training_step(self, batch, index):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.losses.append(float(loss.detach()))
        if what == "raises" and len(self.losses) == 6:
            raise ValueError("shapes do not fit")
        return loss
    def validation_step(self, batch, index):
        self.evaluated += 1
        time.sleep(0.02)
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5), "interval": "step"}]

class Odd:  # a batch whose size cannot be told
    def __init__(self, parts): self.parts = parts
    def __iter__(self): return iter(self.parts)
    @property
    def shape(self): raise RuntimeError("no shape")

def loader(count):
    data = torch.utils.data.TensorDataset(torch.randn(count * 4, 8), torch.randn(count * 4, 1))
    collate = torch.utils.data.default_collate
    return torch.utils.data.DataLoader(data, batch_size=4, collate_fn=(lambda rows: Odd(collate(rows))) if what == "odd" else collate)

model = Model()
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir="out",
    accumulate_grad_batches=2, val_check_interval=4, gradient_clip_val=1.0,
    callbacks=[StepCallback(gradient_norm=True), ModelCheckpoint(dirpath="out", every_n_train_steps=3)],
)
trainer.fit(model, loader(8), loader(2))
print(json.dumps({"losses": model.losses, "steps": trainer.global_step, "evaluated": model.evaluated}))
"""


class Fit:
    """One run of the script, and what it left in its ring."""

    def __init__(self, folder: Path, what: str, *, watched: bool = True) -> None:
        (folder / "script.py").write_text(SCRIPT)
        ring = folder / "ring"
        environment = {**os.environ, **({"EAGLE_EYE_RING": str(ring), "EAGLE_EYE_WORKER": "r/n/0"} if watched else {})}
        self.done = subprocess.run([sys.executable, "script.py", what], cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.steps: list[StepRecord] = []
        if ring.exists():
            with RingReader.open(ring) as reader:
                self.steps, self.now = reader.steps(-1), reader.now()

    @property
    def said(self) -> dict[str, object]:
        assert self.done.returncode == 0, self.done.stderr
        found: dict[str, object] = json.loads(self.done.stdout.splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> Fit:
    made = Fit(tmp_path_factory.mktemp("fit"), "trains")
    assert made.done.returncode == 0, made.done.stderr
    return made


def phases_s(step: StepRecord) -> float:
    return sum(step.values.get(f"{phase}_s", 0.0) for phase in PHASES)


def test_a_step_is_an_update_of_the_optimizer_and_its_phases_are_all_of_it(fit: Fit) -> None:
    assert [step.number for step in fit.steps] == list(range(8))
    assert fit.said["steps"] == 8
    assert not fit.now.running
    assert fit.now.faults == 0
    for step in fit.steps:
        assert phases_s(step) == pytest.approx(step.values["step_s"], abs=1e-6)
        assert {"data_s", "forward_s", "backward_s", "optimizer_s"} <= step.values.keys()


def test_a_step_tells_the_mean_loss_of_its_batches_its_rate_its_norm_and_its_samples(fit: Fit) -> None:
    losses = fit.said["losses"]
    assert isinstance(losses, list)
    assert [step.values["loss"] for step in fit.steps] == pytest.approx([(first + second) / 2 for first, second in zip(losses[::2], losses[1::2], strict=True)], rel=1e-5)
    assert [step.values["learning_rate"] for step in fit.steps] == [0.5 * 0.5**number for number in range(8)]
    assert {step.values["samples"] for step in fit.steps} == {8.0}
    assert all(step.values["grad_norm"] > 0 for step in fit.steps)


def test_an_evaluation_and_a_checkpoint_are_phases_and_no_steps(fit: Fit) -> None:
    evaluated = [step.number for step in fit.steps if "evaluation_s" in step.values]
    assert fit.said["evaluated"] == 2 * 5, "before the training, twice in each epoch"
    assert evaluated == [2, 4, 6], "behind the second, fourth and sixth step; the last one is behind the loop"
    assert all(step.values["evaluation_s"] >= 0.04 for step in fit.steps if step.number in evaluated)
    assert [step.number for step in fit.steps if "checkpoint_s" in step.values] == [3, 6]


def test_an_exception_of_the_script_passes_through_and_its_loop_is_over(tmp_path: Path) -> None:
    broken = Fit(tmp_path, "raises")
    assert broken.done.returncode == 1
    assert "ValueError: shapes do not fit" in broken.done.stderr
    assert [step.number for step in broken.steps] == [0, 1]
    assert not broken.now.running


def test_a_batch_that_cannot_be_read_and_a_script_that_nobody_watches_train_as_they_would(tmp_path: Path, fit: Fit) -> None:
    odd, alone = (tmp_path / name for name in ("odd", "alone"))
    odd.mkdir()
    alone.mkdir()
    unreadable = Fit(odd, "odd")
    assert unreadable.said == fit.said
    assert len(unreadable.steps) == 8
    assert not any("samples" in step.values for step in unreadable.steps)
    assert Fit(alone, "trains", watched=False).said == fit.said
