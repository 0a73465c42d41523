"""Precomputed plans of the running jobs, one for each next event: renewed after each change, checked by the guards, looked up.

    event responses (outside the engine's lock) ─► guards, expiry ─► ledger, coordinators

A plan is bound to the mode, to the epochs of all jobs that it rests on, and to a time. It is a preparation: when its event
happens, guards and decision are asked again with the facts of that moment.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.types import (
    Allow,
    Culprit,
    Entity,
    Hold,
    Incident,
    IncidentState,
    Kind,
    Mode,
    Plan,
    PrecomputedPlan,
    Severity,
    digest_of,
)
from remediation.engine.debounce import Debounce
from remediation.engine.engine_state import EngineState
from remediation.engine.guard_review import GuardReview
from remediation.engine.incident_phase import IncidentPhase
from remediation.engine.tracked_incident import TrackedIncident
from remediation.policy.engine_settings import EngineSettings

from .event_responses import EventResponse, event_responses
from .live_cluster import LiveCluster
from .live_planner import LivePlanner

CHANGED = 0.1
"""A throughput that is so much off what the table was made with makes a new one."""
CAUSES: Mapping[str, str] = {"worker lost": "worker killed", "node lost": "node lost", "worker returned": "worker returned"}


@dataclass(slots=True, kw_only=True)
class PrecomputedPlans:
    """`lock` is the engine's: held for the quick parts, not while the responses are computed."""

    state: EngineState
    review: GuardReview
    clock: Clock
    settings: EngineSettings
    live: LivePlanner
    lock: threading.RLock
    plans: tuple[PrecomputedPlan, ...] = ()
    _made_for: LiveCluster | None = None
    _again: float = 0.0

    def renew(self) -> tuple[PrecomputedPlan, ...] | None:
        """New plans, if anything has changed or the old ones expire soon; None: the old ones remain valid. Takes seconds for many jobs."""
        with self.lock:
            cluster, now = self.live.cluster(), self.clock.now()
            if any(job.demand is not None and self.state.incidents_of(job.name) for job in self.state.jobs.values()):
                return None  # the old one may be spent just now
            if self._made_for is not None and now < self._again and alike(cluster, self._made_for):
                return None
        responses = event_responses(cluster)
        with self.lock:
            self._made_for, self._again = cluster, now + self.settings.expires_s / 2
            self.plans = tuple(self._precomputed(cluster, response) for response in responses)
            return self.plans

    def of_job(self, job: str) -> tuple[PrecomputedPlan, ...]:
        """The plans for a job: its own losses, and every event that changes its size."""
        return tuple(plan for plan in self.plans if job in plan.epochs and (plan.of == job or plan.event != "worker lost" or job in plan.workers_per_node))

    def covers(self, plan: str, case: TrackedIncident) -> bool:
        """Whether a coordinator carried out this plan for the case, and the plan is still valid. The job of the case has a newer epoch by then."""
        known = next((each for each in self.plans if each.id == plan), None)
        if known is None or not known.allowed:
            return False
        epochs = {name: job.epoch for name, job in self.state.jobs.items()} | {case.job: case.epoch}
        return known.fits(epochs, self.settings.mode, self.clock.now())

    # --- inside ----------------------------------------------------------------------------------------------------------

    def _precomputed(self, cluster: LiveCluster, response: EventResponse) -> PrecomputedPlan:
        now, settings = self.clock.now(), self.settings
        allowed, why = self._guard_verdict(response)
        epochs = {job.name: job.epoch for job in cluster.jobs}
        return PrecomputedPlan(
            id=digest_of("precomputed", response.event, response.of, response.node, epochs, response.workers, now), event=response.event, of=response.of,
            node=response.node, mode=settings.mode, epochs=epochs, made=now, expires=now + settings.expires_s, workers=response.workers,
            workers_per_node=response.moves.placement, waf_before=response.waf_before, waf=response.waf, allowed=allowed, why=why,
        )  # fmt: skip

    def _guard_verdict(self, response: EventResponse) -> tuple[bool, str]:
        """Whether mode and guards allow it now, and why."""
        if not response.moves.placement:
            return True, "no worker changes jobs"
        case = self._hypothetical_case(response)
        plan = self._plan(case, response)
        situation = self.review.situation(case, plan)
        verdicts = [guard(plan, situation) for guard in self.review.guards]
        against = [verdict for verdict in verdicts if not isinstance(verdict, Allow)]
        if self.settings.mode is Mode.OBSERVE:
            return False, "the mode is observe: it is only recorded"
        if against:
            held = "would be held by" if all(isinstance(verdict, Hold) for verdict in against) else "is refused by"
            return False, f"{held} {against[0].guard}: {against[0].reason}"
        return True, f"{response.waf:.3g} against {response.waf_as_left:.3g} WAF if no worker changed jobs"

    def _hypothetical_case(self, response: EventResponse) -> TrackedIncident:
        """The case that the event would open."""
        now = self.clock.now()
        job = response.of or next(iter(response.moves.placement))
        culprit = Culprit(entity=Entity(kind=Kind.NODE, name=response.node), confidence=1.0)
        incident = Incident(
            id=f"imagined {response.event} {response.of} {response.node}", revision=1, job=job, cause=CAUSES[response.event], culprits=(culprit,),
            severity=Severity.SEV1, findings=(), evidence=(), since=now, time=now,
        )  # fmt: skip
        settled = Debounce.of(incident, now - self.settings.debounce_max_s)
        return TrackedIncident(incident=incident, state=IncidentState.OPEN, phase=IncidentPhase.SETTLING, opened=now, settling=settled, epoch=self.state.job(job).epoch)

    def _plan(self, case: TrackedIncident, response: EventResponse) -> Plan:
        now = self.clock.now()
        return Plan(
            id=digest_of(case.incident.id, now), incident=case.incident.id, action="resize", targets=self.live.targets(response.moves), made=now,
            expires=now + self.settings.expires_s, severity=Severity.SEV1, reason=response.event,
        )  # fmt: skip


def alike(one: LiveCluster, other: LiveCluster) -> bool:
    """The same jobs, epochs, demands and repaired workers, and throughputs within a tenth."""
    if dict(one.spare) != dict(other.spare) or [(job.name, job.epoch, job.demand) for job in one.jobs] != [(job.name, job.epoch, job.demand) for job in other.jobs]:
        return False
    return all(_close(mine.measured, theirs.measured) for mine, theirs in zip(one.jobs, other.jobs, strict=True))


def _close(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    return one.keys() == other.keys() and all(abs(rate - other[count]) <= CHANGED * other[count] for count, rate in one.items())
