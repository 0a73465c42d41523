"""An uncaught exception of a worker, reported by the worker itself before its process dies, or of one of its threads, which it survives."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import CountOrNone, Delay, Share
from eagle_eye.training.storage_failure import size_text
from eagle_eye.types import Claim, Event, Evidence

from .features.active_claims import ends_epoch, epoch_over
from .features.epoch_claims import EpochClaims
from .features.exit_status import status_of_exception


@dataclass
class Exceptions:
    """The first exception of each worker in an epoch (worker.exception), named by the table of statuses; over when a new epoch begins.

    A symptom is over a little later. One that is told after its epoch is claimed and withdrawn at once if it is the first of it, and no symptom. An exception
    that ends a thread beside the main one (thread.exception) ends no worker: it informs, and is over after a while, too.
    """

    traceback_lines: CountOrNone = 3
    """Last lines of the traceback that are kept as evidence."""
    symptom_score: Share = 0.5
    """Score of what a healthy worker also sees when a peer dies, such as a connection reset."""
    symptoms_stay_s: Delay = 10.0
    """What a healthy worker also shows when a peer dies stays for so long after the next epoch began: a lost node is found later."""
    thread_s: Delay = 600.0
    """How long the exception of a thread is shown."""
    _over: int = field(default=-1, init=False, repr=False)
    """The newest epoch that is over."""
    _claimed: deque[int] = field(default_factory=lambda: deque(maxlen=64), init=False, repr=False)
    """Epochs of which an exception was claimed that is no symptom: the others followed from it."""
    _claims: EpochClaims = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._claims = EpochClaims(self.symptoms_stay_s)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == "exception":
                yield from self._raised(event, "worker.exception", f"worker {event.entity.name}")
            elif event.name == "thread.exception":
                yield from self._raised(event, "thread.exception", f"thread {event.attributes.get('thread', '')} of worker {event.entity.name}")
            elif why := ends_epoch(event):
                self._over = max(self._over, epoch_over(event))
                yield from self._claims.end_epoch(event, why)
        yield from self._claims.expire(frame.time)
        shown = (claim for claim in self._claims.open if claim.kind == "thread.exception")
        for claim in shown:
            if frame.time - claim.since > self.thread_s:
                yield from self._claims.withdraw(claim.entity, claim.kind, frame.time, "the worker has lived on without the thread")

    def _raised(self, event: Event, kind: str, who: str) -> Iterator[Claim]:
        epoch = integer_attribute(event, "epoch")
        late = 0 <= epoch <= self._over
        raised = f"{event.attributes.get('type', 'exception')}: {event.attributes.get('message', '')}"
        status = status_of_exception(event)
        if late and (status.symptom or epoch in self._claimed):  # it is what the fault of that epoch led to
            return
        step = event.attributes.get("step", "")
        proof = Evidence(
            text=f"{who} raised {raised[:300]}{f' in step {step}' if step else ''}",
            event=event.id,
            status=status.name,
        )
        kept = event.attributes.get("traceback", "").strip().splitlines()[-self.traceback_lines :]
        lines = tuple(Evidence(text=line.strip(), event=event.id) for line in kept if self.traceback_lines)
        claim = Claim(
            entity=event.entity,
            kind=kind,
            score=self.symptom_score if status.symptom else 1.0,
            since=event.time,
            evidence=(proof, *_reason(event), *_storage(event), *_frame(event), *_notes(event), *lines),
        )
        if not status.symptom:
            self._claimed.append(epoch)
        yield from self._claims.report(claim, epoch)
        if late:
            yield from self._claims.withdraw(event.entity, kind, event.time, f"epoch {epoch} was over when it was reported")


def _reason(event: Event) -> Iterator[Evidence]:
    """What the launcher found out about it."""
    if reason := event.attributes.get("reason", ""):
        yield Evidence(text=reason, event=event.id)


def _frame(event: Event) -> Iterator[Evidence]:
    """The innermost line of the user's own code: the end of the traceback may be all a library's."""
    if frame := event.attributes.get("frame", ""):
        yield Evidence(text=f"at {frame}", event=event.id)


def _notes(event: Event) -> Iterator[Evidence]:
    """What the code that it went through added, such as the micro-batch of an elastic step."""
    for note in event.attributes.get("notes", "").splitlines():
        yield Evidence(text=note, event=event.id)


def _storage(event: Event) -> Iterator[Evidence]:
    """Where storage refused a file, with which error, and how much room is left there."""
    if "errno" in event.attributes:
        path, free = event.attributes.get("path", ""), integer_attribute(event, "free_bytes")
        room = f"{size_text(free)} are free there" if free >= 0 else "the free space is unknown"
        text = f"{event.attributes['errno'] or 'refused'} at {path or 'a path that is not known'}: {room}"
        yield Evidence(text=text, event=event.id, metric="free_bytes", value=float(free) if free >= 0 else None)
