"""Checkpointing of an elastic worker: when it writes a checkpoint, and which one it starts from.

All workers hold the same state, so rank 0 saves for all; it copies before it writes, so that training waits for one
copy only. Between two of these the state is kept in memory (replica_memory.py). A checkpoint's number is that of a committed step: its content is the same from every worker, so one that was
fenced out and writes late does no harm.

A checkpoint that storage refuses costs no training: `eagle_eye.training.checkpoint` tells the launcher and tries again. The last
checkpoint of a job is all that is left of it: while it cannot be written its worker lives on with the state, and tries again
until there is room.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from eagle_eye.training import checkpoint
from eagle_eye.training.object_path import StoragePath
from eagle_eye.training.save_retry import WAIT_S, room_text
from eagle_eye.training.storage_failure import size_text, storage_failure

from .epoch_protocol import EpochAssignment
from .replica_memory import ReplicaMemory
from .train_state.train_state import TrainState
from .transfer.state_transfer import TransferResult

_log = logging.getLogger("eagle_eye.elastic")

RETRY_S = 1.0
"""Seconds between two attempts to write the last checkpoint, and between two reports that it is still being written."""

ReportFailure = Callable[[str, str], None]
"""report(why, path): what keeps the last checkpoint from being written ('' if nothing does), and its path ('' until it is written)."""


class Checkpointing:
    """`every`: steps between two checkpoints, 0: none but those of a job that has to stop. `memory`: what is kept beside them."""

    def __init__(self, every: int, directory: StoragePath | None, memory: ReplicaMemory | None = None) -> None:
        if every < 0:
            raise ValueError(f"save_every={every}: give a number of steps, or 0 for none")
        self._every, self._directory = every, directory
        self._memory = memory or ReplicaMemory(None, 0)
        self._writing: threading.Thread | None = None
        self._late = False
        """The writer was waited for in vain: nobody waits for it again."""

    def begin_epoch(self, assignment: EpochAssignment) -> None:
        """Called before the group of an epoch is formed: which worker of the node keeps the state in memory."""
        self._memory.begin_epoch(assignment)

    def fenced_out(self) -> None:
        """This worker is no part of the job any more: another one of its node keeps the state in memory."""
        self._memory.release()

    def before_transfer(self) -> None:
        """The state is about to be overwritten by another worker's, or a checkpoint's."""
        self._memory.wait()

    def load(self, train_state: TrainState, *, for_all: bool = True) -> None:
        """The newest whole checkpoint in memory or storage, if there is one. `for_all`: the others get it from this worker; else all load what storage has, the same."""
        home, limit = checkpoint.directory_of(self._directory), resume_step()
        step = self._memory.load(train_state, home, limit) if for_all else None
        if step is None:
            load_newest(train_state, [home], at_most=limit)
        if limit >= 0:
            train_state.rolled_back_in = int(os.environ.get("EAGLE_EYE_EPOCH") or 0)

    def after_step(self, train_state: TrainState, rank: int) -> None:
        """Called after each committed step: it is kept in memory, and rank 0 saves, in a thread, if it is time and the storage has taken the checkpoint before."""
        self._memory.after_step(train_state)
        if rank == 0 and self._every and train_state.step % self._every == 0:
            if self._is_writing(0.0 if self._late else WAIT_S):
                self._late = True
                checkpoint.leave_out(train_state.step, self._directory)
                return
            self._begin(_copied(train_state.state()), train_state.step)

    def _begin(self, copied: Any, step: int) -> None:
        """In a thread; where none may be started (a limit of the container), training waits for it."""
        writing = threading.Thread(target=checkpoint.save, args=(copied, step, self._directory), name="eagle-eye-checkpoint")
        try:
            writing.start()
        except RuntimeError as error:
            _log.warning("the checkpoint of step %d is waited for: %s", step, error)
            checkpoint.save(copied, step, self._directory)
        else:
            self._writing = writing

    def save_last(self, train_state: TrainState, rank: int, report: ReportFailure) -> None:
        """Called after the last step: rank 0 saves, and waits for it."""
        if rank == 0 and self._every:
            self.save_now(train_state, report)

    def save_now(self, train_state: TrainState, report: ReportFailure) -> StoragePath:
        """Save and return the path of the manifest; blocks until it is written. Calls `report` every RETRY_S, also from a thread."""
        why = "an earlier checkpoint is still being written" if self._is_writing(0.0) else ""
        with _every(RETRY_S, lambda: report(why, "")):
            self._is_writing(None)
            why = ""
            while True:
                try:
                    path = checkpoint.save_or_raise(train_state.state(), train_state.step, self._directory)
                except OSError as error:
                    why = self._why_not(train_state, error)
                    report(why, "")
                    threading.Event().wait(RETRY_S)
                else:
                    break
        report("", str(path))
        return path

    def _why_not(self, train_state: TrainState, error: OSError) -> str:
        home = checkpoint.directory_of(self._directory).absolute()
        failure = storage_failure(error, home)
        return (
            f"the state of step {train_state.step} cannot be saved to {home}: {failure.reason}; it needs "
            f"{size_text(sum(train_state.bytes_per_layer))}, {room_text(failure)}. Process {os.getpid()} keeps it and tries again every second: make room "
            f"there. If the job is ended before, the state is lost: {_newest_in(home)}"
        )

    def _is_writing(self, wait_s: float | None) -> bool:
        """Whether a checkpoint is still being written after so many seconds (None: however long it takes)."""
        if self._writing is not None:
            self._writing.join(wait_s)
            if self._writing.is_alive():
                return True
        self._writing, self._late = None, False
        return False


def _newest_in(home: StoragePath) -> str:
    try:
        older = [entry.step for entry in checkpoint.entries(home) if entry.finite]
    except OSError:  # a store that is gone
        return "whether there is an older checkpoint is unknown"
    return f"the newest checkpoint is that of step {older[-1]}" if older else "there is no older checkpoint"


def load_newest(train_state: TrainState, folders: Sequence[StoragePath], at_most: int = -1) -> TransferResult | None:
    """Load the newest whole checkpoint of some folders, nearest first: memory of the node (tmpfs), then storage.

    Of two of the same step the nearer one is loaded. `at_most`: the highest step to load (below 0: no limit). Returns None
    if there is none. Raises ConfigError if it is another model's.
    """
    began = time.monotonic()
    best: tuple[dict[str, object], int, StoragePath] | None = None
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
    """The same nested value with copies of its tensors in host memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


@contextmanager
def _every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` every `seconds` in a thread, as long as the block lasts; not at all where none may be started."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, name="eagle-eye-last-checkpoint", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        _log.warning("nobody reports how the last checkpoint is getting on: %s", error)
        over.set()
    try:
        yield
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()


def resume_step() -> int:
    """The highest step to start from (EAGLE_EYE_RESUME_STEP); below 0: no limit."""
    return int(os.environ.get("EAGLE_EYE_RESUME_STEP") or -1)
