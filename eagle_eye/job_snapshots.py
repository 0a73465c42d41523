"""`JobSnapshots`: the job snapshot of each frame, and how a snapshot is written. No clock and no chance: the same frames give the same snapshots.

A snapshot with the layout of 80,000 workers is larger than a record of a stream may be, so that a large one is compressed.
"""

import zlib
from collections.abc import Collection

import msgspec
import numpy as np

from .frames import Frame
from .step_assembly import LOGGED_NAN
from .types import SNAPSHOT_EVENTS, Floats, JobSnapshot, Layout, SnapshotStep, Step
from .types.job_snapshot import LATE_S

NOTHING: Floats = np.zeros(0, dtype=np.float32)
COMPRESSED_FROM = 1 << 20
"""Bytes of JSON."""
LARGEST = 256 << 20
"""Bytes of JSON that a reader takes: a few bytes of a forged record could become gigabytes."""
_LEVEL = 1
_COMPRESSED = b"x"
"""The first byte of a zlib stream (RFC 1950, a window of 32 KiB); JSON of a snapshot begins with a brace."""
_DECODER = msgspec.json.Decoder(JobSnapshot)


def encode_snapshot(snapshot: JobSnapshot) -> bytes:
    """JSON; from COMPRESSED_FROM bytes on as a zlib stream."""
    text = msgspec.json.encode(snapshot)
    return zlib.compress(text, _LEVEL) if len(text) >= COMPRESSED_FROM else text


def decode_snapshot(value: bytes) -> JobSnapshot:
    """Raises msgspec.DecodeError for what is no snapshot, or becomes larger than LARGEST."""
    return _DECODER.decode(_decompressed(value) if value.startswith(_COMPRESSED) else value)


def _decompressed(value: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(value, LARGEST)
    except zlib.error as error:
        raise msgspec.DecodeError(f"a compressed snapshot that cannot be read: {error}") from error
    if not stream.eof:
        raise msgspec.DecodeError(f"a compressed snapshot that is cut off, or has more than {LARGEST} bytes")
    return text


def snapshot_of(frame: Frame, *, sent: Layout | None = None) -> JobSnapshot:
    """What decisions need of a frame. `sent`: the layout that an earlier snapshot has carried."""
    snapshot = JobSnapshot(
        job=frame.job,
        generation=frame.generation,
        number=frame.number,
        time=frame.time,
        tick=frame.tick,
        events=tuple(event for event in frame.events if event.name in SNAPSHOT_EVENTS),
        layout=None if frame.layout is sent or frame.layout == sent else frame.layout,
    )
    return _of_tick(snapshot, frame) if frame.tick else snapshot


def _of_tick(snapshot: JobSnapshot, frame: Frame) -> JobSnapshot:
    nodes = {place.node for place in frame.layout.placements} if frame.layout is not None else set[str]()
    ages = ((node, frame.time - frame.reporting.get(node, 0.0)) for node in sorted(nodes))
    return msgspec.structs.replace(
        snapshot,
        heard=min((frame.reporting.get(node, 0.0) for node in nodes), default=frame.time),
        steps=tuple(_step(step) for step in frame.steps),
        entities={kind.value: len(entities) for kind, entities in frame.entities.items() if entities},
        behind_s=max(0.0, frame.time - max(frame.reporting.values(), default=frame.time)),
        late={node: age for node, age in ages if abs(age) > LATE_S},
    )


class JobSnapshots:
    """The snapshots of one partition: the layout of a job is in the first one that knows it, and in those that change it."""

    def __init__(self) -> None:
        self._sent: dict[str, Layout] = {}

    def of(self, frame: Frame) -> JobSnapshot | None:
        """None where there is nothing to decide: a node without a job."""
        snapshot = snapshot_of(frame, sent=self._sent.get(frame.job))
        if frame.layout is None and not snapshot.events and not snapshot.steps:
            return None
        if frame.layout is not None:
            self._sent[frame.job] = frame.layout
        return snapshot

    def forget(self, jobs: Collection[str]) -> None:
        """Forget every job but these."""
        if len(self._sent) > len(jobs):
            self._sent = {name: layout for name, layout in self._sent.items() if name in jobs}


def _step(step: Step) -> SnapshotStep:
    tokens, seconds = (_numbers(step, name) for name in ("tokens", "step_s"))
    return SnapshotStep(
        number=step.number,
        epoch=step.epoch,
        end=step.end,
        workers=len(step.workers),
        tokens=float(tokens.sum()) if len(tokens) else None,
        loss=_loss(step),
        step_s=float(seconds.max()) if len(seconds) else None,
        finite=_finite(step),
    )


def _loss(step: Step) -> float | None:
    """Mean over the step's tokens where they are logged, else over the workers; None if no worker logs a loss."""
    loss, tokens = step.values.get("loss", NOTHING), step.values.get("tokens", NOTHING)
    logged = np.isfinite(loss)
    if not logged.any():
        return None
    shown = loss[logged]
    weights = np.where(np.isfinite(tokens), tokens, np.float32(0.0))[logged] if len(tokens) == len(loss) else np.zeros(len(shown))
    total = weights.sum()
    return float((shown * weights).sum() / total if total > 0 else shown.mean())


def _numbers(step: Step, name: str) -> Floats:
    """The finite values that the workers logged under a name."""
    values = step.values.get(name, NOTHING)
    numbers: Floats = values[np.isfinite(values)]
    return numbers


def _finite(step: Step) -> bool:
    """Whether every loss that was logged is a number; NaN without the marker means "not logged"."""
    infinite = np.isinf(step.values.get("loss", NOTHING)).any()
    return not bool(infinite or (step.values.get(f"loss{LOGGED_NAN}", NOTHING) == 1.0).any())
