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
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from eagle_eye.training import checkpoint

from .train_state.train_state import TrainState
from .transfer.state_transfer import TransferResult

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

    def load(self, train_state: TrainState) -> None:
        """The newest whole checkpoint, if there is one."""
        load_newest(train_state, [checkpoint.directory_of(self._directory)], at_most=resume_step())

    def after(self, train_state: TrainState, rank: int) -> None:
        """A step was committed."""
        if rank == 0 and self._every and train_state.step % self._every == 0:
            self._finish()
            copied, step = _copied(train_state.state()), train_state.step
            self._writing = threading.Thread(target=self._write, args=(copied, step), name="eagle-eye-checkpoint")
            self._writing.start()

    def last(self, train_state: TrainState, rank: int, say: Say) -> None:
        """The training is done."""
        self._finish()
        if rank == 0 and self._every:
            self.keep(train_state, say)

    def keep(self, train_state: TrainState, say: Say) -> Path:
        """Save at once, however long it takes; the path of the manifest. `say` hears of it every second, from a thread, too."""
        self._finish()
        why = ""
        with _every(RETRY_S, lambda: say(why, "")):
            while True:
                try:
                    path = checkpoint.save(train_state.state(), train_state.step, self._directory)
                except OSError as error:
                    why = self._why_not(train_state, error)
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

    def _why_not(self, train_state: TrainState, error: OSError) -> str:
        home = checkpoint.directory_of(self._directory).absolute()
        older = [entry.step for entry in checkpoint.entries(home) if entry.finite]
        newest = f"the newest checkpoint there is that of step {older[-1]}" if older else "there is no older checkpoint"
        return (
            f"the state of step {train_state.step} cannot be saved to {home}: {error.strerror or error}; it needs "
            f"{_size(sum(train_state.bytes_per_layer))}, {_free(home)}. Process {os.getpid()} keeps it and tries again every second: make room "
            f"there. If the job is ended before, the state is lost: {newest}"
        )

    def _finish(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.join()


def load_newest(train_state: TrainState, folders: Sequence[Path], at_most: int = -1) -> TransferResult | None:
    """Load the newest whole checkpoint of some folders, nearest first: memory of the node (tmpfs), then storage.

    Workers have one folder today. Of two of the same step the nearer one is taken. `at_most` is the highest step to take (below 0: no limit). None if
    there is none. Raises ConfigError if it is another model's.
    """
    began = time.monotonic()
    best: tuple[dict[str, object], int, Path] | None = None
    for folder in folders:
        steps = [entry.step for entry in checkpoint.entries(folder) if entry.finite and (at_most < 0 or entry.step <= at_most)]
        if not steps or (best is not None and max(steps) <= best[1]):
            continue
        found = checkpoint.load(folder, at_most)
        if found is not None and (best is None or found[1] > best[1]):
            best = (*found, folder)
    if best is None:
        return None
    state, _, folder = best
    loaded = train_state.load(state)
    return TransferResult(loaded, time.monotonic() - began, {str(folder): loaded})


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
