"""Processes that hand training state to each other over a real group; run in children, so it has a module of its own."""

import os
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eagle_eye.errors import EagleEyeError
from eagle_eye.training.elastic.train_state.train_state import TrainState
from eagle_eye.training.elastic.transfer.state_transfer import transfer_state

PATIENCE = timedelta(seconds=60)
LAYERS = 4


class Session:
    """Says nothing; at the n-th question the process with this number is killed, or this one stays where it is."""

    def __init__(self, line: Connection, ask_after: int) -> None:
        self._line, self._left = line, ask_after

    def check(self, epoch: int) -> None:
        self._left -= 1
        if self._left == 0:
            self._line.send(("in the middle", os.getpid()))
            self._line.recv()


def train_state(seed: int, steps: int = 0, width: int = 12) -> TrainState:
    """Of a small model that has done some steps, each with gradients of its own."""
    torch.manual_seed(seed)
    layers = [nn.Linear(width, width) for _ in range(LAYERS)]
    parameters = [each for layer in layers for each in layer.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    found = TrainState(layers, optimizer)
    for _ in range(steps):
        for each in parameters:
            each.grad = torch.randn(each.shape)
        optimizer.step()
        found.step += 1
    return found


def worker(rank: int, world: int, store: str, moves: Sequence[Sequence[int]], allowed: Sequence[str], line: Connection, ask_after: int, width: int) -> None:
    """Tells what it ended with: ("moved", bytes, sources, digest, whole, what is still open) or ("failed", kind, words, whole)."""
    from torch.distributed import FileStore, ProcessGroupGloo

    from eagle_eye.training.elastic.process_group.torch_group import TorchGroup

    class Group(TorchGroup):
        def _complete(self, issued: Any) -> None:
            issued.wait(PATIENCE)

    torch.set_num_threads(1)
    takes = any(taker == rank for _, taker, _ in moves)
    state = train_state(rank if takes else 0, 0 if takes else 2, width)
    group = Group(ProcessGroupGloo(FileStore(store, world), rank, world, PATIENCE), epoch=1, rank=rank, world=world, device="cpu")
    try:
        moved = transfer_state(group, Session(line, ask_after), state, moves, rank, allowed=allowed, threads=2)
        line.send(("moved", moved.bytes, dict(moved.sources), state.digest(), state.is_complete, segments_open()))
    except EagleEyeError as error:
        line.send(("failed", type(error).__name__, str(error), state.is_complete, segments_open()))
    line.recv()  # a process that ends takes its connections with it
    os._exit(0)


def segments_open() -> int:
    """Of the memory that is shared for a transfer, as many as this process still has open or mapped."""
    links = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sum("eagle-eye-state" in text for text in [*links, *Path("/proc/self/maps").read_text().splitlines()])
