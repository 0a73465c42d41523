"""What a scheduler says of a job's nodes. A notice and a node's state inform. What ends after a notice was ended by the scheduler, and its node is not to blame.

A notice explains an end from a moment before it began until its deadline, and a little longer; without a deadline for `undated_s`. One that passes without an
end explains nothing afterwards.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from eagle_eye.event_attributes import float_attribute, integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import Delay, Seconds
from eagle_eye.topology import node_of_worker
from eagle_eye.types import Claim, Entity, Event, Evidence, Kind

from .features.active_claims import ActiveClaims
from .features.exit_status import status_of_exit

NOTICE, WITHDRAWN, STATE = "scheduler.preemption", "scheduler.preemption_withdrawn", "scheduler.node_state"
OF_AGENTS = frozenset({NOTICE, WITHDRAWN, STATE})
OF_NODE, OF_JOB = "node.preempted", "job.preempted"
LONGEST_S = 86_400.0
"""A deadline that is further away is no preemption."""
CLOCKS_S = 5.0
"""An end that seems to have come so long before the notice began: clocks differ."""
_SCORE, _SURE = 0.5, 0.95
_MOST_NOTICES = 8
"""Of one entity; further ones are dropped."""
ENTITIES_KEPT = 16_384


class _Notice(NamedTuple):
    event: Event
    began: float
    until: float
    """When it explains nothing any more."""


class _End(NamedTuple):
    """Something that ended, or cannot be reached any more."""

    node: str
    time: float
    proof: Evidence


@dataclass
class SchedulerNotices:
    """Claims scheduler.preemption and scheduler.node_state, which inform, and node.preempted or job.preempted once something ends after a notice."""

    late_s: Delay = 60.0
    """An end so long after the deadline still follows from the notice."""
    undated_s: Seconds = 900.0
    """A notice without a deadline explains ends for so long."""
    unread_s: Delay = 30.0
    """A notice may be read so long after what it explains: agents ask from time to time."""
    stays_s: Delay = 30.0
    """A preemption that was claimed is over so long after the next epoch began: a lost node is found later, and is to be explained by it."""
    _notices: dict[Entity, dict[str, _Notice]] = field(default_factory=dict, init=False, repr=False)
    """Entity → subject and reason → the newest notice."""
    _states: dict[Entity, dict[str, Evidence]] = field(default_factory=dict, init=False, repr=False)
    """Node → scheduler → its state, out of the ordinary."""
    _ends: deque[_End] = field(default_factory=lambda: deque(maxlen=256), init=False, repr=False)
    """The newest ends."""
    _epoch_at: float = field(default=float("-inf"), init=False, repr=False)
    """When the newest epoch began."""
    _ending_at: float | None = field(default=None, init=False, repr=False)
    """When what was claimed of an epoch that is over is withdrawn."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name in OF_AGENTS:
                yield from self._told(event)
            elif event.name == "epoch.started":
                self._epoch_at = frame.time
                self._ending_at = frame.time + self.stays_s
            elif event.name in ("job.finished", "job.failed"):
                yield from self._job_over(event.time, f"the job has {event.name.removeprefix('job.')}")
            elif event.name == "session.opened" and event.attributes.get("role") == "launcher":
                yield from self._claims.withdraw(event.entity, OF_NODE, event.time, "its launcher is back")
            elif (end := _end_in(event)) is not None:
                yield from self._ended(end)
        if frame.tick:
            yield from self._expire(frame.time)

    # --- what is told

    def _told(self, event: Event) -> Iterator[Claim]:
        """An agent speaks for its own node, and for the job as a whole."""
        if event.entity.name != (event.job if event.entity.kind is Kind.JOB else event.node):
            return
        if event.name == NOTICE:
            yield from self._noticed(event)
        elif event.name == WITHDRAWN:
            yield from self._drop(event.entity, _key(event), event.time, "the scheduler has called it off")
        else:
            yield from self._state(event)

    def _noticed(self, event: Event) -> Iterator[Claim]:
        entity, key = event.entity, _key(event)
        known = self._notices.get(entity, {})
        if (key not in known and len(known) >= _MOST_NOTICES) or (not known and len(self._notices) >= ENTITIES_KEPT):
            return
        notice = self._dated(event)
        if notice.until < event.time:
            return
        self._notices.setdefault(entity, {})[key] = notice
        yield from self._report_notices(entity)
        for end in [end for end in self._ends if event.time - end.time <= self.unread_s]:
            yield from self._ended(end)

    def _dated(self, event: Event) -> _Notice:
        """Its times, as far as they can be true."""
        told, deadline = float_attribute(event, "began"), float_attribute(event, "deadline")
        began = told if abs(event.time - told) <= LONGEST_S else event.time
        until = deadline + self.late_s if 0 < deadline <= event.time + LONGEST_S else event.time + self.undated_s
        return _Notice(event, began, until)

    def _report_notices(self, entity: Entity) -> Iterator[Claim]:
        notices = self._notices[entity].values()
        evidence = tuple(_evidence(notice.event) for notice in notices)
        yield from self._claims.report(Claim(entity=entity, kind=NOTICE, score=_SCORE, since=min(each.event.time for each in notices), evidence=evidence))

    def _drop(self, entity: Entity, key: str, time: float, why: str) -> Iterator[Claim]:
        notices = self._notices.get(entity, {})
        if notices.pop(key, None) is None:
            return
        if notices:
            yield from self._report_notices(entity)
        else:
            del self._notices[entity]
            yield from self._claims.withdraw(entity, NOTICE, time, why)

    def _state(self, event: Event) -> Iterator[Claim]:
        entity, scheduler, states = event.entity, event.attributes.get("scheduler", ""), event.attributes.get("states", "")
        known = self._states.get(entity, {})
        if states and (known or len(self._states) < ENTITIES_KEPT):
            reason = event.attributes.get("reason", "")
            text = f"{scheduler} says of {entity.name}: {states.replace(',', ', ')}{f' ({reason})' if reason else ''}"
            known = dict(list({**known, scheduler: Evidence(text=text, event=event.id)}.items())[:_MOST_NOTICES])
            self._states[entity] = known
            before = self._claims.open.get((entity, STATE))
            since = before.since if before else event.time
            yield from self._claims.report(Claim(entity=entity, kind=STATE, score=_SCORE, since=since, evidence=tuple(known.values())))
        elif known.pop(scheduler, None) is not None and not known:
            del self._states[entity]
            yield from self._claims.withdraw(entity, STATE, event.time, "it takes work again")

    # --- what ended

    def _ended(self, end: _End) -> Iterator[Claim]:
        """Claim the preemption that explains it: of the node, else of the whole job."""
        if end not in self._ends:
            self._ends.append(end)
        of_node = Entity(kind=Kind.NODE, name=end.node)
        for entity in (of_node, *(entity for entity in self._notices if entity.kind is Kind.JOB)):
            notice = next((each for each in self._notices.get(entity, {}).values() if each.began - CLOCKS_S <= end.time <= each.until), None)
            if notice is not None:
                kind = OF_NODE if entity == of_node else OF_JOB
                self._ending_at = end.time + self.stays_s if end.time <= self._epoch_at + self.stays_s else None  # sessions are missed after the others have gone on
                claim = Claim(entity=entity, kind=kind, score=_SURE, since=end.time, evidence=(_evidence(notice.event), end.proof))
                yield from self._claims.report(claim, revise=False)
                return

    def _job_over(self, time: float, why: str) -> Iterator[Claim]:
        """Notices and states of the nodes hold on for whatever comes next; ends of this run explain nothing later."""
        self._ends.clear()
        yield from self._withdraw_preempted(time, why)

    def _withdraw_preempted(self, time: float, why: str) -> Iterator[Claim]:
        self._ending_at = None
        for entity, kind in list(self._claims.open):
            if kind in (OF_NODE, OF_JOB):
                yield from self._claims.withdraw(entity, kind, time, why)

    def _expire(self, now: float) -> Iterator[Claim]:
        if self._ending_at is not None and now > self._ending_at:
            yield from self._withdraw_preempted(now, "the job has gone on in its next epoch")
        for entity, notices in list(self._notices.items()):
            for key in [key for key, notice in notices.items() if now > notice.until]:
                yield from self._drop(entity, key, now, "its time is over")


def _end_in(event: Event) -> _End | None:
    """What a scheduler brings about: a worker that was ended from outside, a launcher whose session is gone. What broke by itself is none."""
    if event.name == "exit" and event.attributes.get("expected") != "1" and status_of_exit(event).name == "killed":
        how = event.attributes.get("signal") or f"code {integer_attribute(event, 'code')}"
        proof = Evidence(text=f"worker {event.entity.name} was ended by {how}", event=event.id)
        return _End(node_of_worker(event.entity.name), event.time, proof)
    if event.name == "peer.lost" or (event.name == "session.lost" and event.attributes.get("role") == "launcher"):
        return _End(event.entity.name, event.time, Evidence(text=f"the session of the launcher on {event.entity.name} is gone", event=event.id))
    return None


def _key(event: Event) -> str:
    return f"{event.attributes.get('subject', '')}: {event.attributes.get('reason', '')}"


def _evidence(event: Event) -> Evidence:
    attributes = event.attributes
    reason, detail = attributes.get("reason", "").replace("_", " "), attributes.get("detail", "")
    deadline = float_attribute(event, "deadline")
    left = f", {max(0.0, deadline - event.time):.0f} s after it was read" if deadline > 0 else ""
    text = f"{attributes.get('scheduler', 'the scheduler')} ends {attributes.get('subject', str(event.entity))}{left}: {reason}{f' ({detail})' if detail else ''}"
    return Evidence(text=text, event=event.id, metric="deadline_s" if deadline > 0 else "", value=deadline if deadline > 0 else None)
