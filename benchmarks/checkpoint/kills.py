"""A trainer is killed (SIGKILL) at random moments of its saves, in memory and to storage; its successor must have a whole state of the newest safe step or a later one.

    python -m benchmarks.checkpoint.kills --moments 200 --seed 1
    python -m benchmarks.checkpoint.kills --moments 30 --device cuda     the trainer's state is on a GPU

Each of its tensors holds the number of its step: one of another step, or half of one, is a torn state. The trainer says which step is safe after
each save; a state that is older than that is a lost one. The peer, torch.save over the same file, is killed in the same way. Launcher and neighbour
are killed by node_kills.
"""

import argparse
import logging
import os
import pickle
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track

from benchmarks.report import Row, report
from eagle_eye import MemoryCheckpoints
from eagle_eye.training import checkpoint

TENSORS, ELEMENTS = 16, 65_536
LONGEST_S = 0.15
"""From the first save that is safe until the kill, at most: some ten saves."""
SEGMENT = "worker-0.memory"
NUMBER = 8
"""Bytes of a number of a step in the pipe."""


class Found(NamedTuple):
    """What a successor has."""

    step: int
    """-1: nothing."""
    torn: bool
    passed_over: int
    """Newer copies that were not whole, and were seen to be so."""


class Tally(NamedTuple):
    """Of all moments of one kind of save."""

    torn: int
    lost: int
    passed_over: int


def state_of(step: int, device: str = "cpu") -> dict[str, Any]:
    """Of a trainer that has done so many steps."""
    return {f"layer {number}": torch.full((ELEMENTS,), float(step), device=device) for number in range(TENSORS)}


def is_torn(state: dict[str, Any], step: int) -> bool:
    """Whether it holds anything but that step."""
    return any(not bool((tensor == step).all()) for tensor in state.values())


# --- the trainers: each saves for ever, and says what is safe ------------------------------------------------------------


def train_in_memory(home: Path, tell: Callable[[int], None], device: str = "cpu", *, pause_s: float = 0.0) -> None:
    """The tensors are parameters of an optimizer that adds 1 to each: copied beside the next step, which waits for the rest. `pause_s`: after each step."""
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in state_of(0, device).items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=1.0)
    memory = MemoryCheckpoints([optimizer], home / SEGMENT)
    found = memory.load(parameters)
    memory.prepare(parameters)
    for parameter in parameters.values():
        parameter.grad = torch.full_like(parameter, -1.0)
    step = found.step if found else 0
    while True:
        optimizer.step()
        step += 1
        memory.save(parameters, step)
        tell(memory.safe_step)
        time.sleep(pause_s)


def train_to_storage(home: Path, tell: Callable[[int], None], device: str = "cpu") -> None:
    """As `checkpoint.save` does it."""
    step = 0
    while True:
        step += 1
        checkpoint.save_or_raise(state_of(step, device), step, home)
        tell(step)


def train_with_torch_save(home: Path, tell: Callable[[int], None], device: str = "cpu") -> None:
    """The peer: one file, written over."""
    step = 0
    while True:
        step += 1
        torch.save({"step": step, "state": state_of(step, device)}, home / "model.pt")
        tell(step)


# --- the successors ------------------------------------------------------------------------------------------------------


def load_from_memory(home: Path) -> Found:
    """By another client of the same file."""
    template = state_of(-1)
    memory = MemoryCheckpoints([], home / SEGMENT)
    found = memory.load(template)
    memory.close()
    return Found(-1, False, 0) if found is None else Found(found.step, is_torn(template, found.step), len(found.skipped))


def load_from_storage(home: Path) -> Found:
    """By `checkpoint.restore`."""
    template = state_of(-1)
    found = checkpoint.restore(template, home)
    return Found(-1, False, 0) if found is None else Found(found.step, is_torn(template, found.step), len(found.skipped))


def load_with_torch(home: Path) -> Found:
    """What torch.load says of the peer's file; one that it cannot read is gone."""
    try:
        found = torch.load(home / "model.pt", weights_only=True)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile):
        return Found(-1, False, 0)
    return Found(found["step"], is_torn(found["state"], found["step"]), 0)


# --- one moment ----------------------------------------------------------------------------------------------------------


def tell(pipe: int, step: int) -> None:
    """That a step is safe; -1: none is."""
    if step >= 0:
        os.write(pipe, step.to_bytes(NUMBER, "little"))


def killed(train: Callable[[Path, Callable[[int], None]], None], home: Path, wait_s: float) -> int:
    """The newest step that a trainer said was safe before it was killed, so long after it first said so."""
    mine, its = os.pipe()
    child = os.fork()  # torch is loaded
    if not child:
        os.close(mine)
        torch.set_num_threads(1)  # torch makes its pool of threads anew in a child, and not while two threads ask for it
        try:
            train(home, lambda step: tell(its, step))
        finally:
            os._exit(1)
    os.close(its)
    with os.fdopen(mine, "rb") as told:
        first = told.read(NUMBER)
        time.sleep(wait_s)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        numbers = first + told.read()
    if not os.WIFSIGNALED(status) or not first:
        raise RuntimeError(f"the trainer ended by itself, with {status}")
    whole = len(numbers) - len(numbers) % NUMBER
    return int.from_bytes(numbers[whole - NUMBER : whole], "little")


def tally(name: str, train: Callable[[Path, Callable[[int], None]], None], load: Callable[[Path], Found], moments: int, seed: int, memory: Path) -> Tally:
    """All moments of one kind, each with a directory of its own."""
    torn = lost = passed_over = 0
    for moment in track(range(moments), name, console=Console(stderr=True)):
        with tempfile.TemporaryDirectory(prefix="eagle-eye-kills-", dir=memory) as folder:
            safe = killed(train, Path(folder), LONGEST_S * Random((seed << 32) + moment).random())
            found = load(Path(folder))
        torn += found.torn
        lost += found.step < safe
        passed_over += found.passed_over > 0
    return Tally(torn, lost, passed_over)


def row(what: str, found: Tally, moments: int, peer: str = "") -> Row:
    """A kind of save."""
    figure = f"{moments} kills: {found.torn} torn, {found.lost} older than what was safe or nothing; {found.passed_over} met a newer one that was not whole, and said so"
    return Row(what, figure, "0 torn, 0 lost", not found.torn and not found.lost, peer)


def main() -> int:
    """Kill and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the trainer has its state (cpu)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("eagle_eye").setLevel(logging.ERROR)  # a copy that is passed over is counted
    for name in [name for name in os.environ if name.startswith("EAGLE_EYE_")]:
        del os.environ[name]
    run, device = (options.moments, options.seed), options.device
    ours = tally("in memory", partial(train_in_memory, device=device), load_from_memory, *run, Path("/dev/shm"))
    stored = tally("to storage", partial(train_to_storage, device=device), load_from_storage, *run, Path(tempfile.gettempdir()))
    theirs = tally("torch.save", partial(train_with_torch_save, device=device), load_with_torch, *run, Path(tempfile.gettempdir()))
    peer = f"torch.save over one file: {theirs.torn} torn, {theirs.lost} lost"
    return report([row("trainer killed in a save to memory", ours, options.moments, peer), row("trainer killed in a save to storage", stored, options.moments, peer)], options.json, f"kills in checkpoints of a state on {device}")


if __name__ == "__main__":
    sys.exit(main())
