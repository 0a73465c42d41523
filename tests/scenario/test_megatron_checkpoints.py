"""A real model and optimizer of Megatron-Core on the CPU: the sharded state goes on from memory, and is saved and loaded in our format by its own calls."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.training import checkpoint
from fakes.launchers import DEADLINE_S

KILLED_AT, STEPS = 2, 4

SCRIPT = """
import contextlib, json, os, signal, sys, traceback, warnings
warnings.simplefilter("ignore")
from benchmarks.collect.unmodified import megatron_on_cpu
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
import eagle_eye
from eagle_eye.training.integrations import megatron_storage
from eagle_eye.training.integrations.megatron_memory import ShardedMemoryCheckpoints

LENGTH, STEPS, KILLED_AT = 16, 4, 2
megatron_on_cpu.install()

class Job:
    def __init__(self, name, rank, world):
        torch.set_num_threads(1)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "EAGLE_EYE_CHECKPOINT_MEMORY": os.path.abspath(f"{rank}.memory") if "memory" in name else ""}
        dist.init_process_group("gloo", store=dist.FileStore(os.path.abspath(f"store {name} {world}"), world), rank=rank, world_size=world)
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
        torch.manual_seed(1)
        self.rank, self.world = rank, world
        config = TransformerConfig(
            num_layers=2, hidden_size=16, num_attention_heads=2, use_cpu_initialization=True, attention_dropout=0.1, hidden_dropout=0.1, gated_linear_unit=True,
            activation_func=torch.nn.functional.silu, add_bias_linear=False, tensor_model_parallel_size=world, gradient_accumulation_fusion=False,
            bias_dropout_fusion=False, masked_softmax_fusion=False, bias_activation_fusion=False, finalize_model_grads_func=finalize_model_grads)
        self.model = GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=32, max_sequence_length=LENGTH)
        reduction = DistributedDataParallelConfig(grad_reduce_in_fp32=False, overlap_grad_reduce=False, use_distributed_optimizer=False)
        self.wrapped = DistributedDataParallel(config, reduction, self.model)
        self.optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=0.01, use_distributed_optimizer=False, clip_grad=0.0), [self.wrapped])

    def sharded(self, loading=False):
        model = self.model.sharded_state_dict()
        random = dist_checkpointing.ShardedObject("random", eagle_eye.random_state(), (self.world,), (self.rank,))
        return {"model": model, "optimizer": self.optimizer.sharded_state_dict(model, is_loading=loading), "random": random, "note": "common"}

    def put_back(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        eagle_eye.restore_random_state(state["random"])

    def step(self, iteration):
        mask, positions = torch.tril(torch.ones(1, 1, LENGTH, LENGTH)) < 0.5, torch.arange(LENGTH).unsqueeze(0).expand(2, -1)
        def forward(batches, model):
            batch = next(batches)
            output = model(batch[:, :-1], positions, mask, labels=batch[:, 1:])
            return output, lambda found: (found.float().mean(), {"loss": found.detach().float().mean()})
        batches = iter([torch.randint(0, 32, (2, LENGTH + 1), generator=torch.Generator().manual_seed(10 * iteration + each)) for each in range(2)])
        self.wrapped.zero_grad_buffer()
        self.optimizer.zero_grad()
        found = get_forward_backward_func()(
            forward_step_func=forward, data_iterator=batches, model=self.wrapped, num_microbatches=2, seq_length=LENGTH, micro_batch_size=2, forward_only=False)
        return float(sum(each["loss"] for each in found))

def trains(name, rank, world, killed=False):
    job = Job(name, rank, world)
    memory = ShardedMemoryCheckpoints(job.optimizer)
    found = memory.load(job.sharded(loading=True))
    said = {"start": found.step if found else 0, "note": found.state["note"] if found else "", "losses": []}
    if found:
        job.put_back(found.state)
    else:
        for each in job.optimizer.chained_optimizers:  # torch's Adam, of which Megatron-Core makes the state for loading, but for the count of steps
            each.optimizer.state.clear()
    for iteration in range(said["start"], STEPS):
        loss = job.step(iteration)
        if killed and iteration == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        job.optimizer.step()
        memory.save(job.sharded(), iteration + 1)
        memory.memory.finish()
        said["losses"].append([iteration, loss])
    said["safe"] = memory.memory.safe_step
    if name == "saves":
        if not rank:
            os.makedirs("iter_0000004")
        dist.barrier()
        dist_checkpointing.save(job.sharded(), "iter_0000004", sharded_strategy=megatron_storage.SaveStrategy())
    return said

def loads(name, rank, world):
    job = Job(name, rank, world)
    model = job.model.sharded_state_dict()
    found = dist_checkpointing.load({"model": model}, "iter_0000004")  # the format is told by metadata.json
    job.model.load_state_dict(found["model"])
    stored = dist_checkpointing.load_tensors_metadata("iter_0000004")
    said = {"whole": {key: each.double().sum().item() for key, each in job.model.state_dict().items() if isinstance(each, torch.Tensor)}, "note": found["note"]}
    said["shape"] = list(stored["decoder.layers.mlp.linear_fc1.weight"].global_shape)
    model["other"] = dist_checkpointing.ShardedTensor.from_rank_offsets("other", torch.zeros(3))
    try:
        dist_checkpointing.load({"model": model}, "iter_0000004")
    except Exception as error:
        said["refused"] = f"{type(error).__name__}: {error}"
    return said

def main():
    children = []
    for function, name, rank, world, killed in json.loads(sys.argv[1]):
        child = os.fork()
        if child == 0:
            try:
                found = globals()[function](name, rank, world, *([killed] if killed else []))
                with open(f"{function} {name} {rank}", "w") as file:
                    json.dump(found, file)
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        children.append(child)
        if rank == world - 1:
            for each in children:
                os.waitpid(each, 0)
            children.clear()

main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process that imports, and a fork of it for each rank."""
    folder = tmp_path_factory.mktemp("megatron")
    (folder / "script.py").write_text(SCRIPT)
    runs = [
        ["trains", "alone", 0, 1, False], ["trains", "killed memory", 0, 1, True], ["trains", "resumed memory", 0, 1, False],
        ["trains", "saves", 0, 2, False], ["trains", "saves", 1, 2, False], ["loads", "by one", 0, 1, False],
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EAGLE_EYE_")}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "script.py", json.dumps(runs)], cwd=folder, env=environment, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False)
    (folder / "errors").write_text(done.stderr)
    return folder


def said(folder: Path, run: str) -> Any:
    assert (folder / run).exists(), (folder / "errors").read_text()
    return json.loads((folder / run).read_text())


def test_a_successor_goes_on_from_memory_with_the_same_losses(folder: Path) -> None:
    alone, resumed = said(folder, "trains alone 0"), said(folder, "trains resumed memory 0")
    assert not (folder / "trains killed memory 0").exists()
    assert (alone["start"], alone["safe"]) == (0, -1), "without a place nothing is kept"
    assert (resumed["start"], resumed["note"], resumed["safe"]) == (KILLED_AT, "common", STEPS)
    assert resumed["losses"] == alone["losses"][KILLED_AT:], "parameters, Adam's state and dropout, to the last bit"


def test_its_own_calls_save_in_our_format_and_one_rank_loads_what_two_have_saved(folder: Path) -> None:
    loaded = said(folder, "loads by one 0")
    saved = checkpoint.load(folder / "iter_0000004")
    assert saved is not None
    assert saved[1] == 4, "the number of the directory"
    tensors = saved[0]
    assert loaded["note"] == "common"
    assert loaded["shape"] == [2, 128, 16] == list(tensors["decoder.layers.mlp.linear_fc1.weight"].shape)
    for layer in range(2):
        for name in ("mlp.linear_fc1.weight", "self_attention.linear_qkv.weight"):
            assert loaded["whole"][f"decoder.layers.{layer}.{name}"] == tensors[f"decoder.layers.{name}"][layer].double().sum().item()
    assert loaded["whole"]["output_layer.weight"] == tensors["output_layer.weight"].double().sum().item()
    assert loaded["refused"].startswith("CheckpointingException: 'other' is not there")
