"""Weak evidence: no node is evicted on a guess."""

from dataclasses import dataclass

from eagle_eye.ranges import Share
from eagle_eye.topology import node_of
from eagle_eye.types import Allow, Hold, Incident, Plan, Refuse, Situation, Verdict
from remediation.policy.affected_nodes import isolated

BLAMELESS = frozenset({"resize"})
"""Actions that change who does the work, and blame no node: what is lost is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeakEvidence:
    """Holds whatever blames somebody until the incident has settled; refuses to isolate a node on too little."""

    confidence: Share = 0.5
    """Each node that is isolated needs a culprit of at least this confidence on it."""
    single_detector_confidence: Share = 0.7
    """The same, where a single detector speaks."""
    weak: tuple[str, ...] = ("isolation_forest", "metric_forecast", "peer_metrics", "site_alerts")
    """Detectors on whose findings alone no node is evicted."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        if plan.action in BLAMELESS:
            return Allow(guard="weak_evidence", reason="it evicts and blames no node")
        if situation.now < situation.settled:
            seconds = situation.settled - situation.now
            return Hold(guard="weak_evidence", reason="the incident has not settled: causes may still be added", seconds=seconds)
        nodes = isolated(plan)
        if not nodes:
            return Allow(guard="weak_evidence", reason="it evicts no node")
        doubt = self._doubt(nodes, situation)
        if doubt:
            return Refuse(guard="weak_evidence", reason=doubt)
        return Allow(guard="weak_evidence", reason=f"the evidence against {', '.join(nodes)} is enough")

    def _doubt(self, nodes: tuple[str, ...], situation: Situation) -> str:
        incident = situation.incident
        if incident.cause == "unknown":
            return "the cause is unknown: no node is evicted without a known cause"
        speaking = _detectors(incident)
        if speaking and speaking <= set(self.weak):
            return f"only {', '.join(sorted(speaking))} reports it, on whose findings alone no node is evicted"
        needed = self.single_detector_confidence if len(speaking) == 1 else self.confidence
        for node in nodes:
            sure = _confidence(node, situation)
            if sure < needed:
                alone = f" (only {next(iter(speaking))} says so)" if len(speaking) == 1 else ""
                return f"the confidence that {node} is to blame is {sure:.2f}, {needed:.2f} is needed{alone}"
        return ""


def _detectors(incident: Incident) -> set[str]:
    """Whose findings still stand; all of them if none does (a fault may outlast its findings)."""
    return {part.detector for part in incident.parts if part.active} or {part.detector for part in incident.parts}


def _confidence(node: str, situation: Situation) -> float:
    culprits = situation.incident.culprits
    return max((culprit.proof for culprit in culprits if node_of(culprit.entity, situation.topology) == node), default=0.0)
