"""Preconditions of a plan: asked again right before each of its commands is sent, from the action's thread.

Minutes may lie between planning and acting (an approval, another action, a retry), and a command that comes after its
incident has ended takes workers from a job that is well.
"""

import threading
from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.types import Plan, Target
from remediation.policy.affected_nodes import isolated
from remediation.policy.escalation import same_fault

from .background_actions import BackgroundActions
from .engine_state import EngineState
from .incident_phase import IncidentPhase
from .plan_builder import node_of
from .tracked_incident import TrackedIncident


@dataclass(slots=True, kw_only=True)
class Preconditions:
    """`lock` is the engine's. The lease is asked for by the execution itself."""

    state: EngineState
    background: BackgroundActions
    clock: Clock
    lock: threading.RLock

    def refusal(self, plan: Plan) -> str:
        """Why the plan is not carried out any further; '' if it is."""
        with self.lock:
            if self.clock.now() >= plan.expires:
                return "it has expired"
            why = next((why for target in plan.targets if (why := self._outdated(plan, target))), "")
            return why or (self._disturbing(plan) if self.background.holds(plan) else self._unfounded(plan))

    def _outdated(self, plan: Plan, target: Target) -> str:
        """The epoch that the plan itself began is the one it was made for, and one more."""
        job = self.state.job(target.job)
        if job.over:
            return f"{target.job} has ended"
        if not target.epoch or job.epoch <= target.epoch or job.began_by(plan.id):
            return ""
        return f"{target.job} is at epoch {job.epoch}, the plan is for epoch {target.epoch}"

    def _disturbing(self, plan: Plan) -> str:
        """What belongs to no open incident waits for its turn; workers are moved only between jobs that are well."""
        if plan.action != "resize":
            return ""
        open_now = (tracked for target in plan.targets for tracked in self.state.incidents_of(target.job))
        return next((f"incident {tracked.incident.id} ({tracked.incident.cause}) of {tracked.job} is open" for tracked in open_now), "")

    def _unfounded(self, plan: Plan) -> str:
        tracked = self.state.incidents.get(plan.incident)
        if tracked is None or tracked.plan is None or tracked.plan.id != plan.id:
            return "its incident has another plan, or none"
        if tracked.call_off is not None:
            return tracked.call_off.why
        if tracked.phase is IncidentPhase.ENDED:
            return f"its incident has ended: {tracked.state.value}"
        if not same_fault(*tracked.planned_for, tracked.incident.cause, tracked.culprits):
            return f"its incident is {_claim(tracked)} now"
        return self._acquitted(tracked, plan)

    def _acquitted(self, tracked: TrackedIncident, plan: Plan) -> str:
        """Each node that is evicted must still be accused."""
        job = self.state.job(tracked.job)
        accused = {node_of(culprit, job) for culprit in tracked.incident.culprits}
        innocent = [node for node in isolated(plan) if node not in accused]
        return f"its incident is {_claim(tracked)} now, which does not accuse {', '.join(innocent)}" if innocent else ""


def _claim(tracked: TrackedIncident) -> str:
    return f"{tracked.incident.cause} on {', '.join(sorted(tracked.culprits)) or 'nobody'}"
