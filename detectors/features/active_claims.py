"""What a detector claims now, so that it tells news only: a claim once, its revisions, and its end."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.types import Claim, Entity, Event, Evidence


@dataclass(slots=True)
class ActiveClaims:
    """The open claims of one detector by entity and kind.

    >>> from eagle_eye.types import Kind
    >>> node = Entity(kind=Kind.NODE, name="a")
    >>> proof = Evidence(text="its batches stopped")
    >>> claim = Claim(entity=node, kind="node.lost", score=1.0, since=5.0, evidence=(proof,))
    >>> standing = ActiveClaims()
    >>> len(list(standing.tell(claim))), len(list(standing.tell(claim)))
    (1, 0)
    >>> [claim.active for claim in standing.withdraw(node, "node.lost", 9.0, "it reports again")]
    [False]
    """

    claims: dict[tuple[Entity, str], Claim] = field(default_factory=dict)

    def tell(self, claim: Claim, *, again: bool = True) -> Iterator[Claim]:
        """Yield a claim that says something new; `again=False` tells each entity and kind once only."""
        key = (claim.entity, claim.kind)
        told = self.claims.get(key)
        if told is None or (again and (told.score, told.evidence) != (claim.score, claim.evidence)):
            self.claims[key] = claim
            yield claim

    def withdraw(self, entity: Entity, kind: str, time: float, why: str) -> Iterator[Claim]:
        """Yield the end of a claim, if it is open."""
        told = self.claims.pop((entity, kind), None)
        if told is not None:
            evidence = (*told.evidence, Evidence(text=f"over: {why}", metric="over", value=time))
            yield Claim(
                entity=entity, kind=kind, score=told.score, since=told.since, evidence=evidence, active=False
            )

    def withdraw_all(self, time: float, why: str) -> Iterator[Claim]:
        """Yield the end of every open claim."""
        for entity, kind in list(self.claims):
            yield from self.withdraw(entity, kind, time, why)

    def __contains__(self, key: tuple[Entity, str]) -> bool:
        return key in self.claims


def ends_epoch(event: Event) -> str:
    """Why what was claimed of the workers is over with this event, '' if it is not."""
    if event.name == "epoch.begun":
        return f"epoch {event.attributes.get('epoch', '?')} has begun"
    if event.name in ("job.finished", "job.failed"):
        return f"the job has {event.name.removeprefix('job.')}"
    return ""


def epoch_over(event: Event) -> int:
    """The newest epoch that is over with an event that ends one; -1 if the event does not tell."""
    epoch = integer_attribute(event, "epoch")
    return epoch - 1 if event.name == "epoch.begun" else epoch


def integer_attribute(event: Event, name: str) -> int:
    """A whole number among an event's attributes, -1 if it is missing or none."""
    try:
        return int(event.attributes.get(name, ""))
    except ValueError:
        return -1


def float_attribute(event: Event, name: str) -> float:
    """A number among an event's attributes, 0.0 if it is missing or none."""
    try:
        return float(event.attributes.get(name, ""))
    except ValueError:
        return 0.0
