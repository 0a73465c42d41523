"""What each worker of a step computed by itself: its phases without waits, its work, and what of it is the script's doing."""

import numpy as np
from numpy.typing import NDArray

from eagle_eye.types import Floats, Step

from .step_time import phases, zero_if_unknown

COMPUTE = ("forward_s", "backward_s", "optimizer_s")
LONGER = 1.02
"""Tokens, or a sequence, so much beyond those of the others are more work than tokens alone say: attention grows with the square of the length."""

Truths = NDArray[np.bool_]


def compute_of(step: Step) -> Floats | None:
    """Seconds of computing per worker, NaN of one that told none; None if the script marks no phases: then waiting cannot be separated from it."""
    busy: Floats = phases(step, COMPUTE).sum(axis=0)
    if not np.nansum(busy) > 0:
        return None
    told: Floats = np.where(busy > 0, busy, np.float32(np.nan)).astype(np.float32)
    return told


def of_the_script(step: Step, busy: Floats) -> Floats:
    """Seconds of what each worker was busy with that say nothing of its machine."""
    none = np.zeros(len(step.workers), np.float32)
    paused, graphs = (zero_if_unknown(step.values[name]) if name in step.values else none for name in ("garbage_collection_s", "compiled_graphs"))
    spent: Floats = np.where(graphs > 0, busy, paused).astype(np.float32)
    return spent


def work_of(step: Step) -> Floats | None:
    """How much each worker had to do: its tokens relative to the median, None where they are not logged."""
    tokens = step.values.get("tokens")
    if tokens is None or not (zero_if_unknown(tokens) > 0).all():
        return None
    work: Floats = (tokens / np.median(tokens)).astype(np.float32)
    return work


def longer_sequences(step: Step, than: float) -> Truths:
    """Whose sequences are longer than those of the others: how much work it had is not known. `than`: the quantile of the lengths that they are held against."""
    lengths = step.values.get("sequence_length")
    if lengths is None or not np.isfinite(lengths).any():
        return np.zeros(len(step.workers), np.bool_)
    longer: Truths = lengths > LONGER * np.nanquantile(lengths, than)
    return longer
