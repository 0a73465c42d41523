"""Keeps the event table up to date: recomputes the precomputed plans after a change, saves them, sends them to the coordinators."""

import logging

import msgspec

from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.types import Plan, PrecomputedPlan, Severity
from remediation.engine.engine import Engine
from remediation.job_commands.action_commands import Commander

from .periodic_service import PeriodicService

LOOK_S = 0.5
"""Between two checks whether anything has changed."""
SEND_TIMEOUT_S = 5.0
"""Time-out of sending them to a coordinator, which does what it may do by itself also without them."""
log = logging.getLogger(__name__)


def event_table_service(engine: Engine, ledger: Ledger, commander: Commander) -> PeriodicService:
    """A service of the leader. A job that cannot be reached keeps its old plans, which are void after the job's next epoch."""

    def refresh() -> None:
        plans = engine.precomputed_plans.renew() if engine.leads() else None
        if plans is None:
            return
        ledger.save_precomputed_plans(plans)
        ledger.save_throughputs(engine.measured_throughputs())  # those that the table was computed with
        for job in sorted({job for plan in plans for job in plan.epochs}):
            _send(commander, job, engine.precomputed_plans.of_job(job))

    return PeriodicService("event table", refresh, LOOK_S)


def _send(commander: Commander, job: str, plans: tuple[PrecomputedPlan, ...]) -> None:
    carrier = Plan(id="", incident="", action="event_table", targets=(), made=0.0, expires=0.0, severity=Severity.INFO)  # sent again, it does no harm
    arguments = {"plans": [msgspec.to_builtins(plan) for plan in plans]}
    try:
        commander.command(job, "event_table", arguments, plan=carrier, step=f"event_table {job}", epoch=0, timeout=SEND_TIMEOUT_S)
    except (EagleEyeError, TimeoutError) as error:
        log.info("the precomputed plans were not sent to %s: %s", job, error or type(error).__name__)
