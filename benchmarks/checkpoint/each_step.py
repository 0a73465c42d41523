"""Two workers that train with a checkpoint in memory after each step and without, in turn.

A transformer of 3 million parameters, 8 sequences of 256 tokens for each worker and step, data parallel over gloo, AdamW. What a copy costs beside
a step depends on the tokens of a step alone: 12 bytes are copied for a parameter, 6 operations done for each token and parameter.
"""

import copy
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.chain.overhead import STUDENT
from eagle_eye import MemoryCheckpoints
from eagle_eye.ports import free_port

RANKS = 2
STEPS = 4
WIDTH, LAYERS, BATCH, LENGTH = 256, 4, 8, 256


@dataclass(frozen=True, slots=True)
class EachStep:
    """What the pairs say."""

    pairs: int
    steps: int
    step_s: float
    """Without checkpoints."""
    state_mb: float
    slowed: float
    bound: float
    """Upper end of the 95 % interval of the mean."""
    blocked_s: float
    """A step: in `save` and in the hook before the optimizer's step."""
    left_out: int


def each_step(pairs: int) -> EachStep:
    """Run the two workers."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EAGLE_EYE_")}
    environment |= {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, "-m", __name__, str(pairs)], env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True) for rank in range(RANKS)
    ]
    told = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a worker ended with {[rank.returncode for rank in ranks]}")
    saved, bare, blocked, size, left_out = zip(*(_numbers(text) for text in told), strict=True)
    mean, bound = slowed(saved[0], bare[0])
    return EachStep(
        pairs=len(bare[0]), steps=STEPS, step_s=statistics.median(bare[0]) / STEPS, state_mb=size[0][0] / 1e6, slowed=mean, bound=bound,
        blocked_s=statistics.mean(value[0] for value in blocked), left_out=int(sum(value[0] for value in left_out)),
    )  # fmt: skip


def slowed(with_it: Sequence[float], without: Sequence[float]) -> tuple[float, float]:
    """Mean slow-down of pairs, and the upper end of its 95 % interval."""
    ratios = [one / other - 1 for one, other in zip(with_it, without, strict=True)]
    mean, spread = statistics.mean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))
    return mean, mean + STUDENT[max(count for count in STUDENT if count <= max(len(ratios), 5))] * spread


def _numbers(text: str) -> list[list[float]]:
    return [[float(word) for word in line.split()] for line in text.splitlines()]


class Training:
    """One rank of the two, with the process group of this process's environment."""

    def __init__(self, path: str) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        torch.distributed.init_process_group("gloo")
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self._model = torch.nn.parallel.DistributedDataParallel(torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False))
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._tokens = torch.randn(BATCH, LENGTH, WIDTH)
        self.memory = MemoryCheckpoints([self._optimizer], path)

    @property
    def bytes(self) -> int:
        """Of the state."""
        return sum(each.nbytes for each in self._model.parameters()) * 3

    def state(self) -> dict[str, object]:
        return {"model": self._model.module.state_dict(), "optimizer": self._optimizer.state_dict()}

    def copied(self) -> dict[str, object]:
        """The state, independent of what trains on."""
        return copy.deepcopy(self.state())

    def steps(self, numbers: Iterable[int], after: Callable[[int], None]) -> float:
        """Seconds of so many steps, on this rank; the ranks wait for one another in each."""
        began = time.perf_counter()
        for number in numbers:
            self._model(self._tokens).square().mean().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            after(number)
        return time.perf_counter() - began


def worker(pairs: int) -> None:
    """One rank: prints the seconds of the parts with and without checkpoints, the time blocked a step, the bytes of the state, and saves left out."""
    path = f"/dev/shm/eagle-eye-benchmark-{os.environ['MASTER_PORT']}-{os.environ['RANK']}.memory"
    training = Training(path)
    memory = training.memory

    def save(step: int) -> None:
        began = time.perf_counter()
        memory.save(training.state(), step)
        in_save.append(time.perf_counter() - began)

    def part(saving: bool) -> float:
        """Seconds of STEPS steps."""
        seconds = training.steps(range(STEPS), save if saving else lambda _: None)
        began = time.perf_counter()
        if saving:
            memory.wait()
        return seconds + time.perf_counter() - began

    in_save: list[float] = []
    part(saving=False)
    memory.prepare(training.state())
    part(saving=True)
    in_save.clear()
    memory.waited_s, memory.left_out = 0.0, 0
    saved: list[float] = []
    bare: list[float] = []
    for pair in range(pairs):
        for saving in (True, False) if pair % 2 else (False, True):
            torch.distributed.barrier()
            (saved if saving else bare).append(part(saving))
            memory.finish()
    for row in (saved, bare, [(sum(in_save) + memory.waited_s) / (pairs * STEPS)], [training.bytes], [memory.left_out]):
        print(*row)
    memory.close()
    Path(path).unlink()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    worker(int(sys.argv[1]))
