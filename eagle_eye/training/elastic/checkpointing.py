"""When an elastic worker writes a checkpoint, and where it begins.

All members hold the same state, so one of them saves for all; and it copies before it writes, so that training waits
for one copy alone. A checkpoint's number is that of a committed step: whoever wrote it, its content is the only one
possible, so a worker that was left behind and writes late does no harm.

The last checkpoint of a job is all that is left of it. Where it cannot be written its worker lives on with the state,
and tries again until somebody has made room.
"""

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from eagle_eye.training import checkpoint

from .checkpoint_loader import load_newest
from .train_state.train_state import TrainState

_log = logging.getLogger("eagle_eye.elastic")

RETRY_S = 1.0
"""Between two tries to write the last checkpoint, and between two words that it is still being written."""

Say = Callable[[str, str], None]
"""Hears what keeps the last checkpoint from being written ('' if nothing does), and where it lies ('' until it does)."""


class Checkpointing:
    """`every`: steps between two checkpoints, 0: none but those of a job that has to stop."""

    def __init__(self, every: int, directory: Path | None) -> None:
        if every < 0:
            raise ValueError(f"save_every={every}: give a number of steps, or 0 for none")
        self._every, self._directory = every, directory
        self._writing: threading.Thread | None = None

    def load(self, inventory: TrainState) -> None:
        """The newest whole checkpoint, if there is one."""
        load_newest(inventory, [checkpoint.directory_of(self._directory)], at_most=resume_step())

    def after(self, inventory: TrainState, rank: int) -> None:
        """A step was committed."""
        if rank == 0 and self._every and inventory.step % self._every == 0:
            self._finish()
            copied, step = _copied(inventory.state()), inventory.step
            self._writing = threading.Thread(target=self._write, args=(copied, step), name="eagle-eye-checkpoint")
            self._writing.start()

    def last(self, inventory: TrainState, rank: int, say: Say) -> None:
        """The training is done."""
        self._finish()
        if rank == 0 and self._every:
            self.keep(inventory, say)

    def keep(self, inventory: TrainState, say: Say) -> Path:
        """Save at once, however long it takes; the path of the manifest. `say` hears of it every second, from a thread, too."""
        self._finish()
        why = ""
        with _every(RETRY_S, lambda: say(why, "")):
            while True:
                try:
                    path = checkpoint.save(inventory.state(), inventory.step, self._directory)
                except OSError as error:
                    why = self._why_not(inventory, error)
                    say(why, "")
                    threading.Event().wait(RETRY_S)
                else:
                    break
        say("", str(path))
        return path

    def _write(self, state: Any, step: int) -> None:
        try:
            checkpoint.save(state, step, self._directory)
        except OSError as error:
            where = checkpoint.directory_of(self._directory)
            _log.error("no checkpoint of step %d in %s: %s; the older ones are untouched", step, where, error)

    def _why_not(self, inventory: TrainState, error: OSError) -> str:
        home = checkpoint.directory_of(self._directory).absolute()
        older = [entry.step for entry in checkpoint.entries(home) if entry.finite]
        newest = f"the newest checkpoint there is that of step {older[-1]}" if older else "there is no older checkpoint"
        return (
            f"the state of step {inventory.step} cannot be saved to {home}: {error.strerror or error}; it needs "
            f"{_size(sum(inventory.bytes_per_layer))}, {_free(home)}. Process {os.getpid()} keeps it and tries again every second: make room "
            f"there. If the job is ended before, the state is lost: {newest}"
        )

    def _finish(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.join()


def _copied(value: Any) -> Any:
    """The same nest with copies of its tensors on the host."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


@contextmanager
def _every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Do it again and again in a thread, as long as the block lasts."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, name="eagle-eye-last-checkpoint", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _size(count: int) -> str:
    """In the largest unit that leaves a digit before the point."""
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _free(folder: Path) -> str:
    """What is free in a folder, or where it would be made."""
    there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    try:
        return f"{_size(shutil.disk_usage(there).free)} are free"
    except OSError as error:
        return f"what is free cannot be told ({error.strerror})"


def resume_step() -> int:
    """The highest step to begin at, as the launcher has it; below 0: no limit."""
    return int(os.environ.get("EAGLE_EYE_RESUME_STEP") or -1)
