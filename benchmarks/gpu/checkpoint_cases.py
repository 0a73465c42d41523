"""Checkpoints in memory from a GPU beside CUDA graphs, and of FSDP2's shards: is what is saved what is loaded, and is no graph spoilt? Rows of benchmarks.gpu.checkpoints."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoint.memory import TRIES, Training, must, save, segment
from benchmarks.report import Row
from eagle_eye import MemoryCheckpoints

WIDTH, LAYERS = 4096, 8
"""Of the model whose whole step is a graph: a copy of its state takes longer than a replay."""


def cases() -> Iterator[Row]:
    """All."""
    yield captured_beside_a_copy()
    yield whole_step_in_a_graph()
    yield sharded()


def captured_beside_a_copy() -> Row:
    """A CUDA graph is captured while a copy is under way."""
    training = Training(1 << 30, "cuda")
    source = torch.ones(1024, 1024, device="cuda")
    source @ source  # cuBLAS makes its handle
    captured = 0
    with segment("gpu-graph") as path:
        memory = MemoryCheckpoints([training.optimizer], path)
        must(memory.prepare(training.state()))
        training.optimizer.step()
        for step in range(TRIES):
            save(training, memory, step)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(200):
                    source @ source
            graph.replay()
            captured += 1
            training.optimizer.step()
            memory.finish()
        torch.cuda.synchronize()
        safe = memory.safe_step
        memory.close()
    return Row("CUDA graphs captured while a copy is under way; newest safe step", f"{captured} of {TRIES}; {safe}", f"{TRIES}; {TRIES - 1}", (captured, safe) == (TRIES, TRIES - 1))


class GraphTraining:
    """A model whose whole step, the optimizer's part too, is one CUDA graph. The first copy is under way while it is captured."""

    def __init__(self, path: Path) -> None:
        self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, device="cuda") for _ in range(LAYERS)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, capturable=True)
        self.memory = MemoryCheckpoints([self.optimizer], path)
        self._input = torch.randn(64, WIDTH, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        must(self.memory.prepare(self.state()))
        must(self.memory.save(self.state(), 1))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._step()
        self.memory.finish()

    def _step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self._input).square().mean().backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def replay(self) -> None:
        """One step."""
        self._graph.replay()

    def parameters(self) -> list[torch.Tensor]:
        """As they are in the order of the queue, in memory of their own."""
        return [each.detach().clone() for each in self.model.parameters()]


def whole_step_in_a_graph() -> Row:
    """A replay comes right behind each save: nobody is told when the optimizer writes."""
    right = 0
    with segment("gpu-whole-step") as path:
        training = GraphTraining(path)
        for step in range(2, 2 + TRIES):
            training.replay()
            expected = training.parameters()
            while not training.memory.save(training.state(), step):  # the copy that the capture met was given up: tried again after a second
                time.sleep(0.1)
            for _ in range(5):
                training.replay()
            training.memory.finish()
            right += _is_stored(path, training, step, expected)
        training.memory.close()
    return Row("the whole step in a CUDA graph that is replayed right behind each save: what is stored is the step that was saved", f"{right} of {TRIES}", str(TRIES), right == TRIES)


def _is_stored(path: Path, training: GraphTraining, step: int, expected: list[torch.Tensor]) -> bool:
    """Whether the newest copy, read by another client from a copy of the file, is that step."""
    twin = path.with_name(f"{path.name}-twin")
    twin.write_bytes(path.read_bytes())
    twin.chmod(0o600)
    try:
        template = {"model": {name: torch.empty_like(each) for name, each in training.model.state_dict().items()}}
        reader = MemoryCheckpoints([], twin)
        found = reader.load(template)
        reader.close()
    finally:
        twin.unlink()
    return found is not None and found.step == step and all(torch.equal(one, other) for one, other in zip(template["model"].values(), expected, strict=True))


def sharded() -> Row:
    """The shards of a model under FSDP2, in a world of one."""
    first, second = _sharded_training(), _sharded_training()
    with segment("gpu-sharded") as path:
        memory = MemoryCheckpoints([first[1]], path)
        must(memory.prepare(_state_of(*first)) and memory.save(_state_of(*first), 1))
        memory.close()
        memory = MemoryCheckpoints([second[1]], path)
        found = memory.load(_state_of(*second))
        memory.close()
    pairs: list[tuple[Any, Any]] = list(zip(first[0].parameters(), second[0].parameters(), strict=True))
    moments = [(first[1].state[one]["exp_avg"], second[1].state[other]["exp_avg"]) for one, other in pairs]
    equal = found is not None and all(torch.equal(one.to_local(), other.to_local()) for one, other in [*pairs, *moments])
    return Row("FSDP2's shards, saved and loaded into another model", "bit-equal" if equal else "another state", "bit-equal", equal)


def _sharded_training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """After one step."""
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, device="cuda") for _ in range(4)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    return model, optimizer


def _state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    parameters, moments = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": moments}
