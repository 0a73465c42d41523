"""Blast radius: how many nodes may be affected in an hour, of a job, of a failure domain, of the cluster."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from eagle_eye.ranges import CountOrNone, Seconds, Share
from eagle_eye.types import Allow, Plan, Refuse, Situation, Verdict
from remediation.policy.affected_nodes import isolated, touched


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastRadius:
    """Refuses a plan that would reach more nodes than allowed. Of each pair of limits the larger one holds.

    A node of a job is affected when it is evicted or its workers were the reason of a restart. Of a failure domain (a
    switch) and of the cluster only those that were evicted count. What jobs did to themselves counts as well.
    """

    nodes: CountOrNone = 2
    """Most nodes of one job that may be affected within the window ..."""
    share: Share = 0.1
    """... or this part of the job's nodes, rounded down."""
    domain_nodes: CountOrNone = 2
    """Most nodes at one switch that may be evicted: if more are accused, the switch is to blame ..."""
    domain_share: Share = 0.1
    """... or this part of the nodes at that switch."""
    cluster_nodes: CountOrNone = 4
    """Most nodes of the cluster that may be evicted ..."""
    cluster_share: Share = 0.02
    """... or this part of all nodes."""
    window_s: Seconds = 3600.0
    """Seconds for which a node counts."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        earlier = tuple(self._earlier(situation))
        for reason in (*self._jobs(plan, earlier, situation), *self._domains(plan, earlier, situation)):
            return Refuse(guard="blast_radius", reason=reason)
        return Allow(guard="blast_radius", reason="few enough nodes of the job, of their switches and of the cluster")

    def _earlier(self, situation: Situation) -> Iterator[Plan]:
        """Plans whose nodes still count."""
        since = situation.now - self.window_s
        for outcome in situation.outcomes:
            if outcome.plan in situation.plans and outcome.time > since and outcome.state != "stale":
                yield situation.plans[outcome.plan]
        yield from situation.running

    def _jobs(self, plan: Plan, earlier: tuple[Plan, ...], situation: Situation) -> Iterator[str]:
        for target in plan.targets:
            layout = situation.layouts.get(target.job)
            size = len(layout.launchers) if layout is not None else situation.nodes
            mine = set(touched(plan, target.job))
            before = {node for each in earlier for node in touched(each, target.job)}
            yield from self._too_many(mine, before, f"of {target.job}", self.nodes, self.share * size)

    def _domains(self, plan: Plan, earlier: tuple[Plan, ...], situation: Situation) -> Iterator[str]:
        mine, before = set(isolated(plan)), {node for each in earlier for node in isolated(each)}
        switches = situation.topology.nodes
        for switch in sorted({switches.get(node, "") for node in mine} - {""}):
            there = {node for node, known in switches.items() if known == switch}
            limit = self.domain_share * len(there)
            yield from self._too_many(mine & there, before & there, f"at switch {switch}", self.domain_nodes, limit)
        yield from self._too_many(mine, before, "of the cluster", self.cluster_nodes, self.cluster_share * situation.nodes)

    def _too_many(self, mine: set[str], before: set[str], whose: str, count: int, share: float) -> Iterator[str]:
        limit, after = max(count, math.floor(share)), mine | before
        if mine and len(after) > limit:
            hours = f"{self.window_s / 3600:g} h"
            yield f"{len(after)} nodes {whose} within {hours} ({', '.join(sorted(after))}); allowed: {limit}"
