"""A real Trainer of Lightning under a launcher: it is killed, and its successor goes on from memory; and its own checkpoints in our format."""

import sys

import pytest

from eagle_eye.training import checkpoint
from fakes.framework_runs import RESUMED, FrameworkRun, run_variants
from fakes.json_lines import json_lines
from fakes.launchers import LauncherCluster, wait_until

KILLED_AT = [1, 4]
"""Epoch and batch: a validation was behind the batch before."""

IMPORTS = """
import json, logging, os, signal, sys, threading, traceback, warnings
warnings.simplefilter("ignore")
import torch
import pytorch_lightning as lightning
from pytorch_lightning.callbacks import ModelCheckpoint
from eagle_eye.training.integrations.lightning_checkpoints import MemoryCheckpointCallback
from eagle_eye.training.integrations.lightning_storage import ShardCheckpointIO
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

class Model(lightning.LightningModule):
    def __init__(self, killed=False, **named):
        super().__init__()
        self.save_hyperparameters()
        self.killed, self.drop, self.layer = killed, torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
    def on_train_start(self):
        self.said(start=self.trainer.global_step)
    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.layer(self.drop(batch[0])), batch[1])
        self.said(batch=[self.current_epoch, index], loss=float(loss), rate=self.trainer.optimizers[0].param_groups[0]["lr"], step=self.trainer.global_step)
        if self.killed and [self.current_epoch, index] == [1, 4]:
            kill()
        return loss
    def said(self, **words):
        if "say" in globals():
            say(**words)
    def validation_step(self, batch, index):
        self.log("score", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.9), "interval": "step"}]

def fit(model, **named):
    torch.set_num_threads(1)
    rows = torch.utils.data.TensorDataset(torch.randn(44, 8, generator=torch.Generator().manual_seed(2)), torch.randn(44, 1, generator=torch.Generator().manual_seed(3)))
    trainer = lightning.Trainer(
        **{"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
           "accumulate_grad_batches": 2, "val_check_interval": 4, **named})
    trainer.fit(model, torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True), torch.utils.data.DataLoader(rows, batch_size=22))
    return trainer
"""

MEMORY = """
def main(killed):
    torch.manual_seed(1)
    own = ModelCheckpoint(dirpath="out", every_n_train_steps=3, save_top_k=-1)
    best = ModelCheckpoint(dirpath="best", monitor="score", save_top_k=2)
    fit(Model(killed), callbacks=[own, best, MemoryCheckpointCallback()])
    say(saved=sorted(os.listdir("out")), best=[float(each) for each in best.best_k_models.values()])
"""

STORAGE = """
class Object: ...

def same(one, other):
    if isinstance(one, torch.Tensor):
        return type(one) is type(other) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other

def main(what):
    torch.manual_seed(1)
    if what == "object":
        return fit(Model(places=Object()), plugins=[ShardCheckpointIO()], callbacks=[ModelCheckpoint(dirpath="out", every_n_train_steps=3)])
    if what == "full":
        storage = ShardCheckpointIO()
        class Fills(lightning.Callback):  # from the second checkpoint on there is a file where its directory would be
            def on_train_batch_end(self, trainer, *_):
                if trainer.global_step == 5:
                    open("out/epoch=0-step=6.ckpt", "w").close()
        trainer = fit(Model(), max_steps=8, plugins=[storage], callbacks=[Fills(), ModelCheckpoint(dirpath="out", every_n_train_steps=3, enable_version_counter=False)])
        return {"steps": trainer.global_step, "left": sorted(os.listdir("out"))}
    trainer = fit(Model(width=8), plugins=[ShardCheckpointIO()], callbacks=[ModelCheckpoint(dirpath="out", monitor="score", save_top_k=1, every_n_train_steps=2)])
    trainer.save_checkpoint("mine")
    trainer.strategy.checkpoint_io = lightning.plugins.io.TorchCheckpointIO()
    trainer.save_checkpoint("theirs")
    mine, theirs = ShardCheckpointIO().load_checkpoint("mine"), ShardCheckpointIO().load_checkpoint("theirs")
    return {"same": same(mine, theirs), "keys": sorted(mine), "left": os.listdir("out"), "step": trainer.global_step}
"""


def test_a_fit_goes_on_from_memory_with_the_same_losses_and_its_own_checkpoints(cluster: LauncherCluster) -> None:
    (cluster.directory / "train.py").write_text(IMPORTS + MEMORY + RESUMED)
    launcher = cluster.launch(0, nnodes=(1, 1), nproc=1, command=(sys.executable, "train.py"), preload=("torch", "pytorch_lightning"))
    wait_until("the end of the job", lambda: launcher.poll() is not None)
    assert launcher.returncode == 0
    alone, kept = (json_lines(cluster.directory / folder / "said") for folder in ("alone", "kept"))
    assert [each["start"] for each in kept if "start" in each] == [0, 8], "six steps of the first epoch, two of the second"
    killed = next(number for number, each in enumerate(kept) if each.get("batch") == KILLED_AT)
    assert kept[killed + 2] == kept[killed], "the batch is trained on again, as it was"
    del kept[killed : killed + 2]
    assert kept == alone, "dropout, order of the data, rates, scores and names of checkpoints"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FrameworkRun]:
    return run_variants(tmp_path_factory.mktemp("lightning"), IMPORTS + STORAGE, ("saves", "object", "full"))


def test_lightnings_checkpoints_are_whole_in_our_format_and_read_as_lightning_wrote_them(runs: dict[str, FrameworkRun]) -> None:
    saved = runs["saves"]
    assert saved.said["same"]
    assert {"state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "hyper_parameters"} <= set(saved.said["keys"])
    assert len(saved.said["left"]) == 1, "the best one; those before it were removed"
    loaded = checkpoint.load(saved.folder / "mine")
    assert loaded is not None
    assert loaded[1] == saved.said["step"] == 12


def test_what_needs_pickle_is_refused_by_name(runs: dict[str, FrameworkRun]) -> None:
    assert "TypeError: a checkpoint cannot hold Object at 'state.hyper_parameters.places'" in runs["object"].errors


def test_storage_that_refuses_ends_no_training_and_the_older_checkpoint_stays(runs: dict[str, FrameworkRun]) -> None:
    assert runs["full"].said["steps"] == 8
    assert "epoch=0-step=3.ckpt" in runs["full"].said["left"]
