"""Construction of a process group in a background thread, given up as soon as a newer epoch makes it useless."""

import threading
from collections.abc import Callable
from typing import Any

from eagle_eye.errors import Broken, ElasticError
from eagle_eye.training.elastic.epoch_protocol import EpochSession
from eagle_eye.training.elastic.worker_threads import worker_threads


class Construction:
    """One attempt to build a group. torch's constructors cannot be interrupted, so a thread does it.

    `build` returns the group; `interrupt` is called when it is given up, to unblock `build` where that is possible.
    A group that is built all the same is closed.
    """

    def __init__(self, session: EpochSession, epoch: int, build: Callable[[], Any], interrupt: Callable[[], None]) -> None:
        self._session = session
        self._epoch = epoch
        self._build = build
        self._interrupt = interrupt
        self._lock = threading.Lock()
        self._over = False
        self._abandoned = False
        self._group: Any = None
        self._error: Exception | None = None

    def result(self, timeout_s: float) -> Any:
        """The group. Raises Fenced at once when a newer epoch is being formed, Broken when it cannot be built."""
        worker_threads().run(self._run)
        try:
            self._session.wait_until(self._epoch, lambda: self._over, timeout_s)
            self._session.check(self._epoch)
        except ElasticError:
            self._abandon()
            raise
        except TimeoutError:
            self._abandon()
            raise Broken(f"epoch {self._epoch}: its group was not built in {timeout_s} s") from None
        return self._outcome()

    def _run(self) -> None:
        try:
            self._group = self._build()
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self._error = error.with_traceback(None)
        with self._lock:
            self._over = True
            close = self._abandoned
        if close:
            self._close_group()
        self._session.notify()

    def _abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            over = self._over
        if over:
            self._close_group()
        else:
            self._interrupt()

    def _close_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _outcome(self) -> Any:
        error, self._error = self._error, None
        if error is None:
            return self._group
        if isinstance(error, ElasticError):
            raise error
        if isinstance(error, RuntimeError | TimeoutError | OSError):
            raise Broken(f"epoch {self._epoch}: its group could not be built: {error}")
        raise error
