"""Carries plans out: one thread per job at a time; every step is recorded in the ledger before and after it is done.

Right before each command to a job it is asked whether the plan is still wanted (preconditions.py). If it is not, the action
is told where it stands by a CalledOff, as by any other error, so that it can give back what it has taken.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Literal, Protocol

from eagle_eye.clock import Clock
from eagle_eye.errors import CalledOff, EagleEyeError, LedgerError, PermanentError, Stale
from eagle_eye.protocols import Action
from eagle_eye.types import Plan, Progress
from eagle_eye.writable_text import words_of, writable

log = logging.getLogger(__name__)

LONGEST_DELAY_S = 3600.0
"""Before another attempt, whatever an action asks for."""
Ending = Literal["done", "retry", "refused", "stale", "called off", "stopped"]
"""`stopped`: this leader had no lease on the way; whoever leads next goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionReport:
    """How a run of an action ended."""

    plan: Plan
    ending: Ending
    progress: tuple[Progress, ...]
    detail: str = ""
    delay: float = 0.0
    """When to try again, for `retry`."""


class ProgressLog(Protocol):
    """Where progress is written; it is on disk when the call returns."""

    def record_intent(self, plan: Plan, step: Progress) -> None: ...
    def record_result(self, plan: Plan, step: Progress) -> None: ...


RefusalCheck = Callable[[Plan], str]
"""Why a plan is not carried out any further; '' if it is. Asked from the action's thread."""

StartThread = Callable[[str, Callable[[], None]], None]
"""(name, work): have the work done, without waiting for it."""


def in_thread(name: str, work: Callable[[], None]) -> None:
    """In a thread of its own."""
    threading.Thread(target=work, name=name, daemon=True).start()


def at_once(_name: str, work: Callable[[], None]) -> None:
    """Here and now: for tests."""
    work()


class Execution:
    """Runs actions and collects their reports. `leads`: False as soon as this leader's lease is over."""

    def __init__(
        self,
        *,
        actions: Mapping[str, Action],
        log: ProgressLog,
        clock: Clock,
        leads: Callable[[], bool] = lambda: True,
        start: StartThread = in_thread,
        refusal: RefusalCheck = lambda _plan: "",
    ) -> None:
        self._refusal = refusal
        self._actions = actions
        self._progress_log = log
        self._clock = clock
        self._leads = leads
        self._start = start
        self._running: dict[str, Plan] = {}
        """Job → what is being carried out."""
        self._reports: SimpleQueue[ActionReport] = SimpleQueue()

    def busy(self, job: str) -> bool:
        """Whether an action for this job is under way."""
        return job in self._running

    @property
    def running(self) -> tuple[Plan, ...]:
        return tuple({plan.id: plan for plan in self._running.values()}.values())

    def begin(self, plan: Plan) -> None:
        """Carry a plan out; its report comes with `reports`. The caller has asked `busy`."""
        self._running.update({target.job: plan for target in plan.targets})
        self._start(f"{plan.action} {plan.id}", lambda: self._reports.put(self._run(plan)))

    def here(self, action: Action, plan: Plan) -> None:
        """Carry out what takes no time, beside whatever is under way. Raises what the ledger raises."""
        for step in _steps_of(action, plan):
            self._write(plan, step)

    def reports(self) -> list[ActionReport]:
        """Reports that have come in since the last call."""
        found = []
        while not self._reports.empty():
            report = self._reports.get()
            for target in report.plan.targets:
                self._running.pop(target.job, None)
            found.append(report)
        return found

    # --- in the action's thread ----------------------------------------------------------------------------------

    def _run(self, plan: Plan) -> ActionReport:
        progress: list[Progress] = []
        try:
            ended = self._steps(plan, progress)
            return ActionReport(plan=plan, ending="done" if ended else "stopped", progress=tuple(progress))
        except CalledOff as error:
            return self._failed(plan, progress, "called off", error)
        except Stale as error:
            return self._failed(plan, progress, "stale", error)
        except PermanentError as error:
            return self._failed(plan, progress, "refused", error)
        except (EagleEyeError, TimeoutError) as error:
            return self._failed(plan, progress, "retry", error)
        except BaseException as error:  # an action may be a stranger's, and raise SystemExit: its failure must reach the ledger, and the job must not stay busy
            log.exception("action %s of plan %s failed", plan.action, plan.id)
            return self._failed(plan, progress, "refused", error)

    def _steps(self, plan: Plan, progress: list[Progress]) -> bool:
        """False if the lease ended on the way: the next leader goes on."""
        action = self._actions.get(plan.action)
        if action is None:
            raise PermanentError(f"there is no action {plan.action!r}: add remediation/actions/{plan.action}.py")
        if not self._leads():
            return False
        steps, refusal = action.run(plan), ""
        step = next(steps, None)
        while step is not None:
            if not isinstance(step, Progress):
                raise PermanentError(f"the action {plan.action} yields {type(step).__name__}, which is no Progress: mend it")
            progress.append(step)
            self._write(plan, step)
            if not self._leads():
                return False
            asked = not refusal and _commands_next(plan, progress)
            refusal = self._refusal(plan) if asked else refusal
            step = _call_off(steps, CalledOff(refusal)) if asked and refusal else next(steps, None)
        if refusal:
            raise CalledOff(refusal)
        return True

    def _write(self, plan: Plan, step: Progress) -> None:
        if step.state == "intended":
            self._progress_log.record_intent(plan, step)
        else:
            self._progress_log.record_result(plan, step)

    def _failed(self, plan: Plan, progress: list[Progress], ending: Ending, error: BaseException) -> ActionReport:
        detail = str(error) or type(error).__name__ if isinstance(error, EagleEyeError) else words_of(error)
        now = self._clock.now()
        unwritten = not progress or progress[-1].state != "intended"
        if unwritten:
            progress.append(Progress(step=plan.action, state="intended", time=now))
        failed = Progress(step=progress[-1].step, state="failed", time=now, detail=writable(detail))
        try:
            if unwritten:
                self._progress_log.record_intent(plan, progress[-1])
            self._progress_log.record_result(plan, failed)
        except Exception:  # boundary: whatever is wrong with what it says of itself, the job must not stay busy
            log.exception("the failure of plan %s could not be written down", plan.id)
        return ActionReport(plan=plan, ending=ending, progress=(*progress, failed), detail=failed.detail, delay=_delay_of(error))


def _delay_of(error: BaseException) -> float:
    """After so many seconds it asks to be tried again; what is no such time is LONGEST_DELAY_S at most."""
    delay = getattr(error, "delay", 1.0)
    usable = isinstance(delay, int | float) and delay >= 0.0
    return float(min(delay, LONGEST_DELAY_S)) if usable else 1.0


def _commands_next(plan: Plan, progress: list[Progress]) -> bool:
    """Whether the step that is intended is a command to one of the plan's jobs. An action commands each of them once, first;
    what follows (the cordon of a node that is out by then) completes what was done, and is not called off."""
    done = sum(step.state == "done" for step in progress)
    return progress[-1].state == "intended" and done < len(plan.targets)


def _call_off(steps: Iterator[Progress], error: CalledOff) -> Progress | None:
    """The next step, by which the action gives back what it has taken. Raises the error where there is nothing to give back."""
    throw: Callable[[CalledOff], Progress] | None = getattr(steps, "throw", None)
    if throw is None:  # no generator: it holds nothing that would have to be given back
        raise error
    try:
        return throw(error)
    except StopIteration:
        return None


def _steps_of(action: Action, plan: Plan) -> Iterator[Progress]:
    """They end where the action ends by an error that is its own."""
    try:
        yield from action.run(plan)
    except LedgerError:
        raise
    except (Exception, SystemExit):  # boundary: an action may be a stranger's
        log.exception("action %s of plan %s failed", plan.action, plan.id)
