"""Deletes old rows of the ledger, while this process leads."""

import logging
import threading

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger

FIRST_S = 60.0
EVERY_S = 3600.0
log = logging.getLogger(__name__)


class RetentionService:
    """A thread that deletes what ended longer than `retention_s` ago: FIRST_S after its start, then every EVERY_S."""

    def __init__(self, ledger: Ledger, retention_s: float, clock: Clock) -> None:
        self._ledger = ledger
        self._retention_s = retention_s
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause = FIRST_S
        while not self._stop.wait(pause):
            pause = EVERY_S
            try:
                deleted = self._ledger.sweep(self._clock.now() - self._retention_s)
            except EagleEyeError as error:
                log.warning("old rows of the ledger were not deleted: %s", error)
            else:
                if deleted:
                    log.info("deleted %d rows of the ledger older than %g days", deleted, self._retention_s / 86_400)
