"""Minimum workers: a job keeps the nodes and workers that it needs."""

import math
from dataclasses import dataclass

from eagle_eye.ranges import CountOrNone, Share
from eagle_eye.types import Allow, Hold, Layout, Plan, Refuse, Situation, Target, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumWorkers:
    """Refuses a plan that would leave a job less than it needs (`--nnodes min:max`) or than is allowed here."""

    nodes: CountOrNone = 1
    """Fewest nodes, whatever a job declares."""
    share: Share = 0.5
    """Share of the workers that a job has now which must be left."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        for target in plan.targets:
            layout = situation.layouts.get(target.job)
            few = self._few(target, situation)
            if few:
                return Refuse(guard="minimum_workers", reason=few)
            if not target.exclude:
                continue
            if layout is None:
                return Hold(guard="minimum_workers", reason=f"the layout of {target.job} is not known yet", seconds=1.0)
            short = self._short(target, layout, situation)
            if short:
                return Refuse(guard="minimum_workers", reason=short)
        return Allow(guard="minimum_workers", reason="enough are left")

    def _few(self, target: Target, situation: Situation) -> str:
        """Why an elastic job cannot give so many workers; '' if it can, or gives none."""
        demand = situation.demands.get(target.job)
        gives = sum(target.workers_per_node_before.values()) - sum(target.workers_per_node.values())
        if demand is None or gives <= 0:
            return ""
        left, least = demand.now - gives, max(demand.workers_min, math.ceil(self.share * demand.now))
        return f"{target.job} would have {left} of {demand.now} workers left, at least {least} must stay" if left < least else ""

    def _short(self, target: Target, layout: Layout, situation: Situation) -> str:
        going = {node for other in situation.running for aim in other.targets if aim.job == target.job for node in aim.exclude}
        out = going | set(target.exclude)
        nodes = [node for node in layout.nodes if node not in out]
        needed = max(self.nodes, situation.nodes_min.get(target.job, 1))
        without = f"without {', '.join(sorted(out))}"
        if len(nodes) < needed:
            return f"{without} {target.job} has {len(nodes)} nodes left and needs {needed}"
        workers = sum(place.node in nodes for place in layout.placements)
        demand = situation.demands.get(target.job)
        least = max(math.ceil(self.share * len(layout.placements)), demand.workers_min if demand is not None else 0)
        if workers < least:
            return f"{without} {target.job} has {workers} of {len(layout.placements)} workers left, at least {least} must stay"
        return ""
