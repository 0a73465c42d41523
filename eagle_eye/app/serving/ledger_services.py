"""Services of the leader that write to the ledger at intervals: retention, and the measured throughputs of jobs."""

import logging
import threading

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from remediation.engine.engine import Engine

RETENTION_FIRST_S = 60.0
RETENTION_EVERY_S = 3600.0
THROUGHPUT_EVERY_S = 60.0
log = logging.getLogger(__name__)


class RetentionService:
    """A thread that deletes what ended longer than `retention_s` ago: RETENTION_FIRST_S after its start, then every RETENTION_EVERY_S."""

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
        pause = RETENTION_FIRST_S
        while not self._stop.wait(pause):
            pause = RETENTION_EVERY_S
            try:
                deleted = self._ledger.sweep(self._clock.now() - self._retention_s)
            except EagleEyeError as error:
                log.warning("old rows of the ledger were not deleted: %s", error)
            else:
                if deleted:
                    log.info("deleted %d rows of the ledger older than %g days", deleted, self._retention_s / 86_400)


class ThroughputRecorder:
    """A thread that saves measured throughputs and transition times for the planner: reads them from the engine every THROUGHPUT_EVERY_S, and once at the end."""

    def __init__(self, engine: Engine, ledger: Ledger) -> None:
        self._engine = engine
        self._ledger = ledger
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="throughputs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(THROUGHPUT_EVERY_S):
            self._write()
        self._write()

    def _write(self) -> None:
        try:
            measured = self._engine.measured_throughputs()
            if measured:
                self._ledger.save_throughputs(measured)
            costs = self._engine.transition_costs()
            if costs:
                self._ledger.save_transition_costs(costs)
        except EagleEyeError as error:
            log.warning("measured throughputs were not saved: %s", error)
