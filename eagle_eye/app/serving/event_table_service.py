"""Keeps the answers to the next event ready: works the table out when something changed, writes it down, tells the coordinators."""

import logging
import threading

import msgspec

from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.types import Plan, PrecomputedPlan, Severity
from remediation.engine.engine import Engine
from remediation.job_commands.commander import Commander

LOOK_S = 0.5
"""So often it is looked whether anything has changed."""
TOLD_S = 5.0
"""A coordinator that does not answer by then does without: what it may do itself it does anyway."""
log = logging.getLogger(__name__)


class Foreseeing:
    """A thread of the leader's. A job that cannot be reached keeps what it had, which is void after the job's next epoch."""

    def __init__(self, engine: Engine, ledger: Ledger, commander: Commander) -> None:
        self._engine = engine
        self._ledger = ledger
        self._commander = commander
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="foreseeing", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            if self._engine.leads():
                self._look()

    def _look(self) -> None:
        try:
            plans = self._engine.precomputed_plans.renew()
            if plans is None:
                return
            self._ledger.save_standing(plans)
            self._ledger.save_throughputs(self._engine.reached())  # what the table was made with
        except EagleEyeError as error:
            log.warning("no answers stand ready for the next event: %s", error)
            return
        for job in sorted({job for plan in plans for job in plan.epochs}):
            self._tell(job, self._engine.precomputed_plans.of_job(job))

    def _tell(self, job: str, plans: tuple[PrecomputedPlan, ...]) -> None:
        carrier = Plan(id="", incident="", action="standing", targets=(), made=0.0, expires=0.0, severity=Severity.INFO)  # said again, it does no harm
        arguments = {"plans": [msgspec.to_builtins(plan) for plan in plans]}
        try:
            self._commander.command(job, "standing", arguments, plan=carrier, step=f"standing {job}", epoch=0, timeout=TOLD_S)
        except (EagleEyeError, TimeoutError) as error:
            log.info("%s was not told which plans stand: %s", job, error or type(error).__name__)
