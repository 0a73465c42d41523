"""Services of the leader that write to the ledger at intervals: retention, and the measured throughputs of jobs."""

import logging

from eagle_eye.clock import Clock
from eagle_eye.ledger import Ledger
from remediation.engine.engine import Engine

from .periodic_service import PeriodicService

RETENTION_FIRST_S = 60.0
RETENTION_EVERY_S = 3600.0
THROUGHPUT_EVERY_S = 60.0
log = logging.getLogger(__name__)


def retention_service(ledger: Ledger, retention_s: float, clock: Clock) -> PeriodicService:
    """Deletes what ended longer than `retention_s` ago."""

    def sweep() -> None:
        deleted = ledger.sweep(clock.now() - retention_s)
        if deleted:
            log.info("deleted %d rows of the ledger older than %g days", deleted, retention_s / 86_400)

    return PeriodicService("retention of the ledger", sweep, RETENTION_EVERY_S, first_s=RETENTION_FIRST_S)


def throughput_service(engine: Engine, ledger: Ledger) -> PeriodicService:
    """Saves measured throughputs and transition times for the planner, also once at the end."""

    def save() -> None:
        measured = engine.measured_throughputs()
        if measured:
            ledger.save_throughputs(measured)
        costs = engine.transition_costs()
        if costs:
            ledger.save_transition_costs(costs)

    return PeriodicService("measured throughputs", save, THROUGHPUT_EVERY_S, once_at_end=True)
