"""The session of a worker that was started without `eagle-eye run`: one epoch with one worker, and no launcher."""

import threading
from collections.abc import Callable
from typing import Any

from eagle_eye.errors import Ended, LauncherLost
from eagle_eye.training import messages

from .epoch_protocol import AbortableGroup, EpochAssignment, HeldState

EPOCH = 1


class LocalSession:
    """Behaves as a LauncherSession does whose launcher has one worker and never fences it."""

    def __init__(self, worker: str = "alone") -> None:
        self.worker = worker
        self.lock = threading.RLock()
        self.held_state: Callable[[], HeldState] = lambda: HeldState(step=0)
        self.fenced_epoch = -1
        self.soft_epoch = -1
        self._step = 0
        self._micro_batches = 0
        self._fresh = True
        self._group: AbortableGroup | None = None

    def join(self, *, epoch: int, step: int, micro_batches: int, segments: int, layers: list[int], fresh: bool) -> None:  # noqa: ARG002 - the signature of LauncherSession
        self._step, self._micro_batches, self._fresh = step, micro_batches, fresh

    def send(self, kind: str, **fields: Any) -> None:
        """There is no launcher to send to."""

    def use_group(self, group: AbortableGroup | None) -> None:
        before, self._group = self._group, group
        if before is not None and before is not group:
            before.close()

    def close(self) -> None:
        self.use_group(None)

    def check(self, epoch: int) -> None:
        """There is no newer epoch."""

    def may_commit(self, epoch: int) -> bool:  # noqa: ARG002 - the signature of LauncherSession
        return True

    def answer_soft_fence(self, held_state: HeldState) -> None:
        """There are no fences."""

    def next_assignment(self, above: int) -> EpochAssignment:
        """The one epoch, at once. Raises Ended when a further one is asked for: it would never come."""
        if above >= EPOCH:
            raise Ended("this worker runs without a launcher: no further epoch will come")
        everything = (tuple(range(self._micro_batches)),)
        source = "checkpoint" if self._fresh else ""
        return EpochAssignment(EPOCH, 0, 1, (self.worker,), self._step, everything, everything, source=source)

    def wait_until(self, epoch: int, ready: Callable[[], bool], timeout_s: float | None = None) -> None:  # noqa: ARG002 - the signature of LauncherSession
        if not ready():
            raise LauncherLost("this worker runs without a launcher: nothing will answer")

    def notify(self) -> None:
        """No thread waits."""

    def ask_store(self, epoch: int, timeout_s: float, **question: Any) -> messages.ProbeMessage:  # noqa: ARG002 - the signature of LauncherSession
        raise LauncherLost("this worker runs without a launcher: there is no key-value store")
