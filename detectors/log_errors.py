"""Errors in the output of workers: what they printed of CUDA, NCCL, torch, storage, memory or the scheduler.

It informs: a line in a log is no proof, and who printed it may only have suffered from another. Beside an incident of the same
worker it is a consequence that says more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import Seconds
from eagle_eye.types import Claim, Entity, Event, Evidence, Kind

from .features.active_claims import ActiveClaims, ends_epoch, epoch_over

KIND = "log.error"
_SCORE = 0.4
_MOST_EVIDENCE = 4
"""The first lines say most: what follows is a cascade."""


@dataclass
class LogErrors:
    """Claims log.error of the worker, or of the node for the log of another program."""

    withdraw_after_s: Seconds = 600.0
    """Withdrawn so many seconds after the last line; a worker's with its epoch. A line of an epoch that is over when it is read is none."""
    _over: int = field(default=-1, init=False, repr=False)
    """The newest epoch that is over."""
    _newest: dict[Entity, float] = field(default_factory=dict, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == "log.error":
                yield from self._logged(event)
            elif why := ends_epoch(event):
                self._over = max(self._over, epoch_over(event))
                yield from self._end_epoch(event.time, why)
        if frame.tick:
            yield from self._forget(frame.time)

    def _logged(self, event: Event) -> Iterator[Claim]:
        if 0 <= integer_attribute(event, "epoch") <= self._over:
            return  # the job has gone on: an incident of it would take in the next fault
        self._newest[event.entity] = event.time
        before = self._claims.open.get((event.entity, KIND))
        evidence = before.evidence if before else ()
        if len(evidence) < _MOST_EVIDENCE:
            evidence = (*evidence, Evidence(text=_words(event), event=event.id))
        since = before.since if before else event.time
        yield from self._claims.report(Claim(entity=event.entity, kind=KIND, score=_SCORE, since=since, evidence=evidence))

    def _end_epoch(self, time: float, why: str) -> Iterator[Claim]:
        for entity in [entity for entity in self._newest if entity.kind is Kind.WORKER]:
            yield from self._end(entity, time, why)

    def _forget(self, now: float) -> Iterator[Claim]:
        for entity in [entity for entity, newest in self._newest.items() if now - newest > self.withdraw_after_s]:
            yield from self._end(entity, now, f"no further line for {self.withdraw_after_s:.0f} s")

    def _end(self, entity: Entity, time: float, why: str) -> Iterator[Claim]:
        self._newest.pop(entity, None)
        yield from self._claims.withdraw(entity, KIND, time, why)


def _words(event: Event) -> str:
    attributes = event.attributes
    rank = f" (rank {attributes['rank']})" if attributes.get("rank") else ""
    advice = f"; remedy: {attributes['advice']}" if attributes.get("advice") else ""
    return f"log of {event.entity.name}{rank}: {attributes.get('component', '')} {attributes.get('code', '').replace('_', ' ')}: {event.message}{advice}"
