"""What a job did to itself: an epoch that its coordinator started is matched with the incidents that it ends."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.ledger import Ledger
from eagle_eye.types import Incident, IncidentState, Plan, Progress, Target, digest_of
from remediation.policy.engine_settings import EngineSettings
from remediation.policy.escalation import SEVERITIES, escalation_of, is_too_weak, level_of

from .decision_recorder import DecisionRecorder
from .engine_state import EngineState
from .guard_review import GuardReview
from .incident_phase import IncidentPhase
from .job_state import JobState, StartedEpoch
from .pending_verifications import PendingVerifications
from .repair_planner import RepairPlanner
from .tracked_incident import TrackedIncident

MOVES_S = 1.0
"""A step that ends so long after an incident was opened was not under way when the fault struck."""
STANDSTILL_EARLY_S = 2.0
"""A stall may seem to begin so long before the epoch in which it is: at the start of its processes."""


def fault_epoch(incident: Incident, job: JobState) -> int:
    """The epoch in which a fault happened, also if the epoch that ends it was reported first."""
    events = frozenset(line.event for line in incident.evidence if line.event)
    by_itself = escalation_of(incident.cause, incident.severity).self_healed
    since = incident.since if by_itself else incident.since + STANDSTILL_EARLY_S
    answers = [
        begun.epoch
        for begun in job.started_epochs
        if begun.reason != "start" and (begun.time > since or (begun.cause and begun.cause in events))
    ]
    return min(answers) - 1 if answers else job.epoch


def answer_to(tracked: TrackedIncident, job: JobState) -> StartedEpoch | None:
    """The newest epoch that ended what the incident is about; None if there is none yet."""
    if not tracked.escalation.ended_by_epoch:
        return None
    if tracked.epoch < 0:  # it was found, or taken over from the leader before, when nothing was known of the job
        tracked.epoch = fault_epoch(tracked.incident, job)
    later = [begun for begun in job.started_epochs if begun.epoch > tracked.epoch]
    return later[-1] if later else None


def plan_of(tracked: TrackedIncident, begun: StartedEpoch, job: JobState, now: float, policy: EngineSettings) -> Plan:
    """The job's own repair, as a plan: no command was sent, but it is recorded like any other."""
    workers = tuple(culprit.entity.name for culprit in tracked.incident.culprits if culprit.entity.kind == "worker")
    nodes = tuple(culprit.entity.name for culprit in tracked.incident.culprits if culprit.entity.kind == "node")
    lost = begun.reason == "node lost" and bool(nodes)  # of a worker that failed beside it the epoch is a restart
    action = "heal_in_place" if begun.in_place else "evict_node" if lost else "restart_worker"
    target = Target(
        job=tracked.job, epoch=begun.epoch - 1, basis=job.basis, exclude=nodes if lost else (), workers=workers, skip=begun.skipped
    )
    skips = f"; its workers skip step {', '.join(map(str, begun.skipped))}" if begun.skipped else ""
    return Plan(
        id=digest_of(tracked.incident.id, action, begun.epoch),
        incident=tracked.incident.id,
        action=action,
        targets=(target,),
        made=now,
        expires=now + policy.expires_s,
        severity=SEVERITIES[action],
        own=True,
        reason=f"the coordinator began epoch {begun.epoch} by itself: {begun.reason}{skips}",
    )


@dataclass(slots=True, kw_only=True)
class SelfHealing:
    """Records what jobs do to themselves, and has a repair planned where a job does not."""

    state: EngineState
    recorder: DecisionRecorder
    review: GuardReview
    ledger: Ledger
    clock: Clock
    settings: EngineSettings
    planner: RepairPlanner
    verifications: PendingVerifications
    notify: Callable[[TrackedIncident, str], object]
    precomputed: Callable[[str, TrackedIncident], bool] = lambda _plan, _tracked: False
    """(plan, incident): whether that is a precomputed plan for this incident which still holds."""

    def epoch_started(self, tracked: TrackedIncident, job: JobState) -> None:
        """A new epoch, whatever started it, may have ended the fault."""
        started = answer_to(tracked, job)
        if started is None or tracked.incident.id in self.state.verifications or (started.in_place and self._is_healed(tracked)):
            return
        self.contained(tracked, started)

    def _is_healed(self, tracked: TrackedIncident) -> bool:
        """The elastic job has healed it in place already: that a node or worker comes back is no second repair, where none is planned."""
        history = self.state.history
        done = {outcome.plan for outcome in history.outcomes() if (outcome.incident, outcome.action, outcome.state) == (tracked.incident.id, "heal_in_place", "done")}
        mine = (history.plans[plan] for plan in done if plan in history.plans)
        return tracked.plan is None and any(plan.own and plan.targets[0].epoch >= tracked.epoch for plan in mine)

    def contained(self, tracked: TrackedIncident, begun: StartedEpoch) -> None:
        """The coordinator has healed it by itself; only what outlasts that is still to be done."""
        job, now = self.state.job(tracked.job), self.clock.now()
        earlier = [attempt for attempt in self.planner.attempts(tracked) if attempt.incident != tracked.incident.id]
        if tracked.plan is not None and tracked.phase in (IncidentPhase.HELD, IncidentPhase.RETRYING):
            self.recorder.record_plan(tracked.plan, "stale", f"epoch {begun.epoch} began first: {begun.reason}")
        plan = plan_of(tracked, begun, job, now, self.settings)
        intended = Progress(step=f"epoch {begun.epoch}", state="intended", time=begun.time, detail=begun.reason)
        done = msgspec.structs.replace(intended, state="done")
        self.state.history.plan(plan)
        self.ledger.record_intent(plan, intended)
        self.ledger.record_result(plan, done)
        self.recorder.record_plan(plan, "intended")
        tracked.plan, tracked.level = None, plan.action
        self.verifications.begin(tracked, plan, (intended, done), began=begun.time)
        if begun.in_place and self.planner.live.applies_to(tracked, earlier):
            tracked.precomputed = self.precomputed(begun.plan, tracked)
            self.recorder.move(tracked, IncidentPhase.SETTLING, due=now if tracked.precomputed else self.review.settles_at(tracked))
            return
        levels, level = tracked.escalation.levels, level_of(plan.action)
        outlasts = is_too_weak(level, levels) or (level in levels and any(level_of(attempt.action) == level for attempt in earlier))
        if levels and outlasts and self.planner.level(tracked) is not None:
            self.recorder.move(tracked, IncidentPhase.SETTLING, due=self.review.settles_at(tracked))

    def is_delayed(self, tracked: TrackedIncident, job: JobState) -> bool:
        """The coordinator has said that it restarts the workers later: no reason to do it now. Broken hardware is evicted meanwhile."""
        return not tracked.escalation.isolates and job.backs_off(self.settings.self_healing_s)

    def overdue(self, tracked: TrackedIncident) -> None:
        """The coordinator did not do what it does by itself: a repair is planned, unless the job runs on."""
        if not tracked.incident.active:
            self.recorder.move(tracked, IncidentPhase.ENDED, state=IncidentState.CLOSED)
        elif not tracked.escalation.isolates and self.state.job(tracked.job).moved_after(tracked.opened + MOVES_S):
            self.recorder.move(tracked, IncidentPhase.NEEDS_OPERATOR)
            self.notify(tracked, "the job runs on: no action is taken")
        else:
            self.planner.propose(tracked)
