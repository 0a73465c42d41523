"""What the launcher and the log are told of checkpoints that the node's memory refused, and when to try again."""

import errno
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from eagle_eye.training import messages
from eagle_eye.training.save_retry import FIRST_S, LONGEST_S, room_text
from eagle_eye.training.storage_failure import UNKNOWN, StorageFailure, size_text, storage_failure

from . import memory_segment

_log = logging.getLogger("eagle_eye.checkpoint")


class FailureReport:
    """Of one client: each failure is told once, until a save succeeds or another failure comes."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._failures = 0
        """In a row."""
        self._retry_at = 0.0
        self._told: tuple[str, str] | None = None
        self._told_reduced = False
        self._told_not_finite = False

    def is_delayed(self) -> bool:
        """The next attempt is not due yet."""
        return self._clock() < self._retry_at

    def failed(self, error: Exception, step: int, needed: int, safe_step: int) -> None:
        """Tell it, if it is news. `step`: of the checkpoint that was due; `safe_step`: the newest that is whole in memory, -1: none."""
        self._failures += 1
        delay = min(LONGEST_S, FIRST_S * 2 ** min(self._failures - 1, 16))
        self._retry_at = self._clock() + delay
        failure = self._failure(error)
        if self._told == (failure.errno, type(error).__name__):
            return
        self._told = failure.errno, type(error).__name__
        safe = f"the newest one there is that of step {safe_step}" if safe_step >= 0 else "there is none"
        _log.error(
            "no checkpoint in memory (%s): %s; its copies need %s, %s; %s, training goes on, and it is tried again",
            self._path, failure.reason, size_text(needed), room_text(failure), safe,
        )  # fmt: skip
        messages.tell_launcher(
            "memory_checkpoint_failed", step=step, path=failure.path, errno=failure.errno, reason=failure.reason, free_bytes=failure.free_bytes, needed_bytes=needed,
            safe_step=safe_step, retry_s=delay, file=Path(self._path).name,
        )  # fmt: skip

    def reduced(self, error: OSError, slots: int, wanted: int, needed: int) -> None:
        """There is memory for so many copies, not for as many as are wanted. Told once: until the process ends."""
        if self._told_reduced:
            return
        self._told_reduced = True
        failure = self._failure(error)
        _log.warning(
            "the memory of %s holds %d copies of the state, not %d: %s; %s are needed, %s. What is on its way to another node, or to storage, gives way to the save after the next",
            self._path, slots, wanted, failure.reason, size_text(needed), room_text(failure),
        )  # fmt: skip
        messages.tell_launcher(
            "memory_checkpoint_reduced", path=failure.path, errno=failure.errno, reason=failure.reason, free_bytes=failure.free_bytes, needed_bytes=needed, slots=slots, wanted=wanted,
        )  # fmt: skip

    def _failure(self, error: Exception) -> StorageFailure:
        if not isinstance(error, OSError):
            return StorageFailure(self._path, "", f"{type(error).__name__}: {error}", UNKNOWN)
        failure = storage_failure(error, self._path)
        return replace(failure, free_bytes=memory_segment.free_memory()) if error.errno == errno.ENOMEM else failure

    def succeeded(self, step: int) -> None:
        """A checkpoint is whole."""
        if self._failures:
            _log.warning("the checkpoint of step %d is in memory (%s), after %d attempt(s) that failed", step, self._path, self._failures)
        self._failures, self._retry_at, self._told = 0, 0.0, None


    def not_finite(self, step: int, names: Sequence[str], safe_step: int) -> None:
        """A checkpoint is whole; these of its tensors hold infinite values or NaN. Told once, until one is finite."""
        if names and not self._told_not_finite:
            more = f" and {len(names) - 1} further tensor(s)" if len(names) > 1 else ""
            safe = f"the newest that will be is that of step {safe_step}" if safe_step >= 0 else "there is none that will be"
            _log.warning("the checkpoint in memory of step %d will not be loaded (%s): %r%s is not finite; %s", step, self._path, names[0], more, safe)
        self._told_not_finite = bool(names)
