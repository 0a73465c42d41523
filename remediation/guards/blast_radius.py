"""How much of a job may be touched in an hour, whoever asks for it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from eagle_eye.types import Allow, Plan, Refuse, Situation, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastRadius:
    """Refuses a plan that would touch more nodes of its job than allowed.

    A node is touched when it is left out or its workers were the reason of a restart; what the job did to itself
    counts as well. The larger of the two limits holds.
    """

    nodes: int = 2
    """Most nodes that may be touched within the window."""
    share: float = 0.1
    """Of the known nodes, rounded down."""
    window_s: float = 3600.0
    """Seconds for which a touched node counts."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        limit = max(self.nodes, math.floor(self.share * situation.nodes))
        for target in plan.targets:
            mine = set(touched(plan, target.job))
            after = mine | set(self._touched(target.job, situation))
            if mine and len(after) > limit:
                hour = f"{self.window_s / 3600:g} h"
                reason = f"{len(after)} nodes of {target.job} within {hour} ({', '.join(sorted(after))}); allowed: {limit}"
                return Refuse(guard="blast_radius", reason=reason)
        return Allow(guard="blast_radius", reason=f"within {limit} nodes")

    def _touched(self, job: str, situation: Situation) -> Iterable[str]:
        done = [
            situation.plans[outcome.plan]
            for outcome in situation.outcomes
            if outcome.plan in situation.plans and outcome.time > situation.now - self.window_s
        ]
        for plan in (*done, *situation.running):
            yield from touched(plan, job)


def touched(plan: Plan, job: str) -> Iterable[str]:
    """Nodes of a job that a plan acts on. A worker is called run/node/slot."""
    for target in plan.targets:
        if target.job == job and plan.action not in ("dump", "notify"):
            yield from target.exclude
            yield from (worker.split("/")[-2] for worker in target.workers if worker.count("/") >= 2)
