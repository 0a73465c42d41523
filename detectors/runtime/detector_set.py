"""The detectors of one job: each evaluates every frame; one that fails does not affect the others."""

import copy
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from detectors.features.active_claims import ends_epoch, over
from eagle_eye.frames import Frame
from eagle_eye.protocols import Detector
from eagle_eye.types import Claim, Entity, Evidence, Finding, Kind, Mark
from eagle_eye.writable_text import words_of, writable

from .hang_watch import DetectorCall, HangWatch
from .open_findings import OpenFindings, detector_digest
from .tick_load import MOST

LONGEST_TEXT = 4_000
"""Characters of one line of evidence: a program's message may have millions."""
MOST_LINES = 256
LARGEST_REAL = 1e300
LONG_AGO = 6e10
"""Beyond these no reader takes a number or a time."""
MOST_CLAIMS = 100_000
"""Of one detector in one frame: one that claims for ever must not keep the others waiting."""
FAILURES = 3
"""A detector that raises so many times in a row is muted."""
NotifyOperator = Callable[[str, str], None]
"""(name of a notice, message)"""
_log = logging.getLogger(__name__)


@dataclass
class _Slot:
    """One detector of one job."""

    name: str
    detector: Detector
    digest: str
    every: int
    """It is asked at every so many ticks, and less often while ticks run over (tick_load.py)."""
    call: DetectorCall
    failures: int = 0

    @property
    def muted(self) -> bool:
        return self.failures >= FAILURES


class DetectorSet:
    """Fresh copies of all detectors for one job, and their open findings."""

    def __init__(self, job: str, prototypes: Sequence[tuple[str, Detector]], notify: NotifyOperator, watch: HangWatch | None = None) -> None:
        """`watch`: of the thread that evaluates."""
        self.findings = OpenFindings(job)
        self._job = job
        self._notify = notify
        self._prototypes = prototypes
        self._detectors: list[_Slot] | None = None
        """Made with the first frame: a name that nothing comes of costs nothing."""
        self._ticks = 0
        self._watch = watch or HangWatch()

    def evaluate(self, frame: Frame, mark: Mark) -> list[Finding]:
        """Run the detectors on a frame: opened, revised and withdrawn findings, in the order of the detectors."""
        if frame.tick:
            self._ticks += 1
        watch, stretch = self._watch, min(max(mark.stretch, 1), MOST)
        found = list(self._end_inherited(frame, mark)) if self.findings.inherited else []
        for slot in self._slots:
            due = not frame.tick or slot.every == 1 or self._ticks % (slot.every * stretch) == 0
            if slot.muted or not due:
                continue
            watch.count += 1
            watch.inside = slot.call
            claims = self._claims(slot, frame)
            watch.inside = None
            for claim in claims:
                finding = self.findings.take(slot.name, slot.digest, claim, mark)
                if finding is not None:
                    found.append(finding)
        return found

    def _end_inherited(self, frame: Frame, mark: Mark) -> Iterable[Finding]:
        """What no detector here knows of is over with the epoch of its worker; what is told in the same frame is a finding of its own."""
        yield from self.findings.withdraw_doubted(mark)
        for event in frame.events:
            if why := ends_epoch(event):
                yield from self.findings.withdraw_inherited(_written(over(why, event.time)), mark)

    def reconfigure(self, prototypes: Sequence[tuple[str, Detector]]) -> None:
        """Replace the detectors; those whose configuration is unchanged keep their state."""
        self._prototypes = prototypes
        if self._detectors is not None:
            before = {(slot.name, slot.digest): slot for slot in self._detectors}
            slots = self._made(prototypes)
            self._detectors = [before.get((slot.name, slot.digest), slot) for slot in slots]

    @property
    def _slots(self) -> list[_Slot]:
        if self._detectors is None:
            self._detectors = self._made(self._prototypes)
        return self._detectors

    def _made(self, prototypes: Sequence[tuple[str, Detector]]) -> list[_Slot]:
        """Those of which no copy can be made are left out: their fields are foreign code, too."""
        slots = []
        for name, detector in prototypes:
            try:
                with self._watch.within(DetectorCall(self._job, name)):
                    slots.append(_slot(self._job, name, detector))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 -- as in `_claims`
                _log.exception("detector %s cannot be copied for %s", name, self._job)
                self._notify("detector.muted", f"{name} cannot be copied for {self._job}, which is evaluated without it: {words_of(error)}")
        return slots

    def _claims(self, slot: _Slot, frame: Frame) -> Iterable[Claim]:
        try:
            claims = [_writable(claim, frame.time) for claim in islice(slot.detector.update(frame), MOST_CLAIMS + 1)]
            _check(claims)
        except KeyboardInterrupt:  # of who runs a replay
            raise
        except BaseException as error:  # noqa: BLE001 -- a detector is foreign code, and may raise SystemExit: the others must go on
            slot.failures += 1
            _log.exception("detector %s failed on frame %d of %s", slot.name, frame.number, self._job)
            self._notify("detector.failing", f"{slot.name} on {self._job}: {words_of(error)}")
            if slot.muted:
                self._notify(
                    "detector.muted",
                    f"{slot.name} on {self._job} failed {FAILURES} times in a row and is muted until the"
                    " configuration changes or the server restarts",
                )
            return ()
        slot.failures = 0
        return claims


def _slot(job: str, name: str, detector: Detector) -> _Slot:
    every = getattr(detector, "every", 1)
    every = every if isinstance(every, int) and every > 0 else 1
    return _Slot(name, copy.deepcopy(detector), detector_digest(name, detector), every, DetectorCall(job, name))


def _check(claims: Sequence[Claim]) -> None:
    if len(claims) > MOST_CLAIMS:
        raise ValueError(f"claims more than {MOST_CLAIMS} times in one frame")
    for claim in claims:
        if not claim.evidence:
            raise ValueError(f"claims {claim.kind} about {claim.entity} without evidence")
        entity = claim.entity
        if not (isinstance(entity, Entity) and isinstance(entity.kind, Kind) and isinstance(entity.name, str) and isinstance(claim.kind, str)):
            raise TypeError(f"claims {claim.kind!r} about {entity!r}, which is no kind of finding about an entity")
        if not (entity.name.isascii() and claim.kind.isascii()):
            (entity.name + claim.kind).encode()  # raises UnicodeEncodeError: its id would be a digest of it


def _writable(claim: Claim, now: float) -> Claim:
    """The claim as a record can hold it: what a program says or logs may be of any length, and no number. Raises TypeError for what is no claim."""
    if not (isinstance(claim, Claim) and isinstance(claim.evidence, tuple) and isinstance(claim.active, bool)):
        raise TypeError(f"claims {claim!r:.200}, which is no Claim")
    evidence = claim.evidence
    if len(evidence) > MOST_LINES or not all(map(_is_writable, evidence)):
        evidence = tuple(map(_written, evidence[:MOST_LINES]))
    since = claim.since if abs(claim.since) < LONG_AGO else now
    score = claim.score if math.isfinite(claim.score) else 0.0
    if evidence is claim.evidence and (since, score) == (claim.since, claim.score):
        return claim
    return msgspec.structs.replace(claim, evidence=evidence, since=since, score=score)


def _is_writable(line: Evidence) -> bool:
    short = line.text.isascii() and len(line.text) <= LONGEST_TEXT
    return short and type(line.event) is type(line.metric) is type(line.status) is str and _number(line.value) == line.value and _number(line.threshold) == line.threshold


def _written(line: Evidence) -> Evidence:
    return Evidence(
        text=writable(line.text[:LONGEST_TEXT]), event=writable(str(line.event)), metric=writable(str(line.metric)), value=_number(line.value),
        threshold=_number(line.threshold), status=writable(str(line.status)),
    )  # fmt: skip


def _number(value: float | None) -> float | None:
    return value if value is not None and abs(value) < LARGEST_REAL else None
