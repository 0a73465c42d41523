"""The best layout of a job on any number of GPUs: all tensor × pipeline × data × micro-batch that fit, tried at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .coefficients import Coefficients
from .gpu_memory import fits
from .hardware import Hardware
from .iteration_model import iteration_times
from .parallel_layout import Integers, ParallelLayout, ParallelLayouts
from .training_run import TrainingRun

CHUNK = 512
"""Counts that are searched together; bounds the memory of the search."""


@dataclass(frozen=True, slots=True)
class FoundLayout:
    """The fastest layout that fits and uses exactly so many GPUs."""

    layout: ParallelLayout
    seconds: float
    """Of one iteration."""


def search(run: TrainingRun, hardware: Hardware, known: Coefficients, counts: Sequence[int]) -> dict[int, FoundLayout]:
    """For each count of GPUs that can be used exactly; the others are missing. Of equal layouts the first: least tensor, then pipeline."""
    found: dict[int, FoundLayout] = {}
    wanted = np.unique(np.asarray([count for count in counts if count > 0], dtype=np.int64))
    for start in range(0, len(wanted), CHUNK):
        layouts = _fitting(run, hardware, wanted[start : start + CHUNK])
        seconds = iteration_times(run, hardware, known, layouts).total
        gpus = layouts.gpus
        order = np.lexsort((seconds, gpus))
        _, first = np.unique(gpus[order], return_index=True)
        found.update({int(gpus[index]): FoundLayout(layouts[index], float(seconds[index])) for index in order[first]})
    return found


def candidates(run: TrainingRun, hardware: Hardware, gpus: int) -> ParallelLayouts:
    """All layouts that use exactly so many GPUs and fit."""
    return _fitting(run, hardware, np.array([gpus], dtype=np.int64))


def _fitting(run: TrainingRun, hardware: Hardware, counts: Integers) -> ParallelLayouts:
    layouts = _divided(run, hardware, counts)
    layouts = layouts.where(run.sensible(layouts))
    return layouts.where(fits(run, hardware, layouts))


def _divided(run: TrainingRun, hardware: Hardware, counts: Integers) -> ParallelLayouts:
    """Tensor parallel stays in a node and divides it, as every framework advises (Narayanan et al., SC'21, takeaway 1)."""
    node = hardware.gpus_per_node
    tensor = np.array([size for size in range(1, node + 1) if node % size == 0 and run.shape.heads % size == 0], dtype=np.int64)
    pipeline = np.arange(1, run.shape.layers + 1, dtype=np.int64)
    gpus, tensor, pipeline = (axis.ravel() for axis in np.meshgrid(counts, tensor, pipeline, indexing="ij"))
    exact = gpus % (tensor * pipeline) == 0
    gpus, tensor, pipeline = gpus[exact], tensor[exact], pipeline[exact]
    data = gpus // (tensor * pipeline)
    return _crossed(run, (tensor, pipeline, data))


def _crossed(run: TrainingRun, divided: tuple[Integers, Integers, Integers]) -> ParallelLayouts:
    """Each with every micro-batch, recomputation and number of chunks."""
    most = min(run.largest_micro_batch, run.global_batch)
    sizes = sorted({size for power in range(most.bit_length()) for size in (2**power, 3 * 2**power) if size <= most})
    choices = np.array([(size, again, chunks) for size in sizes for again in run.recompute for chunks in run.interleave], dtype=np.int64)
    rows = np.repeat(np.arange(len(divided[0])), len(choices))
    columns = np.tile(choices, (len(divided[0]), 1))
    tensor, pipeline, data = (column[rows] for column in divided)
    return ParallelLayouts(tensor, pipeline, data, columns[:, 0], columns[:, 1], columns[:, 2])
