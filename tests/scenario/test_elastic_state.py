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

from eagle_eye.training.elastic import ways
from fakes.handing_over import LAYERS, inventory, worker

PATIENCE_S = 60.0
TO_RANK_2 = [[layer % 2, 2, layer] for layer in range(LAYERS)]
TO_RANK_1 = [[0, 1, layer] for layer in range(LAYERS)]


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


@pytest.mark.parametrize("way", ways.NAMES)
def test_a_fresh_process_gets_the_state_of_two_others(workers: Workers, way: str) -> None:
    expected = inventory(0, 2, 1200)
    workers.start(3, TO_RANK_2, [way], width=1200)
    heard = [workers.hear(rank) for rank in range(3)]
    everything = sum(expected.bytes_per_layer)
    assert everything > 8 << 20  # several chunks a layer
    assert heard[2] == ("moved", everything, {way: everything}, expected.digest(), True, 0)
    assert heard[0] == heard[1] == ("moved", 0, {}, expected.digest(), True, 0)


@pytest.mark.parametrize("way", ways.NAMES)
def test_a_taker_whose_giver_is_killed_in_the_middle_is_fresh(workers: Workers, way: str) -> None:
    workers.start(2, TO_RANK_1, [way], ask={1: 2})
    assert workers.hear(1)[0] == "in the middle"
    os.kill(workers.processes[0].pid or 0, signal.SIGKILL)
    workers.processes[0].join()
    workers.lines[1].send("go on")
    kind, error, _, whole, still_open = workers.hear(1)
    assert (kind, error, whole, still_open) == ("failed", "Broken", False, 0)


@pytest.mark.parametrize("way", ways.NAMES)
def test_a_giver_whose_taker_is_killed_in_the_middle_keeps_its_state_and_nothing_else(workers: Workers, way: str) -> None:
    workers.start(2, TO_RANK_1, [way], ask={1: 2})
    assert workers.hear(1)[0] == "in the middle"
    os.kill(workers.processes[1].pid or 0, signal.SIGKILL)
    kind, error, _, whole, still_open = workers.hear(0)
    assert (kind, error, whole, still_open) == ("failed", "Broken", True, 0)
