"""Notices on their way to the ledger: whoever has one to tell does not wait for it."""

import logging
import threading
from queue import Empty, Full, Queue

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.types import Notice

log = logging.getLogger(__name__)

KEPT = 1000
"""Notices that wait while the ledger is away; further ones are in the log alone."""
RETRY_S = 1.0


class Notices:
    """A thread that writes them down, in order, as soon as the ledger takes them."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._waiting: Queue[Notice] = Queue(KEPT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def put(self, notice: Notice) -> None:
        """Returns at once."""
        try:
            self._waiting.put_nowait(notice)
        except Full:
            log.warning("the ledger takes no notices; this one is lost to it: %s: %s", notice.name, notice.message)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, if the ledger takes it now."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not (self._stop.is_set() and self._waiting.empty()):
            try:
                notice = self._waiting.get(timeout=0.1)
            except Empty:
                continue
            if not self._write(notice):
                return

    def _write(self, notice: Notice) -> bool:
        while True:
            try:
                self._ledger.save_notice(notice)
            except EagleEyeError as error:
                if self._stop.wait(RETRY_S):
                    log.warning("the ledger is away; notices are lost to it, from %s: %s on: %s", notice.name, notice.message, error)
                    return False
            else:
                return True
