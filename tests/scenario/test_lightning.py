"""A real Trainer of Lightning on the CPU, watched by the callback: what is in the ring afterwards."""

import pytest

from fakes.framework_runs import UNWATCHED, FrameworkRun, phases_s, run_variants

SCRIPT = """
import json, logging, pickle, time, warnings
warnings.simplefilter("ignore")
import torch
import pytorch_lightning as lightning
from pytorch_lightning.callbacks import ModelCheckpoint
from eagle_eye.training.integrations.lightning import StepCallback
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

class Model(lightning.LightningModule):
    def __init__(self, what):
        super().__init__()
        self.what, self.layer, self.losses, self.evaluated = what, torch.nn.Linear(8, 1), [], 0
    def training_step(self, batch, index):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.losses.append(float(loss.detach()))
        if self.what == "raises" and len(self.losses) == 6:
            raise ValueError("shapes do not fit")
        return loss
    def validation_step(self, batch, index):
        self.evaluated += 1
        time.sleep(0.02)
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5), "interval": "step"}]

class Slow(lightning.Callback):  # it does something of its own behind a batch
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if index == 5:
            time.sleep(0.02)

class Unreadable:  # a batch whose size cannot be told
    def __init__(self, parts):
        self.parts = parts
    def __iter__(self):
        return iter(self.parts)
    @property
    def shape(self):
        raise RuntimeError("no shape")

def loader(count, what):
    data = torch.utils.data.TensorDataset(torch.randn(count * 4, 8), torch.randn(count * 4, 1))
    collate = torch.utils.data.default_collate
    return torch.utils.data.DataLoader(data, batch_size=4, collate_fn=(lambda rows: Unreadable(collate(rows))) if what == "unreadable" else collate)

def main(what):
    torch.manual_seed(1)
    model = Model(what)
    trainer = lightning.Trainer(
        max_epochs=4 if what == "long" else 2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir="out",
        accumulate_grad_batches=2, val_check_interval=4, gradient_clip_val=1.0,
        callbacks=[pickle.loads(pickle.dumps(StepCallback(gradient_norm=True))), Slow(), ModelCheckpoint(dirpath="out", every_n_train_steps=3)],
    )
    trainer.fit(model, loader(8, what), loader(2, what))
    return {"losses": model.losses, "steps": trainer.global_step, "evaluated": model.evaluated}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FrameworkRun]:
    return run_variants(tmp_path_factory.mktemp("lightning"), SCRIPT, ("trains", "long", "raises", "unreadable", UNWATCHED))


def test_a_step_is_an_update_of_the_optimizer_and_its_phases_are_all_of_it(runs: dict[str, FrameworkRun]) -> None:
    fit = runs["trains"]
    assert fit.said["steps"] == 8
    assert fit.numbers() == list(range(8))
    assert fit.now is not None
    assert (fit.now.running, fit.now.faults) == (False, 0)
    for step in fit.steps:
        assert phases_s(step) == pytest.approx(step.values["step_s"], abs=1e-6)
        assert {"data_s", "forward_s", "backward_s", "optimizer_s"} <= step.values.keys()


def test_a_step_tells_the_mean_loss_of_its_batches_its_rate_its_norm_and_its_samples(runs: dict[str, FrameworkRun]) -> None:
    fit = runs["trains"]
    losses = fit.said["losses"]
    assert fit.values("loss") == pytest.approx([(first + second) / 2 for first, second in zip(losses[::2], losses[1::2], strict=True)], rel=1e-5)
    assert fit.values("learning_rate") == [0.5 * 0.5**number for number in range(8)]
    assert set(fit.values("samples")) == {8.0}
    assert min(fit.values("grad_norm")) > 0


def test_an_evaluation_and_a_checkpoint_are_phases_and_no_steps(runs: dict[str, FrameworkRun]) -> None:
    fit = runs["trains"]
    assert fit.said["evaluated"] == 2 * 5, "before the training, twice in each epoch"
    assert fit.numbers("evaluation_s") == [2, 4, 6], "behind the second, fourth and sixth step; the last one is behind the loop"
    assert fit.numbers("evaluation_s", 0.04) == [2, 4, 6]
    assert fit.numbers("checkpoint_s") == [3, 6]


def test_what_other_callbacks_do_behind_a_batch_is_no_wait_for_data(runs: dict[str, FrameworkRun]) -> None:
    assert {3, 7} <= set(runs["trains"].numbers("other_s", 0.02)), "behind the third step of each epoch"


def test_an_exception_of_the_script_passes_through_and_its_loop_is_over(runs: dict[str, FrameworkRun]) -> None:
    broken = runs["raises"]
    assert "ValueError: shapes do not fit" in broken.errors
    assert broken.numbers() == [0, 1]
    assert broken.now is not None
    assert not broken.now.running


def test_a_batch_that_cannot_be_read_and_a_script_that_nobody_watches_train_as_they_would(runs: dict[str, FrameworkRun]) -> None:
    fit, unreadable = runs["trains"].said, runs["unreadable"]
    assert unreadable.said == runs[UNWATCHED].said == fit
    assert len(unreadable.steps) == 8
    assert unreadable.numbers("samples") == []


def test_the_replicas_of_its_model_are_compared_and_its_gradients_looked_at(runs: dict[str, FrameworkRun]) -> None:
    trained = runs["long"]
    assert {"replica_digest", "gradient_digest"} <= trained.steps[15].values.keys()
    assert trained.numbers("replica_digest") == trained.numbers("gradient_digest") == [15]
    assert 0 in trained.numbers("bad_gradient")
    assert trained.now is not None
    assert trained.now.faults == 0
