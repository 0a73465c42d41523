"""A worker that ended with exit code 0 while the others still needed it: the program's doing, and no machine's."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from eagle_eye.config import StallConfig
from eagle_eye.error_statuses import ErrorStatus
from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import Delay
from eagle_eye.types import Claim, Event, Evidence, Kind

from .features.active_claims import ActiveClaims, ends_epoch
from .features.collective_ranks import waits_in_vain
from .features.exit_status import status_of_exception, status_of_exit

EPOCHS_KEPT = 2
"""The present epoch and the one before: what happened is told however late it arrives."""
RECONNECTED = ("broken", "stuck")
"""Why elastic workers met again: their connections broke, or they waited for one another, and nobody was found dead."""


@dataclass
class _EpochRecord:
    """What was seen of one epoch."""

    ended: dict[str, Event] = field(default_factory=dict)
    """Worker → its end with exit code 0."""
    cry: Event | None = None
    """The first that shows what also a healthy worker shows when a peer is gone."""
    criers: set[str] = field(default_factory=set)
    """All that have shown it."""
    broke: float = float("inf")
    """When something broke by itself: who cries after that need not cry for those that ended."""
    waits: dict[str, Event] = field(default_factory=dict)
    """Worker → the event that says that it waits for its peers."""


@dataclass
class EarlyEnds:
    """Claims worker.ended_early, once a peer of a worker that has ended with exit code 0 shows that it needed it.

    A peer shows it by a broken connection or a time-out, or all of them by waiting for `stall.standing_s`. Workers that end one after the
    other at the end of the training show nothing of that, or the last of them does, which most have left; nor does a job that goes on for
    steps without the one that has ended.
    """

    stall: StallConfig = field(default_factory=StallConfig)
    """Section [stall]; set by the server."""
    apart_s: Delay = 10.0
    """Where no step is known, a peer that breaks later than so many seconds after the end did not need who had ended."""
    early_s: Delay = 1.0
    """Two clocks differ: a peer may seem to break by so many seconds before the end that broke it."""
    _epoch: int = field(default=-1, init=False, repr=False)
    _epochs: dict[int, _EpochRecord] = field(default_factory=dict, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            yield from self._take(event)
        record = self._epochs.get(self._present)
        if frame.tick and frame.layout is not None and record is not None and record.waits:
            yield from self._judge_waiting(record, frame.layout.workers, frame.time)

    @property
    def _present(self) -> int:
        return max(self._epoch, *self._epochs, -1)

    # --- what is seen

    def _take(self, event: Event) -> Iterator[Claim]:
        if why := ends_epoch(event):
            yield from self._end_epoch(event, why)
            return
        epoch = integer_attribute(event, "epoch")
        record = self._record(epoch)
        if record is None:
            return
        if event.name == "worker.finished":
            record.ended[event.entity.name] = event
        elif event.name in ("exception", "exit"):
            _broke(record, event)
        elif event.name == "stall" and _awaits_peers(event):
            record.waits[event.entity.name] = event
        elif event.name in ("stall", "resumed"):
            record.waits.pop(event.entity.name, None)
        if event.name in ("worker.finished", "exception", "exit"):
            yield from self._judge_cry(epoch, record, event.time)

    def _record(self, epoch: int) -> _EpochRecord | None:
        """None for an epoch that is long over."""
        if epoch not in self._epochs:
            self._epochs[epoch] = _EpochRecord()
        self._epochs = {known: record for known, record in self._epochs.items() if known > self._present - EPOCHS_KEPT}
        return self._epochs.get(epoch)

    def _end_epoch(self, event: Event, why: str) -> Iterator[Claim]:
        epoch = integer_attribute(event, "epoch")
        before = self._epochs.get(epoch - 1)
        if before is not None and event.attributes.get("in_place") == "1" and event.attributes.get("reason") in RECONNECTED:
            before.cry = before.cry or event
            yield from self._judge_cry(epoch - 1, before, event.time)
        if event.name == "epoch.started":
            self._epoch = max(self._epoch, epoch)
        yield from self._claims.withdraw_all(event.time, why)

    # --- judging

    def _judge_cry(self, epoch: int, record: _EpochRecord, now: float) -> Iterator[Claim]:
        if record.cry is None:
            return
        if record.broke <= record.cry.time + self.early_s:
            if epoch >= self._epoch:
                yield from self._claims.withdraw_all(now, "something else broke")
            return
        ended = [end for name, end in record.ended.items() if name not in record.criers]
        if record.cry.entity.kind is Kind.WORKER and len(record.criers) < len(ended):
            return
        for end in ended:
            if self._needed(end, record.cry):
                yield from self._claim(end, 0.9, record.cry, _why_needed(record.cry))
        if epoch < self._epoch:
            yield from self._claims.withdraw_all(now, f"epoch {self._epoch} had begun when it was reported")

    def _needed(self, end: Event, cry: Event) -> bool:
        """The one that broke had come no further than one step beyond the end; by the clock, where no step is known."""
        steps = integer_attribute(end, "step"), integer_attribute(cry, "step")
        if cry.time < end.time - self.early_s:
            return False
        return steps[1] <= steps[0] + 1 if min(steps) >= 0 else cry.time <= end.time + self.apart_s

    def _judge_waiting(self, record: _EpochRecord, workers: Iterable[str], now: float) -> Iterator[Claim]:
        """All that are left wait for their peers, for so long that nobody can be on the way."""
        left = [record.waits.get(worker) for worker in workers if worker not in record.ended]
        waits = [event for event in left if event is not None]
        if record.broke <= now or not record.ended or not waits or len(waits) < len(left):
            return
        if not all(waits_in_vain(event, now, self.stall) for event in waits):
            return
        for end in record.ended.values():
            if all(integer_attribute(event, "step") <= integer_attribute(end, "step") + 1 or integer_attribute(end, "step") < 0 for event in waits):
                text = f"{len(waits)} others wait for their peers for more than {self.stall.standing_s:g} s, worker {waits[0].entity.name} among them"
                yield from self._claim(end, 0.8, waits[0], text)

    def _claim(self, end: Event, score: float, seen: Event, why: str) -> Iterator[Claim]:
        step = end.attributes.get("step", "")
        ended = Evidence(
            text=f"worker {end.entity.name} ended with exit code 0{f' in step {step}' if step else ''} while others still needed it",
            event=end.id, metric="exit_code", value=0.0,
        )  # fmt: skip
        proof = Evidence(text=why, event=seen.id)
        claim = Claim(entity=end.entity, kind="worker.ended_early", score=score, since=end.time, evidence=(ended, proof))
        yield from self._claims.report(claim, revise=False)


def _broke(record: _EpochRecord, event: Event) -> None:
    """A cry for a peer, or a fault of its own; an exit code without a word tells neither."""
    if event.attributes.get("expected") == "1":
        return
    status = _status(event)
    if status.symptom:
        record.cry = record.cry if record.cry is not None and record.cry.time <= event.time else event
        record.criers.add(event.entity.name)
    elif status.name != "exited abnormally":
        record.broke = min(record.broke, event.time)


def _status(event: Event) -> ErrorStatus:
    return status_of_exit(event) if event.name == "exit" else status_of_exception(event)


def _awaits_peers(event: Event) -> bool:
    activity = event.attributes.get("activity", "")
    return activity == "awaits peers" or (not activity and event.attributes.get("phase") == "communication")


def _why_needed(cry: Event) -> str:
    if cry.entity.kind is Kind.JOB:
        return f"the other workers had to meet again without it: {cry.message or cry.name}"
    return f"worker {cry.entity.name} needed it: {cry.message or cry.name}"
