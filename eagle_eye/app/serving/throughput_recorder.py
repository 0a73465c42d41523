"""Saves the measured throughputs and transition times of jobs to the ledger, for the planner."""

import logging
import threading

from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from remediation.engine.engine import Engine

EVERY_S = 60.0
log = logging.getLogger(__name__)


class ThroughputRecorder:
    """A thread that reads them from the engine every EVERY_S, and once at the end."""

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
        while not self._stop.wait(EVERY_S):
            self._write()
        self._write()

    def _write(self) -> None:
        try:
            reached = self._engine.measured_throughputs()
            if reached:
                self._ledger.save_throughputs(reached)
            costs = self._engine.transition_costs()
            if costs:
                self._ledger.save_transition_costs(costs)
        except EagleEyeError as error:
            log.warning("measured throughputs were not saved: %s", error)
