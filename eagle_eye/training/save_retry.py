"""The newest checkpoint that storage refused: kept in memory, and tried again with back-off until it is written or a newer one is due."""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from .object_path import StoragePath
from .storage_failure import UNKNOWN, StorageFailure, size_text, storage_failure

FIRST_S, LONGEST_S = 1.0, 60.0
"""Seconds until the first attempt after a failure; they double up to the longest."""
END_S = 10.0
"""A process that ends waits so long for a checkpoint that is still not written."""
WAIT_S = 5.0
"""Training waits so long for an earlier checkpoint that is still being written; then it goes on without the new one."""
TELL_S = 10.0
"""A failure that goes on is told no more often."""
_log = logging.getLogger("eagle_eye.checkpoint")


class Unwritten(Protocol):
    """A checkpoint that is still to be written."""

    @property
    def home(self) -> StoragePath: ...
    @property
    def step(self) -> int: ...
    @property
    def needed_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _SkippedSave:
    """A checkpoint of which nothing was copied."""

    home: StoragePath
    step: int
    needed_bytes: int = UNKNOWN


Checkpoint = TypeVar("Checkpoint", bound=Unwritten)


class SaveRetry(Generic[Checkpoint]):
    """Of one process. `write` raises OSError; `report` brings a failure to the launcher: attempt, seconds until the next one."""

    def __init__(
        self, write: Callable[[Checkpoint], StoragePath], report: Callable[[Unwritten, StorageFailure, int, float], None], *,
        first_s: float = FIRST_S, end_s: float = END_S, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._write, self._report = write, report
        self._first_s, self._end_s, self._clock = first_s, end_s, clock
        self._forget()
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """At the beginning; and in a forked child, which saves for itself and has no thread."""
        self._turn = threading.Condition()
        self._pending: Checkpoint | None = None
        self._failures = 0
        """In a row."""
        self._told: tuple[str, str, float] | None = None
        """Path and errno of the failure that was told last, and when."""
        self._thread: threading.Thread | None = None
        self._ending = False
        self._at_once = False
        """The next attempt is not to wait."""

    @contextmanager
    def turn(self, wait_s: float = -1) -> Iterator[bool]:
        """For one save: no other one writes meanwhile, and what was to be tried again gives way to the newer one.

        It gives way before that is copied, so that a save never needs more memory than it would without a failure before it. False: an
        attempt before it, on storage that does not answer, has not ended after `wait_s` (below 0: it is waited for), and nothing may be written.
        """
        if not self._turn.acquire(timeout=wait_s):
            yield False
            return
        try:
            self._pending = None
            self._turn.notify_all()
            yield True
        finally:
            self._turn.release()

    def leave_out(self, home: StoragePath, step: int) -> None:
        """Tell that this checkpoint is not written, since an earlier one is still being written. Asks the storage nothing."""
        reason = "it does not answer, and an earlier checkpoint is still being written there"
        _log.error("no checkpoint of step %d in %s: %s; training goes on, and the next one that is due is saved once it answers", step, home, reason)
        self._report(_SkippedSave(home, step), StorageFailure(os.fspath(home), "", reason, UNKNOWN), 0, 0.0)

    def save(self, checkpoint: Checkpoint) -> StoragePath | None:
        """Within `turn`: write it, or None and try again in the background."""
        try:
            return self.attempt(checkpoint)
        except OSError:
            self._pending = checkpoint
            if self._thread is None:
                self._begin()
            return None

    def _begin(self) -> None:
        """Trying again in the background; where no thread may be started (a limit of the container), the next one that is due is saved."""
        thread = threading.Thread(target=self._work, name="eagle-eye-save-retry", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("what could not be saved is not tried again before the next checkpoint: %s", error)
        else:
            self._thread = thread

    def attempt(self, checkpoint: Checkpoint) -> StoragePath:
        """Within `turn`: write it once. A failure is told, and raised."""
        try:
            path = self._write(checkpoint)
        except OSError as error:
            self._failures += 1
            self._tell(checkpoint, storage_failure(error, checkpoint.home.absolute()))
            raise
        if self._failures:
            _log.warning("the checkpoint of step %d is saved to %s, after %d attempt(s) that failed", checkpoint.step, path, self._failures)
        self._failures, self._told = 0, None
        return path

    def finish(self) -> None:
        """At the end of the process: wait `end_s` for what is not written yet."""
        if self._pending is None or not self._turn.acquire(timeout=self._end_s):
            return
        try:
            self._ending = self._at_once = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._pending is None, self._end_s)
            if self._pending is not None:
                _log.error("the checkpoint of step %d was never written to %s: its state is lost", self._pending.step, self._pending.home)
        finally:
            self._turn.release()

    @property
    def delay_s(self) -> float:
        """Until the next attempt of our own."""
        longest = self._first_s if self._ending else LONGEST_S
        return float(min(longest, self._first_s * 2 ** min(self._failures - 1, 16)))

    def _work(self) -> None:
        with self._turn:
            while (checkpoint := self._pending) is not None:
                self._turn.wait_for(lambda: self._pending is not checkpoint or self._at_once, self.delay_s)
                self._at_once = False
                if self._pending is not checkpoint:
                    continue
                try:
                    self.attempt(checkpoint)
                except OSError:
                    continue
                self._pending = None
                self._turn.notify_all()
            self._thread = None

    def _tell(self, checkpoint: Checkpoint, failure: StorageFailure) -> None:
        now = self._clock()
        if self._told is not None and self._told[:2] == (failure.path, failure.errno) and now - self._told[2] < TELL_S:
            return
        self._told = failure.path, failure.errno, now
        _log.error(
            "no checkpoint of step %d in %s: %s; it needs %s, %s; the older ones are untouched, training goes on, and it is tried again",
            checkpoint.step, failure.path, failure.reason, size_text(checkpoint.needed_bytes), room_text(failure),
        )  # fmt: skip
        self._report(checkpoint, failure, self._failures, self.delay_s)


def room_text(failure: StorageFailure) -> str:
    """How much is free."""
    return f"{size_text(failure.free_bytes)} are free" if failure.free_bytes >= 0 else "the free space is unknown"
