"""Carries plans out: one thread per job at a time; every step is recorded in the ledger before and after it is done.

Right before each command to a job it is asked whether the plan is still wanted (preconditions.py). If it is not, the action
is told where it stands by a CalledOff, as by any other error, so that it can give back what it has taken.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Literal, Protocol

from eagle_eye.clock import Clock
from eagle_eye.errors import CalledOff, EagleEyeError, LedgerError, PermanentError, Stale, TemporaryError
from eagle_eye.protocols import Action
from eagle_eye.types import Plan, Progress
from eagle_eye.writable_text import words_of, writable

from .call_timeout import returns

log = logging.getLogger(__name__)

LONGEST_DELAY_S = 3600.0
"""Before another attempt, whatever an action asks for."""
SILENT_S = 900.0
"""An action that has taken no step for so long has hung: a node that is rebooted takes minutes."""
LOOK_LONGEST_S = 1.0
"""Of the time between two looks counts at most so much: more is a process that was stopped, and its actions with it."""
NO_THREAD_S = 5.0
"""Until an action is tried again for which the process had no thread."""
MOST_STEPS = 10_000
MOST_HUNG = 3
"""An action that has hung so many times is not begun again."""
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


def action_name(action: Action) -> str:
    """Its module: the name of its table in the configuration."""
    return type(action).__module__.rpartition(".")[2]


def in_thread(name: str, work: Callable[[], None]) -> None:
    """In a thread of its own."""
    threading.Thread(target=work, name=name, daemon=True).start()


def at_once(_name: str, work: Callable[[], None]) -> None:
    """Here and now: for tests."""
    work()


@dataclass(slots=True, eq=False)
class _Run:
    """One action under way."""

    plan: Plan
    progress: list[Progress] = field(default_factory=list)
    steps_done: int = 0
    steps_seen: int = 0
    silent_s: float = 0.0
    left_behind: bool = False
    """It has hung: what its thread still does is not written, and no further step of it is carried out."""


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
        self._running: dict[str, _Run] = {}
        """Job → what is being carried out."""
        self._reports: SimpleQueue[tuple[_Run, ActionReport]] = SimpleQueue()
        self._looked = clock.monotonic()
        self._hung: Counter[str] = Counter()
        """Action → how often it has hung."""

    def busy(self, job: str) -> bool:
        """Whether an action for this job is under way."""
        return job in self._running

    @property
    def running(self) -> tuple[Plan, ...]:
        return tuple({run.plan.id: run.plan for run in self._running.values()}.values())

    def begin(self, plan: Plan) -> None:
        """Carry a plan out; its report comes with `reports`. The caller has asked `busy`."""
        run = _Run(plan)
        self._running.update({target.job: run for target in plan.targets})
        try:
            self._start(f"{plan.action} {plan.id}", lambda: self._reports.put((run, self._run(run))))
        except RuntimeError as error:  # the process may have no further thread: the job must not stay busy
            self._reports.put((run, self._failed(run, "retry", TemporaryError(f"no thread can be started: {error}", delay=NO_THREAD_S))))

    def here(self, action: Action, plan: Plan) -> None:
        """Carry out what takes no time, beside whatever is under way. Raises what the ledger raises."""
        for step in _steps_of(action, plan):
            self._write(plan, step)

    def within(self, action: Action, plan: Plan, seconds: float) -> bool:
        """The same of a stranger's, which may never return: False once it has taken no step for so long; nothing more of it is written then."""
        run, raised = _Run(plan), list[BaseException]()

        def work() -> None:
            try:
                for step in _steps_of(action, plan):
                    if run.left_behind or len(run.progress) >= MOST_STEPS or not isinstance(step, Progress):
                        return
                    run.progress.append(step)
                    self._write(plan, step)
            except Exception as error:  # noqa: BLE001 -- it is raised where it is waited for
                raised.append(error)

        run.left_behind = not returns(action_name(action), work, lambda: len(run.progress), seconds)
        if raised:
            raise raised[0]
        return not run.left_behind

    def reports(self) -> list[ActionReport]:
        """Reports that have come in since the last call, and of actions that have hung. Called again and again."""
        found = []
        while not self._reports.empty():
            run, report = self._reports.get()
            if not run.left_behind:
                self._forget(run)
                found.append(report)
        now = self._clock.monotonic()
        passed, self._looked = min(now - self._looked, LOOK_LONGEST_S), now
        for run in set(self._running.values()):
            steps = len(run.progress)
            run.silent_s = run.silent_s + passed if steps == run.steps_seen else 0.0
            run.steps_seen = steps
            if run.silent_s >= self._patience_s(run.plan.action):
                found.append(self._leave_behind(run))
        return found

    def _leave_behind(self, run: _Run) -> ActionReport:
        """A thread cannot be ended: its job is free for the next action."""
        action = run.plan.action
        self._forget(run)
        self._hung[action] += 1
        patience_s = self._patience_s(action)
        log.error("the action %s of plan %s has taken no step for %g s: its thread is left behind", action, run.plan.id, patience_s)
        error = PermanentError(f"the action {action} has taken no step for {patience_s:g} s and is left behind: look for what it waits for")
        report = self._failed(run, "refused", error)
        run.left_behind = True
        return report

    def _patience_s(self, action: str) -> float:
        """One that is configured to wait for longer is waited for."""
        timeout_s = getattr(self._actions.get(action), "timeout_s", 0.0)
        return max(SILENT_S, 2.0 * timeout_s) if isinstance(timeout_s, int | float) else SILENT_S

    def _forget(self, run: _Run) -> None:
        for target in run.plan.targets:
            if self._running.get(target.job) is run:
                del self._running[target.job]

    # --- in the action's thread ----------------------------------------------------------------------------------

    def _run(self, run: _Run) -> ActionReport:
        plan, progress = run.plan, run.progress
        try:
            ended = self._steps(run)
            return ActionReport(plan=plan, ending="done" if ended else "stopped", progress=tuple(progress))
        except CalledOff as error:
            return self._failed(run, "called off", error)
        except Stale as error:
            return self._failed(run, "stale", error)
        except PermanentError as error:
            return self._failed(run, "refused", error)
        except (EagleEyeError, TimeoutError) as error:
            return self._failed(run, "retry", error)
        except BaseException as error:  # an action may be a stranger's, and raise SystemExit: its failure must reach the ledger, and the job must not stay busy
            log.exception("action %s of plan %s failed", plan.action, plan.id)
            return self._failed(run, "refused", error)

    def _steps(self, run: _Run) -> bool:
        """False if the lease ended on the way: the next leader goes on."""
        plan, progress = run.plan, run.progress
        if self._hung[plan.action] >= MOST_HUNG:
            raise PermanentError(f"the action {plan.action} has hung {MOST_HUNG} times and is not begun again before the server is started again: mend it")
        action = self._actions.get(plan.action)
        if action is None:
            raise PermanentError(f"there is no action {plan.action!r}: add remediation/actions/{plan.action}.py")
        if not self._leads():
            return False
        steps, refusal = action.run(plan), ""
        step = next(steps, None)
        while step is not None:
            if run.left_behind:
                log.warning("the action %s of plan %s, which had hung, has come back: nothing more of it is done", plan.action, plan.id)
                return False
            if len(progress) >= MOST_STEPS:
                raise PermanentError(f"the action {plan.action} takes more than {MOST_STEPS} steps: mend it")
            if not isinstance(step, Progress):
                raise PermanentError(f"the action {plan.action} yields {type(step).__name__}, which is no Progress: mend it")
            progress.append(step)
            run.steps_done += step.state == "done"
            self._write(plan, step)
            if not self._leads():
                return False
            asked = not refusal and _commands_next(run)
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

    def _failed(self, run: _Run, ending: Ending, error: BaseException) -> ActionReport:
        plan, progress = run.plan, list(run.progress)
        detail = str(error) or type(error).__name__ if isinstance(error, EagleEyeError) else words_of(error)
        now = self._clock.now()
        unwritten = not progress or progress[-1].state != "intended"
        if unwritten:
            progress.append(Progress(step=plan.action, state="intended", time=now))
        failed = Progress(step=progress[-1].step, state="failed", time=now, detail=writable(detail))
        try:
            if unwritten and not run.left_behind:
                self._progress_log.record_intent(plan, progress[-1])
            if not run.left_behind:
                self._progress_log.record_result(plan, failed)
        except Exception:  # boundary: whatever is wrong with what it says of itself, the job must not stay busy
            log.exception("the failure of plan %s could not be written down", plan.id)
        return ActionReport(plan=plan, ending=ending, progress=(*progress, failed), detail=failed.detail, delay=_delay_of(error))


def _delay_of(error: BaseException) -> float:
    """After so many seconds it asks to be tried again; what is no such time is LONGEST_DELAY_S at most."""
    delay = getattr(error, "delay", 1.0)
    usable = isinstance(delay, int | float) and delay >= 0.0
    return float(min(delay, LONGEST_DELAY_S)) if usable else 1.0


def _commands_next(run: _Run) -> bool:
    """Whether the step that is intended is a command to one of the plan's jobs. An action commands each of them once, first;
    what follows (the cordon of a node that is out by then) completes what was done, and is not called off."""
    return run.progress[-1].state == "intended" and run.steps_done < len(run.plan.targets)


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
