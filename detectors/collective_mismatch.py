"""Workers that called a collective otherwise than their group while the job stands in it: another operation, size, type or order. It is the program's fault, and no machine's."""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import msgspec

from eagle_eye.activity.collective_calls import LARGEST_NUMBER, Call, CallRing
from eagle_eye.activity.differing_calls import CallGroup, CallMismatch, CallSide, differing_calls
from eagle_eye.activity.last_collective import calls_told
from eagle_eye.config import StallConfig
from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import Seconds, Share
from eagle_eye.types import Claim, Entity, Event, Evidence, Kind

from .features.active_claims import ActiveClaims, ends_epoch, epoch_over

KIND = "collective.mismatch"
STANDS = "mismatch stands"
"""Status of the evidence once all workers have stood for long enough: until then it informs, for a job that goes on was not harmed by it."""
WORKERS_NAMED = 4
GONE = frozenset({"resumed", "worker.finished", "worker.excluded", "exit"})
"""Events after which a worker does not stand in its collective any more."""


class _Standing(NamedTuple):
    """Where a worker stands, as it told."""

    group: str
    number: int
    waits: bool
    calls: dict[int, Call]
    size: int
    """Of the group; 0: not told."""
    since: float
    """When it first told that it waits in that collective."""


class _Found(NamedTuple):
    evidence: tuple[Evidence, ...]
    at: bool
    """All of the group wait in that very collective."""


@dataclass
class CollectiveMismatch:
    """Claims collective.mismatch of a worker that differs from more than half of its group, else of the job; both sides are in its evidence.

    What the workers that stand passed to their collectives comes with their `stall` events, from torch's flight recorder. Of a group whose size it does not
    tell, more than half of the job's workers have to agree.
    """

    needs_job: ClassVar[bool] = True
    stall: StallConfig = field(default_factory=StallConfig)
    """Section [stall]; set by the server."""
    proof_s: Seconds = 5.0
    """All workers have stood for so long where all of the group wait in the very collective that they called differently, for it can never end; else for `stall.standing_s`."""
    score: Share = 0.9
    """Score of the claim: what was passed is recorded, not inferred."""
    _over: int = field(default=-1, init=False, repr=False)
    """The newest epoch that is over."""
    _told: dict[str, _Standing] = field(default_factory=dict, init=False, repr=False)
    """By worker."""
    _found: dict[Entity, _Found] = field(default_factory=dict, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        changed = False
        for event in frame.events:
            if why := ends_epoch(event):
                self._over = max(self._over, epoch_over(event))
                self._told.clear()
                self._found.clear()
                yield from self._claims.withdraw_all(event.time, why)
            elif event.name == "stall" and integer_attribute(event, "epoch") > self._over:
                changed |= self._take(event)
            elif event.name in GONE:
                changed |= self._told.pop(event.entity.name, None) is not None
        if changed:
            self._found = self._compare(frame)
            for entity, kind in list(self._claims.open):
                if entity not in self._found:
                    yield from self._claims.withdraw(entity, kind, frame.time, "its workers are not in it any more")
        for entity, found in self._found.items():
            yield from self._claims.report(self._claim(entity, found, frame))

    def _take(self, event: Event) -> bool:
        """Whether it tells something new. Where its recorder does not answer for once, what it said holds."""
        if not event.attributes.get("collective") and event.entity.name in self._told:
            return False
        calls = {number: call for number, call in calls_told(event.attributes.get("collective_calls", "")).items() if 0 <= number <= LARGEST_NUMBER}
        told = _Standing(event.attributes.get("collective_group", ""), integer_attribute(event, "collective_number"), event.attributes.get("collective_pending") == "1", calls, max(0, integer_attribute(event, "collective_size")), event.time)
        before = self._told.get(event.entity.name)
        if before is not None and (before.group, before.number, before.waits) == (told.group, told.number, told.waits):
            told = told._replace(since=before.since)
        self._told[event.entity.name] = told
        return before != told

    def _compare(self, frame: Frame) -> dict[Entity, _Found]:
        """Who differs → evidence; nobody while a worker is in no collective: the others may wait for that one."""
        found: dict[Entity, _Found] = {}
        if not all(worker in self._told and self._told[worker].waits for worker in self._workers(frame)):
            return found
        for group in sorted({each.group for each in self._told.values() if each.calls}):
            standing = {worker: each.calls for worker, each in sorted(self._told.items()) if each.group == group and each.calls}
            names, every = list(standing), {call.number: call for calls in standing.values() for call in calls.values()}
            sizes = {self._told[worker].size for worker in names}
            size = max(len(self._workers(frame)) if 0 in sizes else max(sizes), len(names))
            for mismatch in differing_calls(CallGroup(group, "", size, {place: _ring(calls) for place, calls in enumerate(standing.values())}), every):
                for entity in [Entity(kind=Kind.WORKER, name=names[place]) for place in mismatch.ranks] or [Entity(kind=Kind.JOB, name=frame.job)]:
                    found.setdefault(entity, _Found(_evidence(mismatch, names), all(self._told[worker].number == mismatch.number for worker in names)))
        return found

    def _claim(self, entity: Entity, found: _Found, frame: Frame) -> Claim:
        before = self._claims.open.get((entity, KIND))
        waited_s = min((frame.time - self._told[worker].since for worker in self._workers(frame)), default=0.0)
        stands = waited_s >= (min(self.proof_s, self.stall.standing_s) if found.at else self.stall.standing_s) or (before is not None and before.evidence[0].status == STANDS)
        first = msgspec.structs.replace(found.evidence[0], status=STANDS) if stands else found.evidence[0]
        return Claim(entity=entity, kind=KIND, score=self.score, since=before.since if before else frame.time, evidence=(first, *found.evidence[1:]))

    def _workers(self, frame: Frame) -> tuple[str, ...]:
        return frame.layout.workers if frame.layout is not None else tuple(self._told)


def _ring(calls: Mapping[int, Call]) -> CallRing:
    return CallRing(array("Q", sorted(number << 32 | call.number for number, call in calls.items())))


def _evidence(found: CallMismatch, names: list[str]) -> tuple[Evidence, ...]:
    what = "another order of collectives from" if found.kind == "order" else f"another {found.kind} in collective"
    first = Evidence(text=f"{what} {found.number} of group {found.group}: the program called it differently, no machine is at fault", metric="collective", value=float(found.number))
    return first, *(Evidence(text=_side(side, names)) for side in found.sides)


def _side(side: CallSide, names: list[str]) -> str:
    named = ", ".join(names[place] for place in side.ranks[:WORKERS_NAMED])
    more = f" and {len(side.ranks) - WORKERS_NAMED} more" if len(side.ranks) > WORKERS_NAMED else ""
    return f"{named}{more}: {side.call}"
