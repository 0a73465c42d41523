"""Claims about workers of one epoch: over when the next one begins, symptoms a little later."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.error_statuses import BY_NAME
from eagle_eye.types import Claim, Entity, Event

from .active_claims import ActiveClaims, epoch_over

DECIDED = frozenset({"command", "join", "node released", "node returned", "rebalance", "resize"})
"""Reasons of an epoch that somebody wanted: its predecessor's connections broke because of that."""


@dataclass(slots=True)
class EpochClaims:
    """The open claims of one detector that a new epoch ends.

    A symptom (a peer's connection broke) outlives its epoch by `symptoms_stay_s`: what it is a symptom of may be found after the job has
    healed itself, as a lost node is, and is to explain it. Where the new epoch was wanted nothing is left to be found of the one before it.
    """

    symptoms_stay_s: float
    _claims: ActiveClaims = field(default_factory=ActiveClaims)
    _epochs: dict[tuple[Entity, str], int] = field(default_factory=dict)
    """Epoch that a claim is about, -1 if that is not known."""
    _ending: dict[tuple[Entity, str], tuple[float, str]] = field(default_factory=dict)
    """Symptoms of an epoch that is over: when and why it ended."""

    @property
    def open(self) -> tuple[Claim, ...]:
        """As they were reported."""
        return tuple(self._claims.open.values())

    def report(self, claim: Claim, epoch: int = -1) -> Iterator[Claim]:
        """Yield it unless it is open; one of the epoch before is withdrawn first. `epoch`: that it is about; -1: whichever runs now."""
        yield from self._end(claim.entity, claim.kind)
        self._epochs.setdefault((claim.entity, claim.kind), epoch)
        yield from self._claims.report(claim, revise=False)

    def withdraw(self, entity: Entity, kind: str, time: float, why: str) -> Iterator[Claim]:
        """Yield the withdrawal of a claim if it is open."""
        self._ending.pop((entity, kind), None)
        self._epochs.pop((entity, kind), None)
        yield from self._claims.withdraw(entity, kind, time, why)

    def end_epoch(self, event: Event, why: str) -> Iterator[Claim]:
        """Yield the withdrawals; those of symptoms are due later, unless the job is over.

        A worker that dies at once in a new epoch may be told of before the beginning of that epoch is: its claim stays.
        """
        over = epoch_over(event)
        for key, claim in list(self._claims.open.items()):
            if 0 <= over < self._epochs.get(key, -1):
                continue
            decided = event.attributes.get("reason") in DECIDED and key not in self._ending
            if event.name == "epoch.started" and not decided and _is_symptom(claim):
                self._ending.setdefault(key, (event.time, why))
            else:
                yield from self.withdraw(*key, event.time, why)

    def expire(self, now: float) -> Iterator[Claim]:
        """Yield the withdrawals of symptoms that are due."""
        for key, (time, _) in list(self._ending.items()):
            if now > time + self.symptoms_stay_s:
                yield from self._end(*key)

    def _end(self, entity: Entity, kind: str) -> Iterator[Claim]:
        if (entity, kind) in self._ending:
            time, why = self._ending[entity, kind]
            yield from self.withdraw(entity, kind, time, why)


def _is_symptom(claim: Claim) -> bool:
    return any(line.status in BY_NAME and BY_NAME[line.status].symptom for line in claim.evidence)
