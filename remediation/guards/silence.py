"""A person has said: hands off."""

from dataclasses import dataclass

from eagle_eye.types import Allow, Hold, Plan, Silence, Situation, Verdict
from remediation.policy.affected_nodes import concerned


@dataclass(frozen=True, slots=True, kw_only=True)
class Silenced:
    """Holds whatever a silence covers until it is over; who made it may end it before."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        nodes, cause = concerned(plan, situation), situation.incident.cause
        for silence in situation.silences:
            if any(silence.covers(target.job, nodes, cause) for target in plan.targets):
                return Hold(guard="silence", reason=_words(silence), seconds=max(0.001, silence.until - situation.now))
        return Allow(guard="silence", reason="no silence covers it")


def _words(silence: Silence) -> str:
    return f"{silence.person} wants silence: {silence.reason or 'no reason given'}; `eagle-eye silence end {silence.id}` ends it"
