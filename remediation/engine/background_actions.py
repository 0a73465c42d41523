"""Plans that are carried out beside the incidents: releases and rollbacks. One at a time for each job, attempted until they expire."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from eagle_eye.clock import Clock
from eagle_eye.types import Plan
from remediation.job_commands.action_commands import GIVE_BACK

from .decision_recorder import DecisionRecorder, OutcomeState
from .execution import ActionReport, Execution

ACTIONS = frozenset({"release", "undo"})


def in_background(plan: Plan) -> bool:
    """Whether a plan is carried out beside the incidents: it belongs to none, or takes back what another plan did."""
    return plan.action in ACTIONS or bool(plan.undoes) or not plan.incident


@dataclass(slots=True, kw_only=True)
class BackgroundActions:
    """Written down before they begin, so that the next leader goes on with them."""

    recorder: DecisionRecorder
    execution: Execution
    clock: Clock
    _waiting: list[tuple[float, Plan]] = field(default_factory=list)
    """(not before, plan)."""
    _forecasts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Plan of a background action that belongs to no incident → what is predicted of it."""

    def add(self, plan: Plan, forecast: Mapping[str, float] | None = None) -> None:
        """Carry it out as soon as nothing else is done to its jobs. `forecast`: what is predicted of it."""
        self.recorder.save_plan(plan)
        self._forecasts[plan.id] = dict(forecast or {})
        self.recorder.record_plan(plan, "intended", predicted=forecast)
        self._waiting.append((self.clock.now(), plan))

    def holds(self, plan: Plan) -> bool:
        """Whether it is a background action, and no incident's plan."""
        return in_background(plan)

    def resume(self, plan: Plan, forecast: Mapping[str, float]) -> None:
        """Go on with what the leader before had begun: commands are idempotent by (plan, step)."""
        self._forecasts[plan.id] = dict(forecast)
        self._waiting.append((self.clock.now(), plan))

    def advance(self) -> None:
        """Begin what is due for jobs that nothing else is done to."""
        now, later = self.clock.now(), []
        for due, plan in self._waiting:
            if now >= due and not any(self.execution.busy(target.job) for target in plan.targets):
                self.execution.begin(plan)
            else:
                later.append((due, plan))
        self._waiting = later

    def ended(self, report: ActionReport, report_end: Callable[[Plan, str, bool], object]) -> None:
        """Done, or attempted again until it expires. `report_end`: (plan, detail, whether it was done)."""
        now, plan = self.clock.now(), report.plan
        giving_back = any(step.step.startswith(GIVE_BACK) for step in report.progress)  # such a plan is not run again
        if report.ending in ("retry", "stopped") and now + report.delay < plan.expires and not giving_back:
            self._waiting.append((now + report.delay, plan))
            return
        done, forecast = report.ending == "done", self._forecasts.pop(plan.id, None)
        state: OutcomeState = "done" if done else "stale" if report.ending == "called off" else "failed"
        detail = f"called off: {report.detail}" if state == "stale" else report.detail
        self.recorder.record_plan(plan, state, detail, report.progress, predicted=forecast)
        report_end(plan, detail, done)
