"""GPU faults that the driver reports: Xid codes, its own advice, and GPUs that fell off the bus."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np

from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import Seconds
from eagle_eye.types import Claim, Entity, Event, Evidence, Kind, Severity
from eagle_eye.xids import xid

from .features.active_claims import ActiveClaims, ends_epoch

_ADVICE = "recovery_action"
_SCORES = {Severity.SEV1: 1.0, Severity.SEV2: 0.9, Severity.SEV3: 0.7, Severity.INFO: 0.3}


@dataclass
class XidErrors:
    """Claims gpu.xid with the vendor's advice, and gpu.lost: by the driver's word alone, never by a program's that quotes it.

    What the driver itself advises (`gpu.recovery_action`) is a line of evidence of the GPU's gpu.xid; alone it informs, since
    it has no code.

    An Xid whose advice is a restart of the application is withdrawn when the next epoch starts; one that needs more is withdrawn after `withdraw_after_s` seconds without another, since the driver never reports that a GPU has recovered. A
    lost GPU is withdrawn when it is read again.
    """

    withdraw_after_s: Seconds = 3600.0
    """An Xid is withdrawn so many seconds after the last one of its GPU."""
    _newest: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _lasting: set[str] = field(default_factory=set, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.entity.kind is Kind.GPU and (event.attributes.get("written_by") or _is_of_another_job(event, frame)):
                continue
            if event.name == "gpu.xid":
                yield from self._xid(event)
            elif event.name == "gpu.recovery_action":
                yield from self._advised(event)
            elif event.name == "gpu.lost":
                yield from self._lost(event)
            elif event.name == "gpu.returned":
                yield from self._returned(event)
            elif why := ends_epoch(event):
                yield from self._application_restarted(event.time, why)
        yield from self._forget(frame)

    def _xid(self, event: Event) -> Iterator[Claim]:
        row = xid(integer_attribute(event, "code"), event.attributes.get("qualifier", ""))
        gpu = event.entity.name
        self._newest[gpu] = event.time
        if row.severity is Severity.SEV1:
            self._lasting.add(gpu)
        before = self._claims.open.get((event.entity, "gpu.xid"))
        if before and any(line.status == row.status for line in before.evidence):
            return  # NVML and the kernel's log tell the same Xid; and a broken GPU tells it again and again
        proof = Evidence(
            text=f"{_words(event)}: Xid {row.code}, {row.name}; the vendor advises: {row.advice}",
            event=event.id,
            metric="xid",
            value=float(row.code),
            status=row.status,
        )
        yield from self._more(event, proof, _SCORES[row.severity])

    def _advised(self, event: Event) -> Iterator[Claim]:
        """An advice that is over takes its line away, and the claim with it if it was all."""
        before = self._claims.open.get((event.entity, "gpu.xid"))
        action = event.attributes.get("action", "none")
        if action != "none":
            self._newest[event.entity.name] = event.time
            proof = Evidence(text=f"{_words(event)}: the driver advises {action}", event=event.id, metric=_ADVICE)
            yield from self._more(event, proof, _SCORES[Severity.INFO])
        elif before is not None:
            left = tuple(line for line in before.evidence if line.metric != _ADVICE)
            if left:
                yield from self._claims.report(msgspec.structs.replace(before, evidence=left))
            else:
                yield from self._claims.withdraw(event.entity, "gpu.xid", event.time, "the driver advises nothing any more")

    def _more(self, event: Event, proof: Evidence, score: float) -> Iterator[Claim]:
        """The GPU's claim with one line more; the newest advice takes the place of the one before."""
        before = self._claims.open.get((event.entity, "gpu.xid"))
        kept = [line for line in (before.evidence if before else ()) if not line.metric == proof.metric == _ADVICE]
        evidence = tuple(dict.fromkeys((*kept, proof)))[-8:]
        score = max(score, before.score if before else 0.0)
        since = before.since if before else event.time
        yield from self._claims.report(
            Claim(entity=event.entity, kind="gpu.xid", score=score, since=since, evidence=evidence)
        )

    def _lost(self, event: Event) -> Iterator[Claim]:
        reason = event.attributes.get("reason", "no reason given")
        proof = Evidence(text=f"{_words(event)} is gone: {reason}", event=event.id)
        claim = Claim(entity=event.entity, kind="gpu.lost", score=1.0, since=event.time, evidence=(proof,))
        yield from self._claims.report(claim, revise=False)

    def _returned(self, event: Event) -> Iterator[Claim]:
        """Also of a GPU that had no name when it was lost: it is read again under another one."""
        for name in (event.entity.name, event.attributes.get("was", "")):
            yield from self._claims.withdraw(Entity(kind=Kind.GPU, name=name), "gpu.lost", event.time, "it is read again")

    def _application_restarted(self, time: float, why: str) -> Iterator[Claim]:
        for entity, kind in list(self._claims.open):
            if kind == "gpu.xid" and entity.name not in self._lasting:
                yield from self._claims.withdraw(entity, kind, time, why)

    def _forget(self, frame: Frame) -> Iterator[Claim]:
        if not frame.tick or not self._claims.open:
            return
        read = _gpus_read(frame)
        for entity, kind in list(self._claims.open):
            if kind == "gpu.lost" and entity.name in read:
                yield from self._claims.withdraw(entity, kind, frame.time, "it is read again")
            elif kind == "gpu.xid" and frame.time - self._newest.get(entity.name, 0.0) > self.withdraw_after_s:
                self._lasting.discard(entity.name)
                self._newest.pop(entity.name, None)
                yield from self._claims.withdraw(entity, kind, frame.time, f"no other for {self.withdraw_after_s:.0f} s")


def _is_of_another_job(event: Event, frame: Frame) -> bool:
    """The agent tells it to all jobs of its node. Where the GPUs of this job's workers there are known, it is one of them or not this job's."""
    if frame.layout is None:
        return False
    gpus = [place.gpu for place in frame.layout.placements if place.node == event.node]
    return bool(gpus) and all(gpus) and event.entity.name not in gpus


def _words(event: Event) -> str:
    pci = event.attributes.get("pci", "")
    return f"GPU {event.entity.name}{f' ({pci})' if pci else ''} on {event.node}"


def _gpus_read(frame: Frame) -> set[str]:
    """GPUs with at least one reading since the last tick."""
    names = frame.entities.get(Kind.GPU, ())
    columns = frame.metrics.get(Kind.GPU, {})
    if not names or not columns:
        return set()
    present = np.any([np.isfinite(values) for values in columns.values()], axis=0)
    return {name for name, here in zip(names, present.tolist(), strict=True) if here}
