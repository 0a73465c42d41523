"""Unexpected end of a worker process: a signal, or an exit code other than 0."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.error_statuses import ErrorStatus
from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import CountOrNone, Delay
from eagle_eye.types import Claim, Event, Evidence

from .features.active_claims import ends_epoch, epoch_over
from .features.epoch_claims import EpochClaims
from .features.exit_status import status_of_exit

OWN_CAUSES = ("killed", "out of memory")
"""Statuses of an end that follows from no other worker's."""


@dataclass
class Exits:
    """Claims worker.exited, one for each `exit` event of a launcher or agent; exit code 0 is a normal end.

    Withdrawn when a new epoch starts (a symptom a little later): then the worker runs again or is no longer part of the job. An exit that arrives after that is
    claimed and withdrawn at once, unless it was told or follows from what was told of that epoch; a symptom explains nothing.
    """

    lines: CountOrNone = 5
    """So many last lines of the worker's output are kept as evidence."""
    symptoms_stay_s: Delay = 10.0
    """What a healthy worker also shows when a peer dies stays for so long after the next epoch began: a lost node is found later."""
    _over: int = field(default=-1, init=False, repr=False)
    """The newest epoch that is over."""
    _explained: deque[int] = field(default_factory=lambda: deque(maxlen=64), init=False, repr=False)
    """Epochs of which an exit was claimed that is no symptom: the others followed from it."""
    _told: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=64), init=False, repr=False)
    """(worker, epoch) of the exits that were claimed."""
    _raised: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=64), init=False, repr=False)
    """(worker, epoch) of the last exceptions: each is a finding of its own, and tells why its worker has ended."""
    _claims: EpochClaims = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._claims = EpochClaims(self.symptoms_stay_s)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == "exception":
                self._raised.append((event.entity.name, integer_attribute(event, "epoch")))
            elif event.name == "exit":
                yield from self._exited(event)
            elif why := ends_epoch(event):
                self._over = max(self._over, epoch_over(event))
                yield from self._claims.end_epoch(event, why)
        yield from self._claims.expire(frame.time)

    def _exited(self, event: Event) -> Iterator[Claim]:
        code = integer_attribute(event, "code")
        signal = event.attributes.get("signal", "")
        epoch = integer_attribute(event, "epoch")
        late = 0 <= epoch <= self._over
        status = status_of_exit(event)
        if (code == 0 and not signal) or event.attributes.get("expected") == "1" or (late and self._is_known(event, epoch, status)):
            return
        how = f"was ended by {signal}" if signal else f"exited with code {event.attributes.get('code') or 'unknown'}"
        proof = Evidence(
            text=f"worker {event.entity.name} {how}{_where(event)}{_why(event)}",
            event=event.id,
            metric="exit_code",
            value=float(code),
            status=status.name,
        )
        last = event.attributes.get("last_lines", "").strip().splitlines()[-self.lines :] if self.lines else []
        words = tuple(Evidence(text=f"its last words: {line.strip()}", event=event.id) for line in last)
        claim = Claim(
            entity=event.entity, kind="worker.exited", score=1.0, since=event.time, evidence=(proof, *words)
        )
        self._told.append((event.entity.name, epoch))
        if not status.symptom:
            self._explained.append(epoch)
        yield from self._claims.report(claim, epoch)
        if late:
            yield from self._claims.withdraw(event.entity, "worker.exited", event.time, f"epoch {epoch} was over when it was reported")


    def _is_known(self, event: Event, epoch: int, status: ErrorStatus) -> bool:
        """Of an epoch that is over: it was told, or it followed from what was. Who was ended from outside followed from nothing."""
        own = (event.entity.name, epoch)
        if own in self._raised or own in self._told:
            return True
        if status.symptom:
            return any(told == epoch for _, told in self._told)
        return epoch in self._explained and status.name not in OWN_CAUSES


def _where(event: Event) -> str:
    rank, step = event.attributes.get("rank", ""), event.attributes.get("step", "")
    parts = [f"rank {rank}" if rank else "", f"in step {step}" if step else ""]
    known = ", ".join(part for part in parts if part)
    return f" ({known})" if known else ""


def _why(event: Event) -> str:
    """What the launcher found out about it."""
    reason = event.attributes.get("reason", "")
    return f": {reason}" if reason else ""
