"""When an elastic worker writes a checkpoint, and where it begins.

All members hold the same state, so one of them saves for all; and it copies before it writes, so that training waits
for one copy alone. A checkpoint's number is that of a committed step: whoever wrote it, its content is the only one
possible, so a worker that was left behind and writes late does no harm.
"""

import logging
import os
import threading
from pathlib import Path
from typing import Any

import torch

from eagle_eye.training import checkpoint

from .inventory import Inventory
from .recall import load_newest

_log = logging.getLogger("eagle_eye.elastic")


class Saving:
    """`every`: steps between two checkpoints, 0: none but those of a job that has to stop."""

    def __init__(self, every: int, directory: Path | None) -> None:
        if every < 0:
            raise ValueError(f"save_every={every}: give a number of steps, or 0 for none")
        self._every, self._directory = every, directory
        self._writing: threading.Thread | None = None

    def load(self, inventory: Inventory) -> None:
        """The newest whole checkpoint, if there is one."""
        load_newest(inventory, [checkpoint.directory_of(self._directory)], at_most=resume_step())

    def after(self, inventory: Inventory, rank: int) -> None:
        """A step was committed."""
        if rank == 0 and self._every and inventory.step % self._every == 0:
            self._finish()
            copied, step = _copied(inventory.state()), inventory.step
            self._writing = threading.Thread(target=self._write, args=(copied, step), name="eagle-eye-checkpoint")
            self._writing.start()

    def last(self, inventory: Inventory, rank: int) -> None:
        """The training is done."""
        self._finish()
        if rank == 0 and self._every:
            self.now(inventory)

    def now(self, inventory: Inventory) -> Path | None:
        """Save at once; the path of its manifest, None if there is no room for it."""
        self._finish()
        return self._write(inventory.state(), inventory.step)

    def _write(self, state: Any, step: int) -> Path | None:
        try:
            return checkpoint.save(state, step, self._directory)
        except OSError as error:
            where = checkpoint.directory_of(self._directory)
            _log.error("no checkpoint of step %d in %s: %s; the older ones are untouched", step, where, error)
            return None

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


def resume_step() -> int:
    """The highest step to begin at, as the launcher has it; below 0: no limit."""
    return int(os.environ.get("EAGLE_EYE_RESUME_STEP") or -1)
