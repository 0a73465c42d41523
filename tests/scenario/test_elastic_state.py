"""State between real processes over gloo: every way, and what is left when either end is killed in the middle."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.training.elastic.transfer import transports
from fakes.elastic_processes import Job, Worker
from fakes.transfer_processes import LAYERS, train_state, worker

PATIENCE_S = 150.0
TO_RANK_2 = [[layer % 2, 2, layer] for layer in range(LAYERS)]
TO_RANK_1 = [[0, 1, layer] for layer in range(LAYERS)]
JOB = """
import json, os
import torch
import eagle_eye
from eagle_eye.training.elastic.transfer import remote_memory

torch.set_num_threads(1)
torch.manual_seed(5)

if os.environ.get("TORN"):
    read = remote_memory.read

    def torn(pid, addresses, into):
        remote_memory.read = read
        read(pid, addresses, into)
        into[-1][-1] ^= 128

    remote_memory.read = torn

def batch(step, micro_batch):
    given = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + micro_batch))
    return given, given.sum(1, keepdim=True)

worker = eagle_eye.elastic(
    [torch.nn.Linear(8, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)], loss=torch.nn.functional.mse_loss, batch=batch, micro_batches=6,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2), save_every=0,
)
for step in worker.steps(until=5):
    step.run()
print(json.dumps({"digest": worker.train_state.digest()}), flush=True)
os._exit(0)
"""


class Workers:
    """A process for each rank, and a line to each."""

    def __init__(self, folder: Path) -> None:
        self._store = str(folder / "store")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo"])
        self.processes: list[ForkServerProcess] = []
        self.lines: list[Connection] = []

    def start(self, world: int, moves: Sequence[Sequence[int]], allowed: Sequence[str], *, ask: dict[int, int] | None = None, width: int = 700) -> None:
        for rank in range(world):
            ours, theirs = self._context.Pipe()
            arguments = (rank, world, self._store, moves, allowed, theirs, (ask or {}).get(rank, 0), width)
            process = self._context.Process(target=worker, args=arguments)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.lines.append(ours)

    def hear(self, rank: int) -> Any:
        assert self.lines[rank].poll(PATIENCE_S), f"rank {rank} says nothing"
        return self.lines[rank].recv()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for line in self.lines:
            line.close()


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = Workers(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("way", transports.NAMES)
def test_a_fresh_process_gets_the_state_of_two_others(workers: Workers, way: str) -> None:
    expected = train_state(0, 2, 1200)
    workers.start(3, TO_RANK_2, [way], width=1200)
    heard = [workers.hear(rank) for rank in range(3)]
    everything = sum(expected.bytes_per_layer)
    assert everything > 8 << 20  # several chunks a layer
    assert heard[2] == ("moved", everything, {way: everything}, expected.digest(), True, 0)
    assert heard[0] == heard[1] == ("moved", 0, {}, expected.digest(), True, 0)


@pytest.mark.parametrize("way", transports.NAMES)
def test_a_taker_whose_giver_is_killed_in_the_middle_is_fresh(workers: Workers, way: str) -> None:
    workers.start(2, TO_RANK_1, [way], ask={1: 2})
    assert workers.hear(1)[0] == "in the middle"
    os.kill(workers.processes[0].pid or 0, signal.SIGKILL)
    workers.processes[0].join()
    workers.lines[1].send("go on")
    kind, error, _, whole, still_open = workers.hear(1)
    assert (kind, error, whole, still_open) == ("failed", "Broken", False, 0)


@pytest.mark.parametrize("way", transports.NAMES)
def test_a_giver_whose_taker_is_killed_in_the_middle_keeps_its_state_and_nothing_else(workers: Workers, way: str) -> None:
    workers.start(2, TO_RANK_1, [way], ask={1: 2})
    assert workers.hear(1)[0] == "in the middle"
    os.kill(workers.processes[1].pid or 0, signal.SIGKILL)
    kind, error, _, whole, still_open = workers.hear(0)
    assert (kind, error, whole, still_open) == ("failed", "Broken", True, 0)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, JOB)
    yield made
    made.close()


def test_a_layer_that_arrived_torn_comes_from_another_giver_the_next_time(job: Job, tmp_path: Path) -> None:
    givers = [job.start(slot) for slot in (0, 1)]
    dead = job.start(2, {"step": 2, "phase": "reducing", "act": "kill"})
    joiner = job.start(3, TORN="1")
    job.launcher.wait_for_joins(*givers, dead, joiner)
    job.launcher.form(1, *givers, dead)
    job.launcher.wait_for_disconnect(dead)
    first = job.launcher.form(2, *givers, joiner)[joiner]
    torn = job.launcher.wait_for("broken", joiner, epoch=2)
    assert [(first.workers[giver], layer) for giver, _, layer in first.moves].count((torn["sender"], torn["layers"][0])) == 1
    second = job.launcher.form(3, *givers, joiner)[joiner]
    assert len(second.moves) == len(first.moves)
    assert all(second.workers[giver] != torn["sender"] for giver, _, layer in second.moves if layer in torn["layers"])
    alone = Worker(tmp_path, "alone", JOB)
    try:
        assert job.workers[joiner].end() == alone.end()
    finally:
        alone.close()
    assert all(job.workers[giver].end() == job.workers[joiner].said() for giver in givers)
