"""ActionUndo of an action that did not help: undone as far as it can be, its breaker opened, the operator notified."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.ledger import Ledger
from eagle_eye.types import Breaker, Plan, Progress, Severity, Target, digest_of
from remediation.job_commands.action_commands import GIVE_BACK
from remediation.policy.engine_settings import EngineSettings

from .background_actions import BackgroundActions
from .engine_state import EngineState
from .tracked_incident import TrackedIncident
from .verification import Verification

NO_UNDO = {
    "reattempt": "to let a worker go on cannot be undone",
    "restart_worker": "a restart cannot be undone",
    "heal_in_place": "what a job did to itself is not undone",
    "roll_back": "a roll-back cannot be undone",
}


def begins_to_give_back(progress: Iterable[Progress]) -> set[str]:
    """Jobs that were to get back what they had: a plan with any is not run again (remediation/actions/resize.py)."""
    return {step.step.removeprefix(f"{GIVE_BACK} ") for step in progress if step.step.startswith(f"{GIVE_BACK} ")}


@dataclass(slots=True, kw_only=True)
class ActionUndo:
    """Called by the verifications. What a job did to itself is not undone."""

    state: EngineState
    ledger: Ledger
    clock: Clock
    settings: EngineSettings
    background: BackgroundActions
    notify: Callable[[TrackedIncident, str], object]

    def undo(self, tracked: TrackedIncident, verification: Verification) -> str:
        """Take the action back if that can be done, and say what is done.

        A fault that survives the absence of a node proves that the node was innocent; but a broken part was seen on
        the node itself, whatever else is wrong with the job.
        """
        plan = verification.plan
        if plan.own:
            return ""
        nodes = plan.targets[0].exclude
        if plan.action in ("resize", "rebalance"):
            return self._given_back(plan)
        if not nodes:
            return NO_UNDO.get(plan.action, f"{plan.action} cannot be undone")
        if tracked.escalation.lasting:
            return f"{', '.join(nodes)} stays out: {tracked.incident.cause} was seen there"
        text = f"without {', '.join(nodes)} the fault stays: released"
        self.background.add(self._undoing(plan, text))
        return text

    def abandon(self, plan: Plan, *, unanswered: bool = False) -> None:
        """A resize that is not attempted again: what it did to some of its jobs, as far as anybody knows, is taken back.

        `unanswered`: its last command got no answer, and may have been done. A job that has what it had before is not
        changed by being told so again.
        """
        if plan.action != "resize":
            return
        progress = self.ledger.progress(plan.id)
        newest = {step.step: step.state for step in progress}
        again = {step for step in newest if sum(each.step == step and each.state == "intended" for each in progress) > 1}
        taken = [
            target.job
            for target in plan.targets
            if (state := newest.get(f"resize {target.job}", "")) in ("intended", "done")
            or (state == "failed" and (unanswered or f"resize {target.job}" in again))
        ]
        back = {target.job for target in plan.targets if newest.get(f"{GIVE_BACK} {target.job}") == "done"}
        if set(taken) - back or begins_to_give_back(progress) - back:
            self._given_back(plan)

    def _given_back(self, plan: Plan) -> str:
        """The layout of before: who was given gives back first."""
        text = "the first shares are restored" if plan.action == "rebalance" else "the first layout is restored"
        back = tuple(
            Target(job=each.job, epoch=0, basis=self.state.job(each.job).basis, workers_per_node=each.workers_per_node_before, workers_per_node_before=each.workers_per_node)
            for each in reversed(plan.targets)
            if not self.state.job(each.job).over
        )
        if back:
            self.background.add(msgspec.structs.replace(self._undoing(plan, text), targets=back))
        return text

    def breaker(self, tracked: TrackedIncident, verification: Verification, why: str) -> Breaker | None:
        """The breaker, if this failure opens it. Call before the failure's outcome is written."""
        plan, settings, now = verification.plan, self.settings, self.clock.now()
        allowed = settings.breaker_after.get(plan.action)
        known = [each for each in self.ledger.breakers() if (each.job, each.action) == (tracked.job, plan.action)]
        if plan.own or allowed is None or any(each.until is None for each in known):
            return None
        since = max([now - settings.breaker_s, *(each.until for each in known if each.until is not None)])
        failures = self._failures(tracked.job, plan.action, since) + 1
        if failures < allowed:
            return None
        times = "" if failures == 1 else f"{failures} times, the last time: "
        opened = Breaker(
            id=digest_of("breaker", plan.id), job=tracked.job, action=plan.action, plan=plan.id, incident=tracked.incident.id,
            reason=f"{times}{why}", since=now,
        )  # fmt: skip
        self.ledger.save_suppression(opened)
        return opened

    def notify_of_breaker(self, tracked: TrackedIncident, verification: Verification, breaker: Breaker, detail: str) -> None:
        """The operator is needed now."""
        state = f"{verification.plan.action} did not help: {detail}. Its breaker on {tracked.job} is open"
        self.notify(tracked, f"{state}: it is not attempted again; close it with: eagle-eye breaker close {breaker.id}")

    def undone(self, plan: Plan, detail: str, done: bool) -> None:
        """The end of an undo: the operator is notified. A resize beside the incidents that failed half way is undone."""
        if not done:
            self.abandon(plan)
        tracked, nodes = self.state.incidents.get(plan.incident), ", ".join(plan.targets[0].exclude)
        if tracked is None or plan.action != "undo":
            return
        if not nodes:
            self.notify(tracked, "undone: workers and shares are as they were before" if done else f"the undo failed: {detail}")
        elif done:
            self.notify(tracked, f"undone: {nodes} is released")
        else:
            self.notify(tracked, f"{nodes} could not be released ({detail}); release it with: eagle-eye release {plan.targets[0].exclude[0]}")

    def _failures(self, job: str, action: str, since: float) -> int:
        """Judged failures; a plan that was refused and never carried out has no figures."""
        plans = self.state.history.plans
        failed = [outcome for outcome in self.state.history.outcomes() if outcome.state == "failed" and outcome.action == action]
        mine = (outcome for outcome in failed if outcome.actual and outcome.time > since and outcome.plan in plans)
        return sum(plans[outcome.plan].targets[0].job == job and not plans[outcome.plan].own for outcome in mine)

    def _undoing(self, plan: Plan, why: str) -> Plan:
        now, target = self.clock.now(), plan.targets[0]
        return Plan(
            id=digest_of("undo", plan.id), incident=plan.incident, action="undo", undoes=plan.id, made=now,
            targets=(Target(job=target.job, epoch=0, basis=self.state.job(target.job).basis, exclude=target.exclude),),
            expires=now + self.settings.expires_s, severity=Severity.INFO, reason=f"{plan.action} did not help: {why}",
        )  # fmt: skip
