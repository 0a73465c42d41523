"""Circuit breaker: an action that did not help a job is not attempted on it again until an operator closes the breaker."""

from dataclasses import dataclass

from eagle_eye.types import Allow, Plan, Refuse, Situation, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBreaker:
    """Refuses an action whose breaker is open; when it opens is the engine's policy (`breaker_after`)."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        jobs = {target.job for target in plan.targets}
        for breaker in situation.breakers:
            if breaker.job in jobs and breaker.action == plan.action:
                why = f"{breaker.action} on {breaker.job} did not help ({breaker.reason})"
                return Refuse(guard="breaker", reason=f"{why}; close it with: eagle-eye breaker close {breaker.id}")
        return Allow(guard="breaker", reason="no breaker of this action on this job is open")
