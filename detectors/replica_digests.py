"""Silent corruption: replicas that held the same parameters do so no more.

Data-parallel workers apply the same gradients to the same parameters, so behind each step they hold the same bits. Workers that do tell a digest of them now and then
(eagle_eye/training/replica_digest.py). Who are replicas of one another is seen, not declared: those whose digests were equal several times in succession; shards differ, and so
do replicas that the script lets drift apart. They are judged by the steps at which all of them told, so that one that tells seldom or no more hides nobody. Where most of them still agree, those that do not are named: a bit was turned in their memory, or their device computed wrongly.
Half against half names nobody; a step that is run again may (step_replays.py).

The digests of the gradients of the same step, behind the exchange and before the optimizer has written, say where: what differs in them was sent or read wrongly, for the exchange gives all the same
whatever one has put in. Alone they accuse nobody: gradients that differ while the parameters behind them agree are not what those were updated by, as with updates that are averaged later.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count
from eagle_eye.types import Claim, Entity, Evidence, Kind, Step

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps
from .features.digest_rows import DigestRows, PartedReplicas, digest_of_most
from .features.gpu_of_worker import GpuOfWorker

KIND = "replica.differs"
VALUE, OF_GRADIENTS = "replica_digest", "gradient_digest"
SINCE, GRADIENTS = "differs_since_step", "gradients_differ"
TOLD = 64
"""Workers that are named, at most."""


@dataclass
class ReplicaDigests:
    """Claims replica.differs of a worker, or of the job where it is not seen whose parameters are wrong; until the next epoch, which loads them anew."""

    needs_job: ClassVar[bool] = True
    agreed: Count = 3
    """Digests in succession that were equal: those workers are replicas."""
    differing: Count = 2
    """Digests in succession in which one has to differ then."""
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _epoch: int = field(default=-1, init=False, repr=False)
    _workers: tuple[str, ...] = field(default=(), init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)
    _gpus: GpuOfWorker = field(default_factory=GpuOfWorker, init=False, repr=False)

    def __post_init__(self) -> None:
        self._parameters, self._gradients = DigestRows(self.agreed, self.differing), DigestRows(self.agreed, self.differing)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._workers = ()
            yield from self._claims.withdraw_all(event.time, why)
        for step in self._steps.of(frame):
            yield from self._take(step, frame)

    def _take(self, step: Step, frame: Frame) -> Iterator[Claim]:
        parameters, gradients = step.values.get(VALUE), step.values.get(OF_GRADIENTS)
        if parameters is None and gradients is None:
            return
        if step.epoch != self._epoch or step.workers != self._workers:
            self._epoch, self._workers = step.epoch, step.workers
            self._parameters.clear()
            self._gradients.clear()
        if gradients is not None:
            self._gradients.add(step, gradients.astype(np.float32))
        if parameters is not None and self._parameters.add(step, parameters.astype(np.float32)):
            for parted in self._parameters.parted():
                yield from self._tell(parted, frame)

    def _tell(self, parted: PartedReplicas, frame: Frame) -> Iterator[Claim]:
        since = f"since a step from {parted.before.number + 1} to {parted.now.number}"
        if not len(parted.odd):
            text = f"the parameters of {len(parted.group)} replicas, which were the same, are no more, {since}; it is not seen which of them are right"
            yield from self._claim(Entity(kind=Kind.JOB, name=frame.job), text, parted, -1, ())
        others = len(parted.group) - len(parted.odd)
        many = (Evidence(text=f"so it is with {len(parted.odd)} of these replicas at once, of which {TOLD} are named"),) if len(parted.odd) > TOLD else ()
        for place in parted.odd.tolist():
            worker = self._workers[place]
            entity = Entity(kind=Kind.WORKER, name=worker)
            if len(self._claims.open) >= TOLD:
                return
            if (entity, KIND) in self._claims:
                continue
            text = f"the parameters of worker {worker} are not those of the {others} others any more that hold the same, {since}: they were changed in its memory, or it computed wrongly"
            yield from self._claim(entity, text, parted, place, (*self._gpus.evidence(worker, frame.layout), *many))

    def _claim(self, entity: Entity, text: str, parted: PartedReplicas, place: int, more: tuple[Evidence, ...]) -> Iterator[Claim]:
        proof = Evidence(text=text, metric=SINCE, value=float(parted.before.number + 1))
        evidence = (proof, *self._of_gradients(parted, place), *more)
        yield from self._claims.report(Claim(entity=entity, kind=KIND, score=0.9, since=parted.now.end, evidence=evidence), revise=False)

    def _of_gradients(self, parted: PartedReplicas, place: int) -> Iterator[Evidence]:
        """What they say of the first step behind which the parameters differ: where `place`, or -1 one of them, parted from the others. Nothing where one of them has not told."""
        row = self._gradients.at(parted.now.number)
        if row is None or not np.isfinite(row[parted.group]).all():
            return
        of_group, most = row[parted.group], digest_of_most(row[parted.group])
        differ = len(np.unique(of_group)) > 1 if place < 0 else row[place] != most
        whose = "its" if place >= 0 else "their"
        if differ:
            text = f"in step {parted.now.number} {whose} gradients behind the exchange differed, too, before the optimizer had written: they were sent or read wrongly (the interconnect, or memory)"
        else:
            text = (
                f"in step {parted.now.number} the gradients behind the exchange were the same: the parameters were changed by the optimizer or in memory, in that step or in one from {parted.before.number + 1} on, "
                "or by an exchange of one of those before"
            )
        yield Evidence(text=text, metric=GRADIENTS, value=float(differ))
