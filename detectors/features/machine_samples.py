"""What all nodes, GPUs or workers of a job show in one tick, a row each: for detectors that judge all metrics of one together.

No mask, state, count since the start or number of a thing is among the metrics: such are no amounts that trees could part, and means of them are of nobody.
"""

from typing import NamedTuple

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.types import Floats, Kind, Layout

from .node_metrics import MASKS_OF_GPUS, STATES_OF_GPUS, features
from .stuck_readings import Truths

KINDS = (Kind.NODE, Kind.GPU, Kind.WORKER)
OF_WORKERS = frozenset({"cpu_percent", "runqueue_percent", "throttled_percent", "rss_bytes", "memory_used_percent", "matmul_flops_per_s", "collective_kernel_max_s"})
"""Amounts that say how a worker does; what a site or a log adds may be a state or a count, and is left out."""
RATES_OF_WORKERS = ("_bus_bytes_per_s", "_measured_bytes_per_s", "_measured_mean_s")
"""Ends of the names of those that have a role in front."""


class MachineSamples(NamedTuple):
    """Of one kind."""

    entities: tuple[str, ...]
    names: tuple[str, ...]
    """Of the metrics."""
    matrix: Floats
    """Entities × metrics; NaN where nothing was read."""


def samples_of(frame: Frame, kind: Kind) -> MachineSamples:
    """All of them, in the order of the frame."""
    if kind is Kind.NODE:
        return MachineSamples(*features(frame))
    entities = frame.entities.get(kind, ())
    columns = {name: values for name, values in sorted(frame.metrics.get(kind, {}).items()) if _is_amount(kind, name)}
    if not columns or not entities:
        return MachineSamples(entities, (), np.zeros((len(entities), 0), np.float32))
    return MachineSamples(entities, tuple(columns), np.stack(list(columns.values()), axis=1))


def trained_on(kind: Kind, names: tuple[str, ...], layout: Layout | None) -> Truths:
    """Of these, which the job trains on: a node may have GPUs that stand idle, and a job a node that it does not use. All of them where the layout does not say it."""
    used = {_used(kind, place.gpu, place.node, place.worker) for place in layout.placements} if layout is not None else set()
    mine = np.array([name in used for name in names], np.bool_)
    return mine if mine.any() else np.ones(len(names), np.bool_)


def _used(kind: Kind, gpu: str, node: str, worker: str) -> str:
    return gpu if kind is Kind.GPU else worker if kind is Kind.WORKER else node


def _is_amount(kind: Kind, name: str) -> bool:
    if kind is Kind.GPU:
        return name not in STATES_OF_GPUS | MASKS_OF_GPUS
    return name in OF_WORKERS or name.endswith(RATES_OF_WORKERS)
