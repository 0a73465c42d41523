"""Maintenance windows: faults of nodes under planned work are expected, and no node is evicted for them."""

from dataclasses import dataclass

from eagle_eye.types import Allow, Hold, Plan, Situation, Verdict, Window
from remediation.policy.affected_nodes import isolated


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """Holds a plan that would isolate a node, or a node of a job, that is being worked on. Weaker repairs pass."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        for window in situation.windows:
            nodes = [node for node in isolated(plan) if any(window.expects(target.job, node) for target in plan.targets)]
            if nodes:
                seconds = max(0.001, window.until - situation.now)
                return Hold(guard="maintenance", reason=_reason(window, nodes), seconds=seconds)
        return Allow(guard="maintenance", reason="no maintenance window covers the nodes that it evicts")


def _reason(window: Window, nodes: list[str]) -> str:
    work = f"{window.person} works on {', '.join(nodes)}: {window.reason or 'no reason given'}"
    return f"{work}; end the window with: eagle-eye maintenance end {window.id}"
