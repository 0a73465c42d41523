"""Writes notices to the ledger in a thread of its own, so that its callers do not wait for the database."""

import logging
import threading
from queue import Empty, Full, Queue

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.types import Notice

log = logging.getLogger(__name__)

KEPT = 1000
"""Notices that are queued while the ledger is away; further ones go to the log alone."""
RETRY_S = 1.0


class NoticeWriter:
    """A thread that saves notices in order, and retries every RETRY_S while the ledger is away."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._waiting: Queue[Notice] = Queue(KEPT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def put(self, notice: Notice) -> None:
        """Queue a notice; returns at once. It is only logged when KEPT notices wait already."""
        try:
            self._waiting.put_nowait(notice)
        except Full:
            log.warning("the ledger does not answer and the queue is full; this notice is not saved: %s: %s", notice.name, notice.message)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Save what is queued if the ledger answers, and end."""
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
                    log.warning("the ledger does not answer; notices from '%s: %s' on are not saved: %s", notice.name, notice.message, error)
                    return False
            else:
                return True
