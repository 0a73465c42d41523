"""Keeps the event table up to date: recomputes the precomputed plans after a change, saves them, sends them to the coordinators."""

import logging
import threading

import msgspec

from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.types import Plan, PrecomputedPlan, Severity
from remediation.engine.engine import Engine
from remediation.job_commands.action_commands import Commander

LOOK_S = 0.5
"""Between two checks whether anything has changed."""
SEND_TIMEOUT_S = 5.0
"""Time-out of sending them to a coordinator, which does what it may do by itself also without them."""
log = logging.getLogger(__name__)


class EventTableService:
    """A thread of the leader. A job that cannot be reached keeps its old plans, which are void after the job's next epoch."""

    def __init__(self, engine: Engine, ledger: Ledger, commander: Commander) -> None:
        self._engine = engine
        self._ledger = ledger
        self._commander = commander
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-table", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            if self._engine.leads():
                self._refresh()

    def _refresh(self) -> None:
        try:
            plans = self._engine.precomputed_plans.renew()
            if plans is None:
                return
            self._ledger.save_precomputed_plans(plans)
            self._ledger.save_throughputs(self._engine.measured_throughputs())  # those that the table was computed with
        except EagleEyeError as error:
            log.warning("the event table was not recomputed: %s", error)
            return
        for job in sorted({job for plan in plans for job in plan.epochs}):
            self._send(job, self._engine.precomputed_plans.of_job(job))

    def _send(self, job: str, plans: tuple[PrecomputedPlan, ...]) -> None:
        carrier = Plan(id="", incident="", action="event_table", targets=(), made=0.0, expires=0.0, severity=Severity.INFO)  # sent again, it does no harm
        arguments = {"plans": [msgspec.to_builtins(plan) for plan in plans]}
        try:
            self._commander.command(job, "event_table", arguments, plan=carrier, step=f"event_table {job}", epoch=0, timeout=SEND_TIMEOUT_S)
        except (EagleEyeError, TimeoutError) as error:
            log.info("the precomputed plans were not sent to %s: %s", job, error or type(error).__name__)
