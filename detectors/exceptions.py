"""An uncaught exception of a worker, reported by the worker itself before its process dies."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.error_statuses import classify
from eagle_eye.frames import Frame
from eagle_eye.training.storage_failure import size_text
from eagle_eye.types import Claim, Event, Evidence

from .features.active_claims import ends_epoch, integer_attribute
from .features.epoch_claims import EpochClaims


@dataclass
class Exceptions:
    """The first exception of each worker in an epoch (worker.exception), named by the table of statuses.

    The claim is over when a new epoch begins; a symptom is a little later.
    """

    traceback_lines: int = 3
    """Last lines of the traceback that are kept as evidence."""
    symptom_score: float = 0.5
    """Score of what a healthy worker also sees when a peer dies, such as a connection reset."""
    symptoms_stay_s: float = 10.0
    """What a healthy worker also shows when a peer dies stays for so long after the next epoch began: a lost node is found later."""
    _epoch: int = field(default=-1, init=False, repr=False)
    _claims: EpochClaims = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._claims = EpochClaims(self.symptoms_stay_s)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == "exception":
                yield from self._raised(event)
            elif why := ends_epoch(event):
                self._epoch = max(self._epoch, integer_attribute(event, "epoch"))
                yield from self._claims.end_epoch(event, why)
        yield from self._claims.expire(frame.time)

    def _raised(self, event: Event) -> Iterator[Claim]:
        if 0 <= integer_attribute(event, "epoch") < self._epoch:
            return
        raised = f"{event.attributes.get('type', 'exception')}: {event.attributes.get('message', '')}"
        status = classify(raised)
        step = event.attributes.get("step", "")
        proof = Evidence(
            text=f"worker {event.entity.name} raised {raised[:300]}{f' in step {step}' if step else ''}",
            event=event.id,
            status=status.name,
        )
        kept = event.attributes.get("traceback", "").strip().splitlines()[-self.traceback_lines :]
        lines = tuple(Evidence(text=line.strip(), event=event.id) for line in kept if self.traceback_lines)
        claim = Claim(
            entity=event.entity,
            kind="worker.exception",
            score=self.symptom_score if status.symptom else 1.0,
            since=event.time,
            evidence=(proof, *_storage(event), *lines),
        )
        yield from self._claims.report(claim)


def _storage(event: Event) -> Iterator[Evidence]:
    """Where storage refused a file, with which error, and how much room is left there."""
    if "errno" in event.attributes:
        path, free = event.attributes.get("path", ""), integer_attribute(event, "free_bytes")
        room = f"{size_text(free)} are free there" if free >= 0 else "the free space is unknown"
        text = f"{event.attributes['errno'] or 'refused'} at {path or 'a path that is not known'}: {room}"
        yield Evidence(text=text, event=event.id, metric="free_bytes", value=float(free) if free >= 0 else None)
