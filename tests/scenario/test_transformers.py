"""transformers.Trainer that loses a peer in mid step: the loss curve and every bit of an undisturbed run."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.elastic_processes import FORKS, TORCH, Job, Worker, said_in
from fakes.launchers import DEADLINE_S, LauncherCluster, wait_until

STEPS = 16
SCRIPT = """
import json, os, time, warnings
from pathlib import Path
STEPS = 16
warnings.simplefilter("ignore")
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback
from eagle_eye.training.integrations.transformers import ElasticTraining, training_arguments

torch.set_num_threads(1)
torch.manual_seed(7)

class ElasticTrainer(ElasticTraining, Trainer): ...

class Told(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **rest):
        if "loss" in logs:
            print(json.dumps({"step": state.global_step, "loss": logs["loss"], "rate": logs["learning_rate"], "norm": logs["grad_norm"]}), flush=True)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if Path("slow").exists():  # until everything was done to it that the test wants to do
            time.sleep(0.2)
        numbers = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": numbers, "labels": numbers}

model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
arguments = training_arguments(
    output_dir="out", use_cpu=True, per_device_train_batch_size=2, gradient_accumulation_steps=6, max_steps=STEPS,
    learning_rate=5e-3, warmup_steps=2, report_to=[], disable_tqdm=True, logging_steps=1,
)
trainer = ElasticTrainer(model=model, args=arguments, train_dataset=Data(), callbacks=[Told()], reduction="exact", save_every=0)
trainer.remove_callback(PrinterCallback)
trainer.train()
print(json.dumps({"digest": trainer.elastic.train_state.digest(), "layers": len(trainer.elastic.train_state.layers)}), flush=True)
os._exit(0)
"""


PRELOAD = (*TORCH, "transformers.trainer", "transformers.models.gpt2.modeling_gpt2")
FORKS.set_forkserver_preload(list(PRELOAD))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, SCRIPT)
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """What a worker alone prints."""
    worker = Worker(tmp_path_factory.mktemp("alone"), "alone", SCRIPT)
    try:
        return worker.end()
    finally:
        worker.close()


def test_a_trainer_that_loses_a_peer_in_mid_step_learns_the_same_bits(job: Job, undisturbed: list[dict[str, object]]) -> None:
    names = [job.start(slot) for slot in (0, 2)]
    dead = job.start(1, {"step": 2, "phase": "reducing", "act": "kill"})
    joiner = job.start(3)
    job.launcher.wait_for_joins(*names, dead, joiner)
    job.launcher.form(1, names[0], dead, names[1])
    job.launcher.wait_for_disconnect(dead)
    job.launcher.form(2, *names, joiner)  # the fourth comes in while the others wait for the epoch
    assert len(undisturbed) == STEPS + 1
    for name in names:
        assert job.workers[name].end() == undisturbed
    assert job.workers[joiner].end() == undisturbed[2:], "it took part from the step in flight on, with the others' state"
    recomputed = [number for said in job.launcher.received("resumed", epoch=2) for number in said["recomputed"]]
    assert sorted(recomputed) == [2, 3], "the dead worker's share, and nothing else"


def by_slot(cluster: LauncherCluster) -> dict[int, int]:
    return {each["slot"]: each["pid"] for each in cluster.job(0)["workers"]}


def test_a_trainer_under_the_launcher_that_loses_a_peer_in_mid_step_learns_the_same_bits(cluster: LauncherCluster, undisturbed: list[dict[str, object]]) -> None:
    killed = 2
    fault = {"worker": 1, "step": killed, "phase": "computing", "act": "kill"}  # SIGKILL after the first of its two micro-batches
    slow = cluster.directory / "slow"
    slow.touch()
    logs = [cluster.directory / "state" / "logs" / cluster.run / "n0" / f"{slot}.log" for slot in range(3)]
    launcher = cluster.launch(
        0, nnodes=(1, 1), nproc=3, command=(sys.executable, "train.py"), preload=PRELOAD, environment={**os.environ, "EAGLE_EYE_FAULTS": json.dumps([fault])}
    )
    wait_until("all three to train", lambda: all(said_in(log) for log in logs))
    pids = by_slot(cluster)
    wait_until("the replacement to train", lambda: len(said_in(logs[1])) > killed)
    now = by_slot(cluster)
    assert [now[slot] == pids[slot] for slot in range(3)] == [True, False, True], "the others have lived on"
    slow.unlink()
    assert launcher.wait(DEADLINE_S) == 0

    for survivor in (0, 2):
        assert said_in(logs[survivor]) == undisturbed
    dead, joiner = said_in(logs[1])[:killed], said_in(logs[1])[killed:]
    assert dead == undisturbed[:killed], "it was killed before the step was done"
    assert joiner == undisturbed[-len(joiner) :], "it has what the others have, from its first step on"
    death = next(event for event in cluster.events("transition.done") if event.attributes["reason"] == "death")
    assert (death.attributes["step"], death.attributes["source"]) == (str(killed), ""), "the step in flight was finished, from nothing but what the living held"
    assert len(cluster.events("exit")) == 1
