"""Mounts that hang, have become read-only, or answer far slower than they are used to; it informs only, and asks for nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio, Seconds
from eagle_eye.types import Claim, Entity, Event, Evidence, Floats, Integers, Kind

from .features.active_claims import ActiveClaims

HUNG, READ_ONLY, SLOW = "storage.hung", "storage.read_only", "storage.slow"
TIMES = {"stat_s": "a stat", "read_s": "a read of 4 KiB", "write_s": "a write of 4 KiB with fsync"}
STATE_OF = {HUNG: "hung", READ_ONLY: "read_only"}
"""Kind → the metric that says whether it still is so."""
BESIDE = {
    "retransmissions_per_s": "retransmissions to the NFS server a second",
    "timeouts_per_s": "time-outs of the NFS server a second",
    "round_trip_s": "seconds that the server took for an operation on average",
    "disconnected_servers": "Lustre servers that the client has no connection to",
    "free_bytes": "free bytes",
    "free_inodes": "free inodes",
}
"""What is cited beside a claim."""
SETTLED_S = 10.0
"""A reading of the moment before the event may come after it: a reading ends a claim only so long after it began."""
LEARNED = 12
"""Measurements after which it is known what a mount is used to: two minutes of them."""
STEP = 1.1
"""What it is used to follows each measurement by a tenth, up or down, and so stays near the median of them all."""
MOUNTS_KEPT = 8192


@dataclass
class _UsualTime:
    """One of TIMES over all mounts, in the columns of the frame."""

    seconds: Floats = field(default_factory=lambda: np.empty(0, np.float32))
    measured: Floats = field(default_factory=lambda: np.empty(0, np.float32))
    """How often, up to LEARNED."""
    slow: Floats = field(default_factory=lambda: np.empty(0, np.float32))
    """How often in a row it was far slower."""

    def follow(self, moved: Integers | None, count: int) -> None:
        """Put everything into the columns of this frame; a mount that is new knows nothing."""
        self.seconds = _carried(self.seconds, moved, count, np.nan)
        self.measured, self.slow = _carried(self.measured, moved, count, 0.0), _carried(self.slow, moved, count, 0.0)

    def take(self, now: Floats, times: float, least_s: float) -> None:
        """Judge, then learn of what is not far slower."""
        read = np.isfinite(now)
        far = read & (self.measured >= LEARNED) & (now > np.maximum(times * self.seconds, least_s))
        self.slow = np.where(far, self.slow + 1, np.where(read, 0.0, self.slow)).astype(np.float32)
        learns = read & ~far
        nearer = np.where(now > self.seconds, self.seconds * STEP, self.seconds / STEP)
        usual = np.where(np.isnan(self.seconds), np.maximum(now, 1e-9), nearer)
        self.seconds = np.where(learns, usual, self.seconds).astype(np.float32)
        self.measured = np.where(learns, np.minimum(self.measured + 1, LEARNED), self.measured).astype(np.float32)


@dataclass
class StorageHealth:
    """Claims storage.hung and storage.read_only as the agents report them, and storage.slow by the times of their probes.

    A disk that was always slow, one that is full, and a mount that was read-only when it was first seen are none of these.
    """

    times: Ratio = 20.0
    """Slow: so many times the usual time of the mount."""
    least_s: Seconds = 1.0
    """And more than so many seconds."""
    sustained: Count = 3
    """In so many measurements in a row."""
    stale_s: Seconds = 600.0
    """The claim about a mount is withdrawn when nothing was read of the mount for so many seconds."""
    _usual: dict[str, _UsualTime] = field(default_factory=lambda: {name: _UsualTime() for name in TIMES}, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name in STATE_OF and event.entity.kind is Kind.MOUNT and len(self._claims.open) < MOUNTS_KEPT:
                yield from self._broken(event)
        if frame.tick:
            yield from self._measure(frame)
            yield from self._look(frame)

    def _broken(self, event: Event) -> Iterator[Claim]:
        proof = Evidence(text=f"{event.entity} on {event.node}: {event.message or event.name}", event=event.id)
        claim = Claim(entity=event.entity, kind=event.name, score=0.9, since=event.time, evidence=(proof,))
        yield from self._claims.report(claim, revise=False)

    # --- times

    def _measure(self, frame: Frame) -> Iterator[Claim]:
        names, read = frame.entities.get(Kind.MOUNT, ()), frame.metrics.get(Kind.MOUNT, {})
        slow = np.zeros(len(names), np.bool_)
        for metric, usual in self._usual.items():
            usual.follow(frame.moved.get(Kind.MOUNT), len(names))
            if metric in read:
                usual.take(read[metric], self.times, self.least_s)
                slow |= np.isfinite(read[metric]) & (usual.slow >= self.sustained)
        for index in np.flatnonzero(slow).tolist() if len(self._claims.open) < MOUNTS_KEPT else ():
            yield from self._slow(frame, index)

    def _slow(self, frame: Frame, index: int) -> Iterator[Claim]:
        name, read = frame.entities[Kind.MOUNT][index], frame.metrics[Kind.MOUNT]
        proofs = []
        for metric, usual in self._usual.items():
            if usual.slow[index] >= self.sustained and metric in read and np.isfinite(read[metric][index]):
                now, before = float(read[metric][index]), float(usual.seconds[index])
                text = f"{TIMES[metric]} on {name} took {now:.3g} s, {usual.slow[index]:.0f} times in a row far longer than the usual {before:.2g} s"
                proofs.append(Evidence(text=text, metric=metric, value=now, threshold=max(self.times * before, self.least_s)))
        claim = Claim(entity=Entity(kind=Kind.MOUNT, name=name), kind=SLOW, score=0.7, since=frame.time, evidence=(*proofs, *_beside(read, index)))
        yield from self._claims.report(claim, revise=False)

    # --- what is over

    def _look(self, frame: Frame) -> Iterator[Claim]:
        if not self._claims.open:
            return
        column = {name: index for index, name in enumerate(frame.entities.get(Kind.MOUNT, ()))}
        read = frame.metrics.get(Kind.MOUNT, {})
        for (entity, kind), claim in list(self._claims.open.items()):
            index = column.get(entity.name, -1)
            why = self._over(frame.time, claim, index, read)
            if why:
                yield from self._claims.withdraw(entity, kind, frame.time, why)
            elif index >= 0 and len(claim.evidence) == 1 and (more := _beside(read, index)):
                told = Claim(entity=entity, kind=kind, score=claim.score, since=claim.since, evidence=(*claim.evidence, *more))
                yield from self._claims.report(told)

    def _over(self, now: float, claim: Claim, index: int, read: Mapping[str, Floats]) -> str:
        """Why a claim is over; '' while it is not."""
        if index < 0:
            return "nothing is read of it any more" if now - claim.since > self.stale_s else ""
        if claim.kind == SLOW:
            return "" if any(usual.slow[index] >= 1 for usual in self._usual.values()) else "it answers as fast as it is used to"
        if now - claim.since <= SETTLED_S or _value(read, STATE_OF[claim.kind], index) != 0.0:
            return ""
        return "it answers again" if claim.kind == HUNG else "it can be written to again"


def _beside(read: Mapping[str, Floats], index: int) -> tuple[Evidence, ...]:
    """What else was read of a mount at that moment, each with its number."""
    known = {metric: _value(read, metric, index) for metric in BESIDE}
    return tuple(Evidence(text=f"{value:.4g} {BESIDE[metric]}", metric=metric, value=value) for metric, value in known.items() if np.isfinite(value))


def _value(read: Mapping[str, Floats], name: str, index: int) -> float:
    """NaN where nothing was read."""
    return float(read[name][index]) if name in read else float("nan")


def _carried(before: Floats, moved: Integers | None, count: int, new: float) -> Floats:
    """A column for each mount of this frame, with what stood in its column of the frame before."""
    if moved is None or not len(before):
        return np.full(count, new, np.float32)
    carried: Floats = np.where(moved >= 0, before[np.clip(moved, 0, len(before) - 1)], new).astype(np.float32)
    return carried
