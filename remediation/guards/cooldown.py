"""Cooldown: after an action that helped, nothing is done to the job and its nodes for a while."""

from dataclasses import dataclass

from eagle_eye.durations import seconds_between
from eagle_eye.ranges import Delay
from eagle_eye.types import Allow, Hold, Outcome, Plan, Situation, Verdict
from remediation.policy.affected_nodes import OBSERVING, touched


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooldown:
    """Holds the next action for another incident. One that did not help is followed at once by the next stronger one.

    What a job does to itself neither starts a cooldown nor waits for one.
    """

    job_s: Delay = 10.0
    """Seconds of cooldown of a job after an action on it."""
    node_s: Delay = 60.0
    """The same for each node that was acted on, whichever job it was for."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        for outcome in situation.outcomes:
            earlier = situation.plans.get(outcome.plan)
            if earlier is None or not _counts(earlier, outcome, plan):
                continue
            ago = seconds_between(outcome.time, situation.now)  # unknown where a leader before us had a clock that was ahead of ours
            whom, seconds = self._left(plan, earlier, ago) if ago is not None else ("", 0.0)
            if seconds > 0:
                ended = f"{earlier.action} of plan {earlier.id} has just ended"
                return Hold(guard="cooldown", reason=f"{ended}: {whom}", seconds=seconds)
        return Allow(guard="cooldown", reason="the last action is long enough ago")

    def _left(self, plan: Plan, earlier: Plan, ago: float) -> tuple[str, float]:
        """Who is left alone, and for how many seconds more."""
        again = sorted(set(_nodes(plan)) & set(_nodes(earlier)))
        if again and ago < self.node_s:
            return f"{', '.join(again)} is in cooldown for {self.node_s:g} s", self.node_s - ago
        jobs = sorted({target.job for target in plan.targets} & {target.job for target in earlier.targets})
        if jobs and ago < self.job_s:
            return f"{', '.join(jobs)} is in cooldown for {self.job_s:g} s", self.job_s - ago
        return "", 0.0


def _counts(earlier: Plan, outcome: Outcome, plan: Plan) -> bool:
    return outcome.state == "done" and not earlier.own and earlier.action not in OBSERVING and outcome.incident != plan.incident


def _nodes(plan: Plan) -> list[str]:
    return [node for target in plan.targets for node in touched(plan, target.job)]
