"""What the leader does at intervals: retention of the ledger, the measured throughputs of jobs, the event table."""

import logging
import threading
from collections.abc import Callable

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.retention_clock import RetentionClock
from eagle_eye.types import Plan, PrecomputedPlan, Severity
from remediation.engine.engine import Engine
from remediation.job_commands.action_commands import Commander

RETENTION_FIRST_S = 60.0
RETENTION_EVERY_S = 3600.0
THROUGHPUT_EVERY_S = 60.0
EVENT_TABLE_EVERY_S = 0.5
PATH_TESTS_EVERY_S = 1.0
SEND_TIMEOUT_S = 5.0
"""Time-out of sending precomputed plans to a coordinator, which does what it may do by itself also without them."""
TEST_TIMEOUT_S = 2.0
"""A coordinator answers at once that it has passed a test on."""
log = logging.getLogger(__name__)


class PeriodicService:
    """One piece of work at intervals, in a thread of its own: calls `work` every `every_s` seconds, the first time after `first_s`, until it is stopped.

    An error of it is logged, and it is called again in time. name: what the log and the thread are called by.
    """

    def __init__(self, name: str, work: Callable[[], None], every_s: float, *, first_s: float | None = None, once_at_end: bool = False) -> None:
        self._name = name
        self._work = work
        self._every_s = every_s
        self._first_s = every_s if first_s is None else first_s
        self._once_at_end = once_at_end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it and wait until it has ended; with `once_at_end` the work is done once more before."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause = self._first_s
        while not self._stop.wait(pause):
            self._attempt()
            pause = self._every_s
        if self._once_at_end:
            self._attempt()

    def _attempt(self) -> None:
        try:
            self._work()
        except EagleEyeError as error:
            log.warning("%s: %s; tried again in %g s", self._name, error, self._every_s)
        except Exception:  # boundary: what is wrong with one job's numbers, or a moment without memory, must not end it for good
            log.exception("%s failed; tried again in %g s", self._name, self._every_s)


def retention_service(ledger: Ledger, retention_s: float, clock: Clock) -> PeriodicService:
    """Deletes what ended longer than `retention_s` ago. A clock that leaps is not believed at first."""
    believed = RetentionClock(clock, retention_s, ledger.times_kept, "ledger")

    def delete() -> None:
        deleted = ledger.delete_ended(believed.now() - retention_s)
        if deleted:
            log.info("deleted %d rows of the ledger older than %g days", deleted, retention_s / 86_400)

    return PeriodicService("retention of the ledger", delete, RETENTION_EVERY_S, first_s=RETENTION_FIRST_S)


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


def path_test_service(engine: Engine, commander: Commander) -> PeriodicService:
    """Has the launchers of a job test network or storage where an incident may come from there. One that cannot be asked is asked again."""

    def ask() -> None:
        for request in engine.path_tests.due() if engine.leads() else ():
            arguments = {"test": request.id, "incident": request.incident, "tests": list(request.tests), "suspects": list(request.suspects)}
            try:
                commander.command(request.job, "test_paths", arguments, plan=_carrier("test_paths"), step=f"test_paths {request.job}", epoch=0, timeout=TEST_TIMEOUT_S)
                engine.path_tests.answered(request)
                log.info("incident %s of %s: its launchers run %s", request.incident, request.job, " and ".join(request.tests))
            except (EagleEyeError, TimeoutError) as error:
                log.info("incident %s of %s: its paths are not tested yet: %s", request.incident, request.job, error or type(error).__name__)

    return PeriodicService("path tests", ask, PATH_TESTS_EVERY_S)


def _carrier(action: str) -> Plan:
    """Of a command that belongs to no plan: sent again, it does no harm."""
    return Plan(id="", incident="", action=action, targets=(), made=0.0, expires=0.0, severity=Severity.INFO)


def _send(commander: Commander, job: str, plans: tuple[PrecomputedPlan, ...]) -> None:
    arguments = {"plans": [msgspec.to_builtins(plan) for plan in plans]}
    try:
        commander.command(job, "event_table", arguments, plan=_carrier("event_table"), step=f"event_table {job}", epoch=0, timeout=SEND_TIMEOUT_S)
    except (EagleEyeError, TimeoutError) as error:
        log.info("the precomputed plans were not sent to %s: %s", job, error or type(error).__name__)
