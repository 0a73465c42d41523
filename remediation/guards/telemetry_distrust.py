"""Distrust of telemetry: a node is evicted only if its collectors send, its clock is right, and most of the cluster sends."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle_eye.ranges import Seconds, Share
from eagle_eye.types import Allow, Hold, Plan, Situation, Telemetry, Verdict
from remediation.policy.affected_nodes import isolated

WAIT_S = 2.0
"""When to look again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryDistrust:
    """Holds a plan that would evict a node on the data of dead collectors or of wrong clocks."""

    silent_s: Seconds = 10.0
    """Seconds without a batch after which a node's collectors count as dead."""
    skew_s: Seconds = 5.0
    """A clock that is further off than this cannot be used: what happened first is not known."""
    share: Share = 0.5
    """When more than this part of all nodes is silent, the fault is in the telemetry or the network, and no node is evicted."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        nodes = isolated(plan)
        if not nodes:
            return Allow(guard="telemetry_distrust", reason="it evicts no node")
        reason = self._all_silent(situation) or next(self._doubts(nodes, situation), "")
        if reason:
            return Hold(guard="telemetry_distrust", reason=reason, seconds=WAIT_S)
        return Allow(guard="telemetry_distrust", reason=f"{', '.join(nodes)} sends telemetry")

    def _doubts(self, nodes: tuple[str, ...], situation: Situation) -> Iterator[str]:
        for node in nodes:
            telemetry = situation.telemetry.get(node)
            if telemetry is None or not telemetry.heard:
                yield f"no telemetry came from the collectors of {node} yet"
            elif self._silent(telemetry, situation):
                yield f"the collectors of {node} have been silent for more than {self.silent_s:g} s"
            elif abs(telemetry.skew_s) > self.skew_s:
                yield f"the clock of {node} is more than {self.skew_s:g} s {'ahead' if telemetry.skew_s > 0 else 'behind'}"

    def _all_silent(self, situation: Situation) -> str:
        known = [telemetry for telemetry in situation.telemetry.values() if telemetry.heard]
        silent = sum(self._silent(telemetry, situation) for telemetry in known)
        if silent < 2 or silent <= self.share * len(known):
            return ""
        return f"more than {self.share:.0%} of all nodes have been silent for more than {self.silent_s:g} s: the telemetry cannot be trusted now"

    def _silent(self, telemetry: Telemetry, situation: Situation) -> bool:
        return situation.now - telemetry.heard > self.silent_s
