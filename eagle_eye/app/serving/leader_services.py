"""What the leader does at intervals: retention of the ledger, the measured throughputs of jobs, the event table."""

import logging

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.types import Plan, PrecomputedPlan, Severity
from remediation.engine.engine import Engine
from remediation.job_commands.action_commands import Commander

from .periodic_service import PeriodicService

RETENTION_FIRST_S = 60.0
RETENTION_EVERY_S = 3600.0
THROUGHPUT_EVERY_S = 60.0
EVENT_TABLE_EVERY_S = 0.5
SEND_TIMEOUT_S = 5.0
"""Time-out of sending precomputed plans to a coordinator, which does what it may do by itself also without them."""
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


def event_table_service(engine: Engine, ledger: Ledger, commander: Commander) -> PeriodicService:
    """Recomputes the precomputed plans after a change, saves them, and sends them to the coordinators. A job that cannot be reached keeps its old plans, which are void after the job's next epoch."""

    def refresh() -> None:
        plans = engine.precomputed_plans.renew() if engine.leads() else None
        if plans is None:
            return
        ledger.save_precomputed_plans(plans)
        ledger.save_throughputs(engine.measured_throughputs())  # those that the table was computed with
        for job in sorted({job for plan in plans for job in plan.epochs}):
            _send(commander, job, engine.precomputed_plans.of_job(job))

    return PeriodicService("event table", refresh, EVENT_TABLE_EVERY_S)


def _send(commander: Commander, job: str, plans: tuple[PrecomputedPlan, ...]) -> None:
    carrier = Plan(id="", incident="", action="event_table", targets=(), made=0.0, expires=0.0, severity=Severity.INFO)  # sent again, it does no harm
    arguments = {"plans": [msgspec.to_builtins(plan) for plan in plans]}
    try:
        commander.command(job, "event_table", arguments, plan=carrier, step=f"event_table {job}", epoch=0, timeout=SEND_TIMEOUT_S)
    except (EagleEyeError, TimeoutError) as error:
        log.info("the precomputed plans were not sent to %s: %s", job, error or type(error).__name__)
