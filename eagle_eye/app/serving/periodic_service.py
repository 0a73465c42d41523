"""A service that does one piece of work at intervals, in a thread of its own."""

import logging
import threading
from collections.abc import Callable

from eagle_eye.errors import EagleEyeError

log = logging.getLogger(__name__)


class PeriodicService:
    """Calls `work` every `every_s` seconds, the first time after `first_s`, until it is stopped. An EagleEyeError of it is logged, and it is called again in time.

    name: what the log and the thread are called by.
    """

    def __init__(self, name: str, work: Callable[[], None], every_s: float, *, first_s: float | None = None, once_at_end: bool = False) -> None:
        self._name = name
        self._work = work
        self._every_s = every_s
        self._first_s = every_s if first_s is None else first_s
        self._once_at_end = once_at_end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it and wait until it has ended; with `once_at_end` the work is done once more before."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause = self._first_s
        while not self._stop.wait(pause):
            self._attempt()
            pause = self._every_s
        if self._once_at_end:
            self._attempt()

    def _attempt(self) -> None:
        try:
            self._work()
        except EagleEyeError as error:
            log.warning("%s: %s; tried again in %g s", self._name, error, self._every_s)
