"""A real transformers.Trainer on the CPU: what is in the ring afterwards."""

import pytest

from fakes.framework_runs import UNWATCHED, FrameworkRun, phases_s, run_variants

SCRIPT = """
import copy, json, pickle, time, warnings
warnings.simplefilter("ignore")
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from eagle_eye.training.integrations.transformers_callback import TrainerSteps

class Told(TrainerCallback):
    def __init__(self):
        self.logs = []
    def on_log(self, args, state, control, logs=None, **rest):
        if "loss" in logs:
            self.logs.append([state.global_step, logs["loss"], logs["grad_norm"], logs["learning_rate"]])

class Data(torch.utils.data.Dataset):
    def __init__(self, rows, slow=()):
        self.rows, self.slow = rows, slow
    def __len__(self):
        return self.rows
    def __getitem__(self, index):
        if index in self.slow:
            time.sleep(0.05)
        numbers = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": numbers, "labels": numbers}

class SlowToEvaluate(Trainer):
    def prediction_step(self, *arguments, **named):
        time.sleep(0.03)
        return super().prediction_step(*arguments, **named)
    def _save_checkpoint(self, *arguments, **named):
        time.sleep(0.04)
        super()._save_checkpoint(*arguments, **named)

def main(what):
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    told, steps = Told(), TrainerSteps()
    arguments = TrainingArguments(
        output_dir="out", use_cpu=True, report_to=[], disable_tqdm=True, per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=4 if what == "long" else 2,
        logging_steps=3 if what == "logs seldom" else 1, eval_strategy="steps", eval_steps=4, save_strategy="steps", save_steps=6, learning_rate=0.1,
        data_seed=3,
    )
    rows = Data(18, slow=(7,) if what == "logs seldom" else ())
    trainer = SlowToEvaluate(model=model, args=arguments, train_dataset=rows, eval_dataset=Data(4), callbacks=[told, steps])
    trainer.remove_callback(PrinterCallback)
    trainer.evaluate()  # before the training
    copied = []
    if what == "copied":
        class Copies(TrainerCallback):
            def on_step_end(self, args, state, control, model=None, **rest):
                copied.append(copy.deepcopy(model))
                copied[-1](input_ids=torch.zeros((9, 16), dtype=torch.long))
                pickle.loads(pickle.dumps(model))
        trainer.add_callback(Copies())
    trainer.train()
    trainer.evaluate()
    return {"logs": told.logs, "hooks": len(model._forward_hooks) + len(model._forward_pre_hooks)}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FrameworkRun]:
    return run_variants(tmp_path_factory.mktemp("trainer"), SCRIPT, ("logs each step", "long", "logs seldom", "copied", UNWATCHED))


def test_a_step_is_an_update_and_its_phases_are_all_of_it(runs: dict[str, FrameworkRun]) -> None:
    trained = runs["logs each step"]
    assert trained.numbers() == list(range(10)), "5 updates of 2 micro-batches in each of 2 epochs; the last one of each has a single one"
    assert trained.now is not None
    assert (trained.now.running, trained.now.faults) == (False, 0)
    for step in trained.steps:
        assert phases_s(step) == pytest.approx(step.values["step_s"], abs=1e-6)
        assert {"data_s", "forward_s", "backward_s", "optimizer_s"} <= step.values.keys()
        rows = 2.0 if step.number % 5 == 4 else 4.0
        assert (step.values["samples"], step.values["tokens"]) == (rows, rows * 16)


def test_what_the_trainer_logs_is_the_value_of_the_step_that_it_logs(runs: dict[str, FrameworkRun]) -> None:
    trained = runs["logs each step"]
    assert [[step.number + 1, step.values["loss"], step.values["grad_norm"], step.values["learning_rate"]] for step in trained.steps] == [
        [number, pytest.approx(loss, rel=1e-5), pytest.approx(norm, rel=1e-5), pytest.approx(rate)] for number, loss, norm, rate in trained.said["logs"]
    ]
    seldom = runs["logs seldom"]
    assert seldom.numbers() == list(range(10))
    assert seldom.numbers("loss") == [number - 1 for number, *_ in seldom.said["logs"]]
    assert seldom.numbers("learning_rate") == list(range(10))


def test_evaluations_and_checkpoints_are_phases_of_the_step_that_waits_for_them(runs: dict[str, FrameworkRun]) -> None:
    trained = runs["logs each step"]
    assert trained.numbers("evaluation_s", 0.03) == [4, 8], "behind the updates of steps 3 and 7; those outside the training are in none"
    assert trained.numbers("checkpoint_s", 0.04) == [6]


def test_a_wait_for_data_is_told_apart(runs: dict[str, FrameworkRun]) -> None:
    assert len(runs["logs seldom"].numbers("data_s", 0.05)) == 2, "the row comes once in each epoch"


def test_a_model_that_is_copied_or_pickled_in_mid_training_counts_once_and_no_hook_stays(runs: dict[str, FrameworkRun]) -> None:
    copied, trained = runs["copied"], runs["logs each step"]
    assert copied.said["logs"] == trained.said["logs"]
    assert copied.values("samples") == trained.values("samples")
    assert {run.said["hooks"] for run in runs.values()} == {0}


def test_who_is_not_watched_trains_as_it_would(runs: dict[str, FrameworkRun]) -> None:
    assert runs[UNWATCHED].said["logs"] == runs["logs each step"].said["logs"]


def test_the_replicas_of_its_model_are_compared_and_its_gradients_looked_at(runs: dict[str, FrameworkRun]) -> None:
    trained = runs["long"]
    assert {"replica_digest", "gradient_digest"} <= trained.steps[15].values.keys()
    assert trained.numbers("replica_digest") == trained.numbers("gradient_digest") == [15]
    assert 0 in trained.numbers("bad_gradient")
    assert trained.now is not None
    assert trained.now.faults == 0
