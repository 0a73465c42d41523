"""What a guard sees of the cluster, and what the guards say of a plan: asked together, each verdict recorded once."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.ledger import Ledger
from eagle_eye.protocols import Guard
from eagle_eye.types import Allow, Hold, Plan, Refuse, Situation, Verdict, Window
from eagle_eye.writable_text import words_of
from remediation.policy.engine_settings import EngineSettings

from .call_timeout import returns
from .engine_state import EngineState
from .execution import Execution
from .job_state import JobState
from .tracked_incident import TrackedIncident
from .verification import Verification

VERDICTS_KEPT = 1000
GUARD_S = 5.0
"""A guard computes over what it is shown: within milliseconds."""
log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class GuardReview:
    """Of all plans of one engine."""

    state: EngineState
    ledger: Ledger
    clock: Clock
    settings: EngineSettings
    guards: Sequence[Guard]
    execution: Execution
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(guard, allow, hold or refuse) → number of verdicts; the same verdict on the same plan counts once."""
    _recorded: dict[tuple[str, str], tuple[str, str, str]] = field(default_factory=dict)
    """(incident, guard) → the verdict recorded last: (plan, allow, hold or refuse, reason)."""
    _hung: set[str] = field(default_factory=set)
    """Guards that have not returned; they are not asked again."""

    def review(self, plan: Plan, situation: Situation) -> list[Verdict]:
        """The verdict of every guard, recorded. All are asked, so that the ledger holds every reason."""
        verdicts: list[Verdict] = []
        while len(verdicts) < len(self.guards):
            verdicts += self._ask(self.guards[len(verdicts) :], plan, situation)
        for verdict in verdicts:
            self._record(plan, verdict)
        return verdicts

    def _ask(self, guards: Sequence[Guard], plan: Plan, situation: Situation) -> list[Verdict]:
        """The verdicts up to the first guard that does not return: it refuses this plan and all others, for who does not look may not allow."""
        answered: list[Verdict] = []

        def ask() -> None:
            for guard in guards:
                name = _name_of(guard)
                answered.append(_unanswered(name) if name in self._hung else _verdict(name, guard, plan, situation))

        if returns("guards", ask, lambda: len(answered), GUARD_S):
            return answered
        until = list(answered)
        if len(until) == len(guards):
            return until
        name = _name_of(guards[len(until)])
        log.error("guard %s has not returned within %g s on plan %s", name, GUARD_S, plan.id)
        self._hung.add(name)
        return [*until, _unanswered(name)]

    def refuses(self, name: str, tracked: TrackedIncident, plan: Plan) -> bool:
        """Whether the guard of that name would refuse the plan as things are now; recorded nowhere."""
        guards = [guard for guard in self.guards if _name_of(guard) == name]
        return any(isinstance(verdict, Refuse) for verdict in self._ask(guards, plan, self.situation(tracked, plan))) if guards else False

    def settles_at(self, tracked: TrackedIncident) -> float:
        """When the incident has settled (debounce.py)."""
        quiet_s = self.settings.debounce_slow_s if tracked.escalation.cost_weighed else self.settings.debounce_s
        return tracked.settling.due(quiet_s, self.settings.debounce_max_s)

    def situation(self, tracked: TrackedIncident, plan: Plan) -> Situation:
        """What a guard sees. A plan that is only being verified does not count against one of the same incident, nor of a fault that stops the
        job and that it cannot have mended: until that is repaired nothing can be verified."""
        now, cluster, jobs = self.clock.now(), self.state.cluster_view, self.state.jobs.values()
        beside = (each for each in self.state.verifications.values() if each.incident != tracked.incident.id)
        verified = tuple(each.plan for each in beside if not _stops_beside(tracked, each, self.state.job(tracked.job)))
        nodes = {node for job in jobs if job.layout is not None for node in job.layout.launchers}
        return Situation(
            mode=self.settings.mode,
            incident=tracked.incident,
            open=tuple(other.incident for other in self.state.incidents.values() if other.open),
            outcomes=self.state.history.outcomes(),
            running=(*self.execution.running, *verified),
            plans=self.state.history.plans,
            approvals=self.ledger.approvals(digest=plan.digest, now=now),
            nodes=len(nodes),
            now=now,
            settled=self.settles_at(tracked),
            silences=tuple(silence for silence in self.ledger.silences(at=now) if silence.since <= now),
            windows=self.windows(),
            breakers=self.ledger.breakers(at=now),
            topology=cluster.topology(jobs),
            layouts=cluster.layouts(jobs),
            nodes_min={job.name: job.nodes_min for job in jobs},
            demands={job.name: job.demand for job in jobs if job.demand is not None},
            telemetry=cluster.telemetry(jobs),
        )

    def windows(self) -> tuple[Window, ...]:
        """Maintenance windows that are open now."""
        now = self.clock.now()
        return tuple(window for window in self.ledger.windows(at=now) if window.open_at(now))

    def _record(self, plan: Plan, verdict: Verdict) -> None:
        """Each verdict once, however often it is asked for; the seconds that are left of a hold are no news."""
        key, kind = (plan.incident, verdict.guard), type(verdict).__name__.lower()
        if self._recorded.get(key) != (plan.id, kind, verdict.reason):
            self._recorded[key] = (plan.id, kind, verdict.reason)
            self.counts[verdict.guard, kind] += 1
            while len(self._recorded) > VERDICTS_KEPT:
                self._recorded.pop(next(iter(self._recorded)))
            self.ledger.save_verdict(plan, verdict, self.clock.now())


def _name_of(guard: Guard) -> str:
    return type(guard).__module__.rpartition(".")[2]


def _unanswered(name: str) -> Refuse:
    return Refuse(guard=name, reason=f"the guard did not return within {GUARD_S:g} s: mend it and start the server again, or set enabled = false in [guards.{name}]")


def _verdict(name: str, guard: Guard, plan: Plan, situation: Situation) -> Verdict:
    """Of one guard; one that fails, or answers with something else than a verdict, refuses: nobody knows what it would have held back."""
    try:
        verdict = guard(plan, situation)
        if isinstance(verdict, Allow | Hold | Refuse):
            return msgspec.json.decode(msgspec.json.encode(verdict), type=type(verdict))
    except BaseException as error:  # boundary: a guard may be a stranger's, and raise SystemExit
        log.exception("guard %s failed on plan %s", name, plan.id)
        return Refuse(guard=name, reason=f"the guard failed ({words_of(error)}): mend it, or set enabled = false in [guards.{name}]")
    return Refuse(guard=name, reason=f"the guard answered {type(verdict).__name__} in place of a verdict: mend it, or set enabled = false in [guards.{name}]")


def _stops_beside(tracked: TrackedIncident, verification: Verification, job: JobState) -> bool:
    """The incident's fault stops the job, and the action that is verified cannot mend it: it was done before, or in place, where a process or a part is
    gone, or the workers that it started, or let go on, were ended since."""
    if not tracked.escalation.stops_job or job.name not in {target.job for target in verification.plan.targets}:
        return False
    later = tracked.incident.since > verification.began or (verification.in_place and tracked.escalation.lasting)
    return later or verification.undone(job)
