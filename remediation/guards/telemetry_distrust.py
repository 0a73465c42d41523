"""Telemetry may lie: who is isolated must have been heard, with a clock that can be used, in a cluster that speaks."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle_eye.types import Allow, Hold, Plan, Situation, Telemetry, Verdict
from remediation.policy.affected_nodes import isolated

WAIT_S = 2.0
"""When to look again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryDistrust:
    """Holds a plan that would isolate somebody on the word of collectors that are dead, or of clocks that are wrong."""

    silent_s: float = 10.0
    """Seconds without a batch after which a node's collectors count as dead."""
    skew_s: float = 5.0
    """A clock that is further off than this cannot be used: what happened first is not known."""
    share: float = 0.5
    """When more than this part of all nodes is silent, the fault is in the telemetry or the network, and nobody is isolated."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        nodes = isolated(plan)
        if not nodes:
            return Allow(guard="telemetry_distrust", reason="it isolates nobody")
        reason = self._all_silent(situation) or next(self._doubts(nodes, situation), "")
        if reason:
            return Hold(guard="telemetry_distrust", reason=reason, seconds=WAIT_S)
        return Allow(guard="telemetry_distrust", reason=f"{', '.join(nodes)} can be heard")

    def _doubts(self, nodes: tuple[str, ...], situation: Situation) -> Iterator[str]:
        for node in nodes:
            told = situation.telemetry.get(node)
            if told is None or not told.heard:
                yield f"nothing was heard of the collectors of {node} yet"
            elif self._silent(told, situation):
                yield f"the collectors of {node} have been silent for more than {self.silent_s:g} s"
            elif abs(told.skew_s) > self.skew_s:
                yield f"the clock of {node} is more than {self.skew_s:g} s {'ahead' if told.skew_s > 0 else 'behind'}"

    def _all_silent(self, situation: Situation) -> str:
        known = [told for told in situation.telemetry.values() if told.heard]
        silent = sum(self._silent(told, situation) for told in known)
        if silent < 2 or silent <= self.share * len(known):
            return ""
        return f"more than {self.share:.0%} of all nodes have been silent for more than {self.silent_s:g} s: telemetry is not to be trusted now"

    def _silent(self, told: Telemetry, situation: Situation) -> bool:
        return situation.now - told.heard > self.silent_s
