"""Where real Trainers of Lightning and transformers are in their data goes to memory with the state, and comes back with it."""

from pathlib import Path
from typing import Any

import pytest

from fakes.framework_runs import run_variants

LIGHTNING = """
import json, os, warnings
warnings.simplefilter("ignore")
import torch
import pytorch_lightning as lightning
from eagle_eye.training.integrations.lightning_checkpoints import MemoryCheckpointCallback

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def train(steps):
    rows = torch.utils.data.TensorDataset(torch.randn(44, 8))
    lightning.Trainer(
        max_steps=steps, max_epochs=9, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        accumulate_grad_batches=2, callbacks=[MemoryCheckpointCallback()],
    ).fit(Model(), torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True))
"""

TRANSFORMERS = """
import json, os, warnings
warnings.simplefilter("ignore")
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments
from eagle_eye.training.integrations.transformers_checkpoints import MemoryCheckpointTrainer

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 44
    def __getitem__(self, index):
        return {"input_ids": torch.arange(16), "labels": torch.arange(16)}

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return (Data()[index] for index in range(10_000))

class MyTrainer(MemoryCheckpointTrainer, Trainer): ...

def train(steps, data=None):
    torch.set_num_threads(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        output_dir="out", use_cpu=True, report_to=[], disable_tqdm=True, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=steps, save_strategy="no",
    )
    trainer = MyTrainer(model=model, args=arguments, train_dataset=data or Data())
    trainer.remove_callback(PrinterCallback)
    trainer.train()
"""

MAIN = """
from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints
save, load, kept, positions = MemoryCheckpoints.save, MemoryCheckpoints.load, [], []

def whole(self, *arguments, **named):
    begun = save(self, *arguments, **named)
    self.finish()
    begun = begun or save(self, *arguments, **named)  # the first one reserves the memory
    self.finish()
    return begun

def told(self, *arguments, **named):
    found = load(self, *arguments, **named)
    positions.append(found and [found.step, found.data_position])
    return found

MemoryCheckpoints.save, MemoryCheckpoints.load = whole, told

def main(what):
    memory = what.partition("-")[2]
    os.environ["EAGLE_EYE_CHECKPOINT_MEMORY"] = os.path.abspath(f"../{memory}.memory")
    train({"first": 3, "second": 8, "third": 9}[what.partition("-")[0]], **({"data": Stream()} if memory == "stream" else {}))
    return positions
"""


@pytest.mark.parametrize(("script", "variants", "found"), [
    (LIGHTNING, ("first-a", "second-a", "third-a"), [None, [2, {"epoch": 0, "batch": 4}], [7, {"epoch": 1, "batch": 2}]]),
    (TRANSFORMERS, ("first-a", "second-a", "third-a"), [None, [2, {"epoch": 0, "batch": 4}], [7, {"epoch": 1, "batch": 2}]]),
    (TRANSFORMERS, ("first-stream", "second-stream"), [None, [2, {"epoch": 0, "batch": 4}]]),
])  # fmt: skip
def test_a_training_that_goes_on_from_memory_finds_where_it_was_in_its_data(tmp_path: Path, script: str, variants: tuple[str, ...], found: list[Any]) -> None:
    """Eleven batches an epoch, two of them a step but for the last: what is kept is the state before a step, the newest that before the last one."""
    runs = run_variants(tmp_path, script + MAIN, variants)
    assert [runs[variant].said for variant in variants] == [[each] for each in found]
