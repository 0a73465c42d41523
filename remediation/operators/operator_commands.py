"""Commands of operators: silences, maintenance windows, the closing of a breaker, notes, releases. Each names the operator."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.errors import ControlError
from eagle_eye.ledger import Ledger
from eagle_eye.rpc.control_messages import (
    Body,
    BreakerCommand,
    MaintenanceCommand,
    NoteCommand,
    OperatorCommand,
    SilenceCommand,
)
from eagle_eye.topology import node_of
from eagle_eye.types import Breaker, IncidentNote, Plan, Severity, Silence, Target, Window, digest_of, matches_job
from remediation.engine.background_actions import BackgroundActions
from remediation.engine.decision_recorder import DecisionRecorder
from remediation.engine.engine_state import EngineState
from remediation.engine.guard_review import GuardReview
from remediation.engine.incident_phase import IncidentPhase
from remediation.engine.tracked_incident import TrackedIncident
from remediation.live.live_planner import LivePlanner
from remediation.policy.escalation import ESCALATIONS

INCIDENTS_SEARCHED = 10_000
RELEASE_EXPIRES_S = 60.0
SHOWN = 12
"""Names in an error message."""
Suppression = TypeVar("Suppression", Silence, Window, Breaker)
Timed = TypeVar("Timed", Silence, Window)


@dataclass(slots=True, kw_only=True)
class OperatorCommands:
    """Checks a command, records it in the ledger and answers; guards read it there. Raises ControlError."""

    state: EngineState
    recorder: DecisionRecorder
    review: GuardReview
    ledger: Ledger
    clock: Clock

    def order(self, order: OperatorCommand) -> Body:
        """The answer holds `message`, for the operator, and `id`."""
        if not order.person:
            raise ControlError("a command needs the name of the operator: --as NAME")
        if isinstance(order, SilenceCommand):
            return self._end(order.id, order.person, self._silences()) if order.id else self._silence(order)
        if isinstance(order, MaintenanceCommand):
            return self._end(order.id, order.person, self._windows()) if order.id else self._maintain(order)
        if isinstance(order, BreakerCommand):
            return self._close(order)
        return self._note(order)

    def in_force(self) -> Body:
        """What is in force now, and planned work that has yet to begin."""
        breakers = self.ledger.breakers(at=self.clock.now())
        return {"silences": self._silences(), "windows": self._windows(), "breakers": breakers}

    def expected(self, tracked: TrackedIncident) -> str:
        """For the news about an incident: whose maintenance window it falls into; '' if none."""
        for window in self.review.windows():
            nodes = self._nodes(tracked)
            hit = [node for node in nodes if window.expects(tracked.job, node)]
            if hit or window.expects_job(tracked.job):
                return f" (expected: {window.person} works on {', '.join(hit) or tracked.job}: {window.reason})"
        return ""

    # --- silences and windows ------------------------------------------------------------------------------------

    def _silence(self, order: SilenceCommand) -> Body:
        now = self.clock.now()
        _check(order.seconds, order.reason, anything=bool(order.job or order.node or order.cause), what="a job, a node or a cause")
        if not order.ahead:
            self._known(order.job, order.node)
        if order.cause and not any(fnmatchcase(cause, order.cause) for cause in ESCALATIONS):
            raise ControlError(f"no repair exists for a cause like {order.cause!r}; causes: {_some(ESCALATIONS)}")
        silence = Silence(
            id=digest_of("silence", order, now), person=order.person, reason=order.reason, since=now, until=now + order.seconds,
            job=order.job or "*", node=order.node or "*", cause=order.cause or "*",
        )  # fmt: skip
        self.ledger.save_suppression(silence)
        return {"id": silence.id, "message": f"silence {silence.id}: no action is taken about job {silence.job}, node {silence.node}, cause {silence.cause}"}

    def _maintain(self, order: MaintenanceCommand) -> Body:
        since = self.clock.now() + max(0.0, order.begins_in_s)
        _check(order.seconds, order.reason, anything=bool(order.nodes or order.jobs), what="nodes or jobs")
        if not order.ahead:
            for node in order.nodes:
                self._known("", node)
            for job in order.jobs:
                self._known(job, "")
        window = Window(
            id=digest_of("window", order, since), person=order.person, reason=order.reason, since=since, until=since + order.seconds,
            nodes=order.nodes, jobs=order.jobs,
        )  # fmt: skip
        self.ledger.save_suppression(window)
        return {"id": window.id, "message": f"window {window.id}: no node is evicted among {', '.join((*window.nodes, *window.jobs))}"}

    def _end(self, name: str, person: str, known: Sequence[Timed]) -> Body:
        suppression = _named(name, known, "is in force")
        ended = msgspec.structs.replace(suppression, until=self.clock.now(), ended_by=person)
        self.ledger.save_suppression(ended)
        return {"id": suppression.id, "message": f"{type(suppression).__name__.lower()} {suppression.id} is over"}

    def _silences(self) -> tuple[Silence, ...]:
        return self.ledger.silences(at=self.clock.now())

    def _windows(self) -> tuple[Window, ...]:
        return self.ledger.windows(at=self.clock.now())

    # --- breakers and notes --------------------------------------------------------------------------------------

    def _close(self, order: BreakerCommand) -> Body:
        """The action may be tried again, also on the faults that it did not help against."""
        now = self.clock.now()
        breaker = _named(order.id, self.ledger.breakers(at=now), "is open")
        self.ledger.save_suppression(msgspec.structs.replace(breaker, until=now, person=order.person))
        self.state.history.forgive(breaker.job, breaker.action, now)
        for tracked in self.state.incidents.values():
            stopped = tracked.phase is IncidentPhase.NEEDS_OPERATOR and tracked.refused_by == "breaker"
            if stopped and tracked.job == breaker.job and (tracked.incident.active or tracked.escalation.lasting):
                self.recorder.move(tracked, IncidentPhase.SETTLING, due=now)
        return {"id": breaker.id, "message": f"breaker {breaker.id} is closed: {breaker.action} may be tried on {breaker.job} again"}

    def _note(self, order: NoteCommand) -> Body:
        if not order.text.strip():
            raise ControlError("a note needs a text")
        incident = self._incident(order.incident)
        self.ledger.save_note(IncidentNote(incident=incident, person=order.person, time=self.clock.now(), text=order.text.strip()))
        return {"id": incident, "message": f"noted about incident {incident}"}

    # --- who is meant --------------------------------------------------------------------------------------------

    def _nodes(self, tracked: TrackedIncident) -> tuple[str, ...]:
        topology = self.state.cluster_view.topology(self.state.jobs.values())
        nodes = (node_of(culprit.entity, topology) for culprit in tracked.incident.culprits)
        return tuple(dict.fromkeys(node for node in nodes if node))

    def _incident(self, name: str) -> str:
        if self.ledger.incident_record(name) is not None:
            return name
        ids = [kept.incident.id for kept in self.ledger.incidents(limit=INCIDENTS_SEARCHED)]
        found = [known for known in ids if name and known.startswith(name)]
        if len(found) != 1:
            raise ControlError(f"{len(found) or 'no'} incidents begin with {name!r}; `eagle-eye incidents` lists them")
        return found[0]

    def _known(self, job: str, node: str) -> None:
        """A name that is not known is probably mistyped, and would silence nothing."""
        jobs = {*self.state.jobs, *self.ledger.jobs()}
        nodes = {name for known in self.state.jobs.values() if known.layout is not None for name in known.layout.launchers}
        if job and not any(matches_job(job, known) for known in jobs):
            raise ControlError(f"there is no job {job!r}; there are: {_some(jobs)}. For one that has yet to start, add --ahead")
        if node and not any(fnmatchcase(known, node) for known in nodes):
            raise ControlError(f"there is no node {node!r}; there are: {_some(nodes)}. For one that has yet to join, add --ahead")


@dataclass(slots=True, kw_only=True)
class Releases:
    """Commands the jobs that a released node was evicted from, one command at a time and job. Workers of elastic jobs that
    could not be replaced there can run again: the planner assigns them."""

    state: EngineState
    ledger: Ledger
    clock: Clock
    background: BackgroundActions
    live: LivePlanner

    def ask(self, node: str, person: str) -> list[str]:
        """Recorded at once; returns the jobs that will be commanded. Raises ControlError for a node that is not cordoned."""
        now = self.clock.now()
        jobs = [job for job in self.state.jobs.values() if job.layout is not None and node in job.layout.excluded]
        out = {cordon.node for cordon in self.ledger.cordoned()}
        back = self.live.workers_repaired(node)
        if not jobs and node not in out and not back:
            raise ControlError(f"node {node!r} is not cordoned; cordoned now: {', '.join(sorted(out)) or 'none'}; and no elastic job lacks a worker there")
        self.ledger.release(node, person, now)
        for job in jobs:
            target = Target(job=job.name, epoch=0, basis=job.basis, exclude=(node,))
            plan = Plan(
                id=digest_of("release", node, person, job.name, now), incident="", action="release", targets=(target,),
                made=now, expires=now + RELEASE_EXPIRES_S, severity=Severity.INFO, reason=f"{person} released {node}",
            )  # fmt: skip
            self.background.add(plan)
        return [*(job.name for job in jobs), *(job for job in back if job not in {other.name for other in jobs})]


def _check(seconds: float, reason: str, *, anything: bool, what: str) -> None:
    if not anything:
        raise ControlError(f"name {what}; '*' stands for all")
    if seconds <= 0:
        raise ControlError("give a duration, e.g. --for 2h")
    if not reason.strip():
        raise ControlError('give a reason, e.g. --reason "benchmark": the operator on call will read it')


def _named(name: str, known: Iterable[Suppression], how: str) -> Suppression:
    """That of this id, or of one that begins so."""
    suppressions = list(known)
    found = [suppression for suppression in suppressions if name and suppression.id.startswith(name)]
    if len(found) != 1:
        ids = _some(suppression.id for suppression in suppressions)
        raise ControlError(f"{'nothing' if not found else len(found)} of the id {name!r} {how}; there are: {ids}")
    return found[0]


def _some(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return (", ".join(every[:SHOWN]) + more) or "none"
