"""The leader's side of the control channel: who is connected, who coordinates which job, to which half of a job an epoch is granted.

It writes `session.opened` and `session.lost` to the stream, but only once it is older than two lease times: a
leader that was elected just now has not received every session yet and must not report any as lost.
"""

import asyncio
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.errors import AccessDenied, ControlError, TemporaryError
from eagle_eye.ledger import JobRecord, Ledger
from eagle_eye.rpc.control_messages import (
    Body,
    Command,
    Decision,
    OperatorCommand,
    Peer,
    PendingPlansQuery,
    ReleaseNodeCommand,
)
from eagle_eye.types import Demand, Layout, Notice, Plan
from eagle_eye.types.entity import Name, Number
from remediation.launcher.event_log import EventLog, Write
from remediation.launcher.job_declaration import LOST

from .job_ownership import JobOwnership

log = logging.getLogger(__name__)

LONGEST_RETURN = 15.0
"""Session leases within which everybody must have come back to a new leader."""
MISSED_LEASES = 3.0
"""A node's agent may be seen to go so much later than its launcher, whose job has gone on without the node by then."""


def ignore_notice(_: Notice) -> None:
    """For a leader without operators."""


class OperatorApi(Protocol):
    """The part of the engine that operators call."""

    def declare_job(self, job: str, *, heal: str, budget_left: int, nodes_min: int = 1, demand: Demand | None = None) -> None: ...
    def decide(self, decision: Decision, approved: bool) -> Body: ...
    def release(self, node: str, person: str) -> Body: ...
    def status(self) -> Body: ...
    def order(self, order: OperatorCommand) -> Body: ...
    def pending_plans(self, question: PendingPlansQuery) -> Body: ...


class _Gone(NamedTuple):
    """Whose session ended, why, and in which jobs that counts."""

    peer: Peer
    reason: str
    jobs: frozenset[str]


SendCommand = Callable[[Peer, Command, float], Any]
"""ControlServer.command."""


class Leader:
    """Handler of the control server; `term` fences everything it says."""

    def __init__(
        self, *, term: int, lease_s: float, ledger: Ledger, operator: OperatorApi, write: Write, clock: Clock, incarnation: str, node: str = "server",
        notify: Callable[[Notice], None] = ignore_notice,
    ) -> None:  # fmt: skip
        """`notify`: takes what operators must hear; returns at once."""
        self.term = term
        self._lease_s = lease_s
        self._ledger = ledger
        self._operator = operator
        self._write = write
        self._clock = clock
        self._incarnation = incarnation
        self._node = node
        self._began = self._came = clock.monotonic()
        """When this leader began, and when the last of those who were to come back did."""
        self._numbers = itertools.count(1)
        self._peers: dict[tuple[str, str, str], Peer] = {}
        self._jobs: dict[str, JobRecord] = ledger.jobs()
        self._inherited = set(self._jobs)
        """Jobs of the leader before: a launcher or agent of them that has not come back in time was lost between the two."""
        self._gone: dict[tuple[str, str, str], _Gone] = {}
        """Who went while this leader was too young to call it lost: it may come back."""
        self._missed: dict[tuple[str, str], float] = {}
        """(node, job) → monotonic time when the job went on without the node, since it was lost; until it takes part again."""
        self.ownership = JobOwnership(ledger, clock, notify, self._tell_job_of_refusal)
        for record in self._jobs.values():
            self.ownership.inherit(record.layout)

    @property
    def old_enough(self) -> bool:
        """True once everybody had two lease times to come back to this leader."""
        return self._clock.monotonic() - self._began >= 2 * self._lease_s

    @property
    def _still_coming(self) -> bool:
        """Thousands come back one after the other: as long as some do, none is late; but not for ever."""
        now = self._clock.monotonic()
        return now - self._came < self._lease_s and now - self._began < LONGEST_RETURN * self._lease_s

    def coordinator(self, job: str) -> Peer:
        """The launcher that commands go to. Raises TemporaryError while it has no session."""
        facts = self._jobs.get(job)
        if facts is None:
            raise TemporaryError(f"no coordinator of {job} has reported yet", delay=0.5)
        peer = self._peers.get(("launcher", facts.coordinated_by, job))
        if peer is None:
            raise TemporaryError(f"the coordinator of {job} on {facts.coordinated_by} has no session now", delay=0.5)
        return peer

    def facts(self, job: str) -> JobRecord | None:
        """What the job's coordinator reported last."""
        return self._jobs.get(job)

    @property
    def sessions(self) -> dict[str, int]:
        """Role of the peer → open sessions; any thread may ask."""
        return Counter(role for role, _, _ in list(self._peers))

    # --- sessions --------------------------------------------------------------------------------------------------

    def objection(self, peer: Peer) -> str:
        """Why it may have no session; '' if it may."""
        return self.ownership.session_objection(peer)

    def refused(self, peer: Peer, why: str) -> None:
        """It got no session."""
        self.ownership.tell_refused(peer, peer.job, "session.refused", why)

    def opened(self, peer: Peer) -> None:
        """A session began."""
        self._peers[peer.key] = peer
        self._gone.pop(peer.key, None)
        self._came = self._clock.monotonic()
        if self.old_enough:
            self._tell("session.opened", peer, f"the session of the {peer} began")

    def lost(self, peer: Peer, reason: str) -> None:
        """A session ended."""
        self._peers.pop(peer.key, None)
        if self.old_enough:
            self._tell("session.lost", peer, f"the session of the {peer} ended: {reason}")
        else:
            self._gone[peer.key] = _Gone(peer, reason, self._jobs_of(peer, late=True))
            log.info("the %s is gone, but this leader is too young to call it lost", peer)

    def settle(self) -> None:
        """Called now and then: once old enough, call those lost who did not come back, to this leader at all or after they went."""
        if not self.old_enough or self._still_coming:
            return
        for gone in self._gone.values():
            self._tell("session.lost", gone.peer, f"the session of the {gone.peer} ended: {gone.reason}", gone.jobs)
        for job in self._inherited:
            self._inherited_lost(job)
        self._gone.clear()
        self._inherited.clear()

    def _inherited_lost(self, job: str) -> None:
        for node in self._jobs[job].layout.nodes:
            for role, of in (("launcher", job), ("agent", "")):
                if (role, node, of) not in self._peers.keys() | self._gone.keys():
                    self._tell("session.lost", Peer(role=role, node=node, job=of), f"the {role} on {node} did not come back to the new leader")

    def _tell(self, name: str, peer: Peer, message: str, jobs: frozenset[str] = frozenset()) -> None:
        """In its jobs, and in `jobs`; in the record of the idle node where there are none."""
        for job in sorted(jobs | self._jobs_of(peer, late=name == "session.lost")) or [f"idle/{peer.node}"]:
            self._event_log(job).of_node(name, peer.node, message, {"role": peer.role, "incarnation": peer.incarnation})

    def _tell_job_of_refusal(self, job: str, peer: Peer, message: str, attributes: Mapping[str, str]) -> None:
        self._event_log(job).of_node("claim.refused", peer.node, message, attributes)

    def _event_log(self, job: str) -> EventLog:
        return EventLog(job, self._node, self._incarnation, self._clock, self._write, self._numbers)

    def _jobs_of(self, peer: Peer, *, late: bool) -> frozenset[str]:
        """A launcher's job; of an agent those that its node takes part in, and those that went on without it; `late`: that just did."""
        if peer.job:
            return frozenset([peer.job])
        since = self._clock.monotonic() - MISSED_LEASES * self._lease_s if late else -math.inf
        jobs = list(self._jobs.items())
        return frozenset(job for job, facts in jobs if peer.node in facts.layout.nodes or self._missed.get((peer.node, job), -math.inf) > since)

    def _note_missed(self, job: str, before: Layout, layout: Layout) -> None:
        if layout.reason == LOST and layout.epoch > before.epoch:
            self._missed.update(dict.fromkeys([(node, job) for node in set(before.nodes) - set(layout.nodes)], self._clock.monotonic()))
        for node in layout.nodes:
            self._missed.pop((node, job), None)

    # --- requests of launchers ---------------------------------------------------------------------------------------

    async def request(self, peer: Peer, kind: str, body: Body) -> Body:
        """coordinator_of, present, cordon_of, layout or grant; anything else is refused."""
        if kind == "coordinator_of":
            return self._coordinator_of(peer, _read(body, _JobQuestion).job)
        if kind == "present":
            return self._present(_read(body, _NodeQuestion).node, peer.job)
        if kind == "cordon_of":
            return await asyncio.to_thread(self._cordon_of, peer, _read(body, _NodeQuestion).node, _read(body, _JobQuestion).job)
        if kind == "layout":
            return await asyncio.to_thread(self._remember, peer, _read(body, _LayoutReport), _demand(body))
        if kind == "grant":
            return await asyncio.to_thread(self._grant, peer, _read(body, _GrantRequest))
        raise ControlError(f"the leader does not know the request {kind!r}; is the launcher of a newer version?")

    def _coordinator_of(self, peer: Peer, job: str) -> Body:
        if peer.role == "launcher" and peer.job != job:
            why = f"the {peer} may not ask for the coordinator of {job}"
            self.ownership.tell_refused(peer, job, "claim.refused", why)
            raise AccessDenied(why)
        facts = self._jobs.get(job)
        if facts is None:
            return {}
        if ("launcher", facts.coordinated_by, job) not in self._peers:
            return {"epoch": facts.layout.epoch}
        return {"address": facts.address, "node": facts.coordinated_by, "epoch": facts.layout.epoch}

    def _present(self, node: str, job: str) -> Body:
        """Whether anything of a node has a session here; `known` is False as long as this leader waits for the others to come back."""
        here = ("launcher", node, job) in self._peers or ("agent", node, "") in self._peers
        return {"present": here, "known": self.old_enough or here}

    def _cordon_of(self, peer: Peer, node: str, job: str) -> Body:
        """What keeps a node out of a job that starts there; a job's own evictions are in its layout, and end with a release.

        The job of a tenant that may use no certificate of the node has never run there: whatever its layouts named, it keeps nobody out.
        """
        if (peer.node, peer.job) != (node, job):
            why = f"the {peer} may not ask what keeps {node} out of {job}"
            self.ownership.tell_refused(peer, job, "claim.refused", why)
            raise AccessDenied(why)
        certificate = peer.caller.certificate
        cordons = [each for each in self._ledger.cordoned() if each.node == node and each.job != job]
        cordon = next((each for each in cordons if certificate is None or certificate.speaks_for(each.job)), None)
        if cordon is None:
            return {}
        known = cordon.job.partition("/")[0] == job.partition("/")[0]
        return {"job": cordon.job if known else "a job of another tenant", "reason": cordon.reason, "since": cordon.since}

    def _remember(self, peer: Peer, report: "_LayoutReport", demand: Demand | None) -> Body:
        layout = report.layout
        known = self._jobs.get(layout.job)
        self.ownership.check(peer, layout, layout.epoch, known.layout.epoch if known is not None else 0)
        if known is not None and known.layout.epoch > layout.epoch:
            raise ControlError(f"{layout.job} is at epoch {known.layout.epoch}; the {peer} reports the older {layout.epoch}")
        facts = JobRecord(
            layout=layout, address=peer.address, heal=report.heal, budget_left=report.budget_left, nodes_min=report.nodes_min, demand=demand,
            coordinator=peer.node,
        )  # fmt: skip
        self.ownership.declare(peer, layout)
        self._ledger.save_job(layout.job, layout, facts.address, facts.heal, facts.budget_left, facts.nodes_min, facts.demand, facts.coordinator)
        self._jobs[layout.job] = facts
        if known is not None:
            self._note_missed(layout.job, known.layout, layout)
        self._operator.declare_job(layout.job, heal=facts.heal, budget_left=facts.budget_left, nodes_min=facts.nodes_min, demand=facts.demand)
        return {}

    def _grant(self, peer: Peer, request: "_GrantRequest") -> Body:
        """The leader's voice where exactly half of the launchers are left: for one side only, and not for a living rival."""
        layout, epoch, missing = request.layout, request.epoch, request.missing
        known = self._jobs.get(layout.job)
        self.ownership.check(peer, layout, epoch, known.layout.epoch if known is not None else 0)
        alive = [node for node in missing if ("launcher", node, layout.job) in self._peers]
        if alive:
            return {"granted": False, "reason": f"{', '.join(alive)} still has a session to the leader"}
        if training := self._may_train(layout.job, missing):
            why = "they may train there, cut off from here; start its launcher again, or stop the job and start it anew"
            return {"granted": False, "reason": f"all workers of the last epoch are on {', '.join(training)}: {why}"}
        if not self.old_enough:
            return {"granted": False, "reason": "the leader has just begun and waits for the others to come back"}
        granted = self._ledger.grant_epoch(layout.job, epoch, layout, request.last)
        log.info("epoch %s of %s %s the %s", epoch, layout.job, "granted to" if granted else "refused to", peer)
        return {"granted": granted, "reason": "" if granted else f"epoch {epoch}, or one that others may train under, was granted to them"}

    def _may_train(self, job: str, missing: Sequence[str]) -> tuple[str, ...]:
        """Nodes that have all workers of the newest epoch, if all of them are missing: who asks cannot know that they have ended."""
        known = self._jobs.get(job)
        return known.layout.nodes if known is not None and set(known.layout.nodes) <= set(missing) else ()

    # --- the operator --------------------------------------------------------------------------------------------------

    async def decide(self, decision: Decision, approved: bool) -> Body:
        return await asyncio.to_thread(self._operator.decide, decision, approved)

    async def release(self, release: ReleaseNodeCommand) -> Body:
        return await asyncio.to_thread(self._operator.release, release.node, release.person)

    async def order(self, order: OperatorCommand) -> Body:
        return await asyncio.to_thread(self._operator.order, order)

    async def pending_plans(self, question: PendingPlansQuery) -> Body:
        return await asyncio.to_thread(self._operator.pending_plans, question)

    async def status(self) -> Body:
        body = await asyncio.to_thread(self._operator.status)
        return body | {"term": self.term, "sessions": [str(peer) for peer in self._peers.values()]}


class _JobQuestion(msgspec.Struct, frozen=True):
    """A question about a job."""

    job: Name


class _NodeQuestion(msgspec.Struct, frozen=True):
    """A question about a node."""

    node: Name


class _LayoutReport(msgspec.Struct, frozen=True):
    """What a coordinator reports of a new epoch; the demand of an elastic job stands beside it."""

    layout: Layout
    heal: Name = "none"
    budget_left: Number = 0
    nodes_min: Number = 1


class _GrantRequest(msgspec.Struct, frozen=True):
    """A side with exactly half of the launchers asks for the epoch."""

    layout: Layout
    epoch: Number
    missing: tuple[Name, ...]
    last: Number = 0
    """The last valid epoch that this side knows."""


_Asked = TypeVar("_Asked", _JobQuestion, _NodeQuestion, _LayoutReport, _GrantRequest)


def _read(body: Body, kind: type[_Asked]) -> _Asked:
    """Raises ControlError for a body that does not hold what is asked."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise ControlError(f"the leader cannot read the request: {error}; is the launcher of another version?") from None


def _demand(body: Body) -> Demand | None:
    """What an elastic job asks for; None for one that reports no worker counts. Raises ControlError."""
    if body.get("workers_per_node") is None:
        return None
    names = [name for name in ("declared", "workers_per_node", "weight", "workers_min") if name in body]
    try:
        return msgspec.convert({name: body[name] for name in names}, Demand)
    except msgspec.ValidationError as error:
        raise ControlError(f"the layout report asks for workers in words that are not understood ({error}); is the launcher of another version?") from error


class SessionCommander:
    """Brings the engine's commands, from any thread, to the coordinator of a job over its session."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bound: tuple[Leader, SendCommand] | None = None

    def bind(self, leader: Leader, command: SendCommand) -> None:
        """Whom to ask for coordinators, and what sends (ControlServer.command)."""
        self._bound = leader, command

    def command(
        self, job: str, action: str, arguments: dict[str, Any], *, plan: Plan, step: str, epoch: int, timeout: float
    ) -> dict[str, Any]:
        """Send and wait for the answer. Raises TemporaryError, PermanentError, Stale or ControlError."""
        if self._bound is None:
            raise TemporaryError("the control channel is not open yet", delay=0.5)
        leader, send = self._bound
        order = Command(action=action, job=job, leader_term=leader.term, epoch=epoch, plan=plan.id, step=step, arguments=arguments)
        future = asyncio.run_coroutine_threadsafe(send(leader.coordinator(job), order, timeout), self._loop)
        answer: dict[str, Any] = future.result(timeout + 1.0)
        return answer
