"""What each worker computed in its own best time, as a server leaves it to the next one: the samples of a healthy job, and the levels in them."""

import zlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.types import Doubles, Floats, Layout, Step

from .compute_past import SPARE, absent_from, levels_of
from .own_compute import compute_of, of_the_script, work_of

LONGEST_NAMES = 64 << 20
"""Bytes of all workers' names."""
PARTS = ("pp", "tp", "cp", "ep")


class ComputeLevels(msgspec.Struct, frozen=True):
    """What `Baseline.data` holds, as msgpack."""

    split: str
    """How the model was split among the workers, and of what the compute is: levels of another split are not comparable."""
    workers: bytes
    """Their names, a line each, deflated."""
    levels: bytes
    """float32 of each: the logarithm of seconds, of a token (relative to the median worker's) or of a step."""


class RecalledLevels(NamedTuple):
    """Levels that were read back."""

    split: str = ""
    by_worker: Mapping[str, float] = {}


def shape_of(layout: Layout | None) -> tuple[int, ...]:
    """How the model is split: the highest pipeline, tensor, context and expert rank. Who has another part of it has another past."""
    places = layout.placements if layout is not None else ()
    return tuple(max((getattr(place, name) for place in places), default=0) for name in PARTS)


def split_of(shape: tuple[int, ...], *, work_known: bool) -> str:
    """
    >>> split_of((1, 0, 0, 3), work_known=True)
    'compute_of_a_token pp=2 tp=1 cp=1 ep=4'
    """
    sizes = " ".join(f"{name}={highest + 1}" for name, highest in zip(PARTS, shape, strict=True))
    return f"compute_of_a_{'token' if work_known else 'step'} {sizes}"


def sample_of(frame: Frame) -> tuple[tuple[str, ...], Floats]:
    """A tick as one sample: the split (its column holds zeros) and the workers; the mean of what each computed a step.

    A busy processor is not taken off, as the detector does: that makes a level too high at worst, never too low, and the lowest median counts.
    """
    newest = frame.steps[-1] if frame.steps else None
    if newest is None or frame.layout is None:
        return (), np.zeros((0, 0), np.float32)
    steps = [step for step in frame.steps if step.epoch == newest.epoch and step.workers == newest.workers]
    work_known = work_of(newest) is not None
    rows = [row for row in (_compute_of(step, work_known=work_known) for step in steps) if row is not None]
    if not rows:
        return (), np.zeros((0, 0), np.float32)
    row = np.concatenate([np.zeros(1, np.float32), np.mean(rows, axis=0, dtype=np.float64).astype(np.float32)])
    return (split_of(shape_of(frame.layout), work_known=work_known), *newest.workers), row[None, :]


def _compute_of(step: Step, *, work_known: bool) -> Floats | None:
    busy, work = compute_of(step), work_of(step)
    if busy is None or (work is not None) is not work_known:
        return None
    own: Floats = np.maximum(busy - of_the_script(step, busy), 0.1 * busy) / (work if work is not None else np.float32(1.0))
    return own


def fitted(names: tuple[str, ...], matrix: Floats, window: int, before: bytes) -> bytes:
    """The lowest level that each worker held for a whole window, or before (`before`: data of the baseline in force).

    Raises ValueError for fewer samples than half a window.
    """
    if len(matrix) * 2 < window:
        raise ValueError(f"levels of {len(matrix)} samples would be worth nothing: collect at least {window // 2}")
    split, workers = names[0], names[1:]
    known = _lowest(np.asarray(matrix[:, 1:], np.float64), window)
    past = recalled(before) if before else RecalledLevels()
    earlier = past.by_worker if past.split == split else {}
    levels = {worker: level for worker, level in zip(workers, np.fmin(known, levels_of(earlier, workers)).tolist(), strict=True) if np.isfinite(level)}
    levels |= {worker: earlier[worker] for worker in absent_from(earlier, workers)[-SPARE:]}
    return msgspec.msgpack.encode(ComputeLevels(split, zlib.compress("\n".join(levels).encode()), np.array(list(levels.values()), "<f4").tobytes()))


def recalled(data: bytes) -> RecalledLevels:
    """Raises ValueError for what holds no levels."""
    found = msgspec.msgpack.decode(data, type=ComputeLevels)
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(found.workers, LONGEST_NAMES)
    except zlib.error as error:
        raise ValueError(f"the names of its workers cannot be read: {error}") from error
    if inflater.unconsumed_tail or len(found.levels) % 4:
        raise ValueError("the names of its workers are longer than any, or its levels are torn")
    workers, levels = text.decode().split("\n") if text else [], np.frombuffer(found.levels, "<f4")
    if len(workers) != len(levels) or not np.isfinite(levels).all():
        raise ValueError("its levels are not one finite number for each worker")
    return RecalledLevels(found.split, dict(zip(workers, levels.astype(np.float64).tolist(), strict=True)))


def _lowest(rows: Doubles, window: int) -> Doubles:
    """Of each worker the logarithm of the lowest median over a window; NaN of whom no window is known."""
    lowest = np.full(rows.shape[1], np.nan)
    for begin in range(0, max(len(rows) - window, 0) + 1, window):
        part = rows[begin : begin + window]
        seen = (np.isfinite(part) & (part > 0.0)).sum(axis=0) * 2 > len(part)
        level = np.full(len(lowest), np.nan)
        level[seen] = np.log(np.maximum(np.nanmedian(part[:, seen], axis=0), 1e-12))
        lowest = np.fmin(lowest, level)
    return lowest
