"""One repair at a time: nothing is done twice, and nothing while another repair of the same job is under way."""

from dataclasses import dataclass

from eagle_eye.ranges import Seconds
from eagle_eye.types import Allow, Hold, Plan, Refuse, Situation, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """Refuses what is being done already; holds what would cross another plan for the same job."""

    recheck_s: Seconds = 0.5
    """When to ask again while another plan runs."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        jobs = {target.job for target in plan.targets}
        for other in situation.running:
            if other.id == plan.id:
                continue
            if other.digest == plan.digest:
                return Refuse(guard="duplicates", reason=f"plan {other.id} does the same already")
            shared = jobs.intersection(target.job for target in other.targets)
            if shared:
                reason = f"plan {other.id} ({other.action}) for {', '.join(sorted(shared))} has not ended"
                return Hold(guard="duplicates", reason=reason, seconds=self.recheck_s)
        return Allow(guard="duplicates", reason="no other plan for this job is under way")
