"""Silences: an operator wants nothing done about a job, a node or a cause."""

from dataclasses import dataclass

from eagle_eye.types import Allow, Hold, Plan, Silence, Situation, Verdict
from remediation.policy.affected_nodes import concerned


@dataclass(frozen=True, slots=True, kw_only=True)
class Silenced:
    """Holds what a silence covers until it is over or an operator ends it."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        nodes, cause = concerned(plan, situation), situation.incident.cause
        for silence in situation.silences:
            if any(silence.covers(target.job, nodes, cause) for target in plan.targets):
                return Hold(guard="silence", reason=_reason(silence), seconds=max(0.001, silence.until - situation.now))
        return Allow(guard="silence", reason="no silence covers it")


def _reason(silence: Silence) -> str:
    return f"{silence.person} silenced it: {silence.reason or 'no reason given'}; end it with: eagle-eye silence end {silence.id}"
