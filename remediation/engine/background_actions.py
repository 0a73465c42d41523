"""Plans that are carried out beside the incidents: releases and rollbacks. One at a time for each job, attempted until they expire."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from eagle_eye.clock import Clock
from eagle_eye.types import Outcome, Plan

from .decision_recorder import DecisionRecorder
from .execution import ActionReport, Execution

ACTIONS = frozenset({"release", "undo"})


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
        return plan.action in ACTIONS or plan.id in self._forecasts

    def resume(self, outcomes: Iterable[Outcome], plans: Mapping[str, Plan]) -> None:
        """Go on with what the leader before had begun: commands are idempotent by (plan, step)."""
        for outcome in outcomes:
            if outcome.state == "intended" and outcome.action in ACTIONS and outcome.plan in plans:
                self._waiting.append((self.clock.now(), plans[outcome.plan]))

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
        if report.ending == "stopped":
            return
        if report.ending == "retry" and now + report.delay < plan.expires:
            self._waiting.append((now + report.delay, plan))
            return
        done = report.ending == "done"
        forecast = self._forecasts.pop(plan.id, None)
        self.recorder.record_plan(plan, "done" if done else "failed", report.detail, report.progress, predicted=forecast)
        report_end(plan, report.detail, done)
