"""transformers.Trainer that loses a peer in mid step: the loss curve and every bit of an undisturbed run."""

import json
import multiprocessing
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle_eye.training.elastic.epochs import Regroup
from eagle_eye.training.elastic.rehearsal import Rehearsal
from eagle_eye.training.messages import Message
from eagle_eye.types import Holding
from fakes.elastic import layout_of
from remediation.transition import plan_transition

STEPS = 5
SCRIPT = """
import json, os, warnings
for stream in (1, 2):
    os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
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
        numbers = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": numbers, "labels": numbers}

model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
arguments = training_arguments(
    output_dir="out", use_cpu=True, per_device_train_batch_size=2, gradient_accumulation_steps=6, max_steps=int(os.environ["STEPS"]),
    learning_rate=5e-3, warmup_steps=2, report_to=[], disable_tqdm=True, logging_steps=1,
)
trainer = ElasticTrainer(model=model, args=arguments, train_dataset=Data(), callbacks=[Told()], reduction="exact", save_every=0)
trainer.remove_callback(PrinterCallback)
trainer.train()
print(json.dumps({"digest": trainer.elastic.inventory.digest(), "layers": len(trainer.elastic.inventory.layers)}), flush=True)
os._exit(0)
"""


FORKS = multiprocessing.get_context("forkserver")  # so that transformers is imported once, and not by each worker
FORKS.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "transformers.trainer", "transformers.models.gpt2.modeling_gpt2"])


class Worker:
    """A process that trains."""

    def __init__(self, folder: Path, name: str, **environment: str) -> None:
        self._out, script = folder / f"{name}.out", folder / f"{name}.py"
        environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "STEPS": str(STEPS), "EAGLE_EYE_CHECKPOINT_DIR": str(folder / "kept")}
        script.write_text(f"import os\nos.environ.update({environment})\nos.chdir({str(folder)!r})\nout = {str(self._out)!r}\n" + SCRIPT)
        self._process = FORKS.Process(target=runpy.run_path, args=(str(script),))
        self._process.start()

    def end(self) -> str:
        """What it printed, once it has ended well."""
        self._process.join(90)
        said = self._out.read_text()
        assert self._process.exitcode == 0, said
        return said

    def close(self) -> None:
        self._process.kill()
        self._process.join()


class Job:
    """Workers, and the launcher's end, which plans as the launcher does."""

    def __init__(self, folder: Path) -> None:
        self.launcher = Rehearsal(str(folder / "launcher.sock"), plan, patience_s=60)
        self._folder = folder
        self.workers: dict[str, Worker] = {}

    def start(self, slot: int, *faults: dict[str, object]) -> str:
        name = f"run/n0/{slot}"
        self.workers[name] = Worker(
            self._folder, str(slot), EAGLE_EYE_ELASTIC_SOCKET=self.launcher.path, EAGLE_EYE_WORKER=name, EAGLE_EYE_NODE="n0",
            EAGLE_EYE_SLOT=str(slot), EAGLE_EYE_FAULTS=json.dumps([{"worker": slot} | fault for fault in faults]),
            RANK=str(slot), LOCAL_RANK=str(slot), WORLD_SIZE="4",
        )  # fmt: skip
        return name

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.launcher.close()


def told(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"')]


def plan(epoch: int, holdings: dict[str, Message], entries: dict[str, Message]) -> dict[str, Regroup]:
    workers = list(holdings)
    held = [
        Holding(**{"worker": name, "node": "n0"} | {key: said[key] for key in ("step", "done", "segments", "phase", "fresh")})
        for name, said in holdings.items()
    ]
    entry = entries[workers[0]]
    target = layout_of([(name, "n0") for name in workers], epoch)
    made = plan_transition("job", epoch, target, held, micro_batches=entry["micro_batches"], segments=entry["segments"], layer_bytes=entry["layers"])
    return {
        name: Regroup(epoch, rank, len(workers), tuple(workers), made.step, made.current, made.shares, made.finish, made.moves, made.source)
        for rank, name in enumerate(workers)
    }


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """What a worker alone prints."""
    worker = Worker(tmp_path_factory.mktemp("alone"), "alone")
    try:
        return told(worker.end())
    finally:
        worker.close()


def test_a_trainer_that_loses_a_peer_in_mid_step_learns_the_same_bits(job: Job, undisturbed: list[dict[str, object]]) -> None:
    names = [job.start(slot) for slot in (0, 2)]
    dead = job.start(1, {"step": 2, "phase": "reducing", "act": "kill"})
    joiner = job.start(3)
    job.launcher.entered(*names, dead, joiner)
    job.launcher.form(1, names[0], dead, names[1])
    job.launcher.lost(dead)
    job.launcher.form(2, *names, joiner)  # the fourth comes in while the others wait for the epoch
    assert len(undisturbed) == STEPS + 1
    for name in names:
        assert told(job.workers[name].end()) == undisturbed
    assert told(job.workers[joiner].end()) == undisturbed[2:], "it took part from the step in flight on, with the others' state"
    recomputed = [number for said in job.launcher.all_heard("resumed", epoch=2) for number in said["recomputed"]]
    assert sorted(recomputed) == [2, 3], "the dead worker's share, and nothing else"
