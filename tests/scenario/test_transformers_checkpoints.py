"""A real Trainer of transformers under a launcher: it is killed, and its successor goes on from memory as if nothing had happened."""

import sys
from pathlib import Path

from fakes.framework_runs import RESUMED
from fakes.json_lines import json_lines
from fakes.launchers import LauncherCluster, wait_until

STEPS, KILLED_AT = 12, 8

SCRIPT = """
import json, os, signal, sys, threading, traceback, warnings
warnings.simplefilter("ignore")
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from eagle_eye.training.integrations.transformers_checkpoints import MemoryCheckpointTrainer

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        numbers = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": numbers, "labels": numbers}

class Told(TrainerCallback):
    def __init__(self, killed):
        self.killed = killed
    def on_train_begin(self, args, state, control, **rest):
        say(start=state.global_step, logged=len(state.log_history))
    def on_pre_optimizer_step(self, args, state, control, **rest):
        if self.killed and state.global_step == 8:
            kill()
    def on_log(self, args, state, control, logs=None, **rest):
        if "loss" in logs:
            say(step=state.global_step, loss=logs["loss"], norm=logs["grad_norm"], rate=logs["learning_rate"], epoch=logs["epoch"])

class MyTrainer(MemoryCheckpointTrainer, Trainer): ...

def main(killed):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        output_dir="out", use_cpu=True, report_to=[], disable_tqdm=True, per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=2,
        logging_steps=1, save_strategy="steps", save_steps=4, learning_rate=0.1,
    )
    trainer = MyTrainer(model=model, args=arguments, train_dataset=Data(), callbacks=[Told(killed)])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
"""


def test_a_trainer_goes_on_from_memory_with_the_same_losses_and_its_own_checkpoints(cluster: LauncherCluster) -> None:
    (cluster.directory / "train.py").write_text(SCRIPT + RESUMED)
    launcher = cluster.launch(0, nnodes=(1, 1), nproc=1, command=(sys.executable, "train.py"), preload=("torch", "transformers"))
    wait_until("the end of the job", lambda: launcher.poll() is not None)
    assert launcher.returncode == 0
    alone, kept = (json_lines(cluster.directory / folder / "said") for folder in ("alone", "kept"))
    assert [each["step"] for each in alone if "step" in each] == list(range(1, STEPS + 1))
    assert [each for each in kept if "start" in each] == [{"start": 0, "logged": 0}, {"start": KILLED_AT, "logged": KILLED_AT}]
    assert [each for each in kept if "step" in each] == [each for each in alone if "step" in each], "dropout, order of the data and rates, to the last bit"
    assert _saved(cluster.directory / "kept") == _saved(cluster.directory / "alone")


def _saved(folder: Path) -> dict[str, bytes]:
    """The weights of the Trainer's own checkpoints."""
    return {each.parent.name: each.read_bytes() for each in sorted((folder / "out").glob("checkpoint-*/model.safetensors"))}
