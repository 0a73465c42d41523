"""transformers.Trainer on a small GPT-2, with accumulated gradients."""

import tempfile
import warnings

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from benchmarks.collect.unmodified.steps_log import StepsLog

WORDS, LENGTH = 64, 16


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Random sentences."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.randint(0, WORDS, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


class WriteSteps(TrainerCallback):
    """Logs each step."""

    def __init__(self) -> None:
        self._log = StepsLog()

    def on_step_end(self, *_: object, **__: object) -> None:
        self._log.step_done()


def main() -> None:
    """Train until the process is ended."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=128, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output_dir=output, use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=1_000_000, report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[WriteSteps()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()


if __name__ == "__main__":
    main()
