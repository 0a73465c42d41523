"""T(t, x): what FLOP/s a task achieves on x GPUs with its best layout, and where that answer comes from.

    measured       x was measured                                      the measurement itself
    interpolated   x lies between two measured counts                  model(x) · r(x), log r linear in log x between them
    extrapolated   x lies outside what was measured                    model(x) · r of the nearest measured count
    modelled       nothing was measured of this task                   model(x)

r = measured / model at a measured count. A task whose model is not described has a constant in place of model(x)/x:
FLOP/s per GPU are interpolated, above the last measured count they follow the last slope if it falls, and below the first nothing
is known to fit: 0. Where the model is described and no layout of exactly x GPUs fits, T is 0 unless x was measured.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

import numpy as np
from numpy.typing import NDArray

from eagle_eye.errors import ConfigError

from . import measured_throughput as measurements
from .coefficients import Coefficients
from .gpu_memory import fits
from .hardware import Hardware
from .iteration_model import iteration_times
from .measured_throughput import MeasuredThroughput
from .parallel_layout import Integers, ParallelLayout, ParallelLayouts
from .training_run import TrainingRun

CHUNK = 512
"""Counts that are searched together; bounds the memory of the search."""
Floats = NDArray[np.float64]


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


class ThroughputSource(StrEnum):
    """Where an answer comes from; see above."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    MODELLED = "modelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputEstimate:
    """T(t, x)."""

    flops: float
    """Achieved model FLOP/s of all GPUs together; 0: it does not run on exactly so many."""
    source: ThroughputSource
    reach: float
    """Times that x is beyond (or below) the nearest measured count: 1 at and between measured ones, infinite if there is none."""
    layout: ParallelLayout | None
    """The best by the model; None where there is no model or nothing fits."""
    iteration_s: float
    """Seconds of one iteration; NaN without a model."""

    @property
    def why(self) -> str:
        """Where it comes from and the layout, as the report prints it."""
        how = {1.0: "", math.inf: ""}.get(self.reach, f", {self.reach:.2g}× from the nearest measured count")
        return f"{self.source}{how}" + (f": {self.layout}" if self.layout else "")


@dataclass(frozen=True, slots=True)
class _Points:
    """What was measured of a task."""

    counts: NDArray[np.int64]
    flops: Floats
    log_ratio: Floats
    """Of measured to model at each, or log FLOP/s per GPU without one; NaN where the model has no layout."""


class ThroughputModel:
    """T(t, x) of the tasks of one cluster; each count is searched once and cached."""

    def __init__(
        self,
        hardware: Hardware,
        runs: Mapping[str, TrainingRun] | None = None,
        measured: Iterable[MeasuredThroughput] = (),
        coefficients: Coefficients | None = None,
        profiled: Mapping[str, Floats] | None = None,
    ) -> None:
        """coefficients: of a calibration; None: what the data sheet lets one expect. profiled: model(x) of tasks that were
        profiled layer by layer, a row each (profiled.throughput). Raises ConfigError for impossible measurements."""
        self.hardware = hardware
        self.runs = dict(runs or {})
        self._rows = dict(profiled or {})
        self.coefficients = coefficients or Coefficients.expected(hardware)
        self._measured = tuple(measured)
        measurements.check(self._measured)
        self._found: dict[str, dict[int, FoundLayout | None]] = {name: {} for name in self.runs}
        self._points: dict[str, _Points] = {}

    def estimate(self, task: str, gpus: int) -> ThroughputEstimate:
        """T(t, x). Raises ConfigError for a task that is neither described nor measured."""
        known = self._known(task)
        found = self._search(task, [gpus]).get(gpus) if task in self.runs else None
        flops = float(self._flops(task, np.array([gpus], dtype=np.int64), known)[0])
        run = self.runs.get(task)
        seconds = run.global_batch * run.shape.sample_flops / flops if run and flops else math.nan
        return ThroughputEstimate(
            flops=flops,
            source=_source(known.counts, gpus),
            reach=_reach(known.counts, gpus),
            layout=found.layout if found else None,
            iteration_s=seconds,
        )

    def running(self, task: str, layout: ParallelLayout) -> ThroughputEstimate:
        """What the task achieves with this layout, be it the best one or not. Raises ConfigError without a described model.

        What was measured on as many GPUs with this layout, or with an unknown one; else the model's answer, corrected
        by what was measured with others.
        """
        if task not in self.runs:
            raise ConfigError(f"task {task!r} has a layout but no described model to estimate it with; describe the model")
        run, gpus, known = self.runs[task], layout.gpus, self._known(task)
        work = run.global_batch * run.shape.sample_flops
        seen = [one.flops for one in self._measured if one.task == task and one.gpus == gpus and one.layout in (None, layout)]
        modelled = work / float(iteration_times(run, self.hardware, self.coefficients, ParallelLayouts.of([layout])).total[0])
        ratio = math.exp(float(self._log_ratio(task, np.array([gpus], dtype=np.int64), known)[0]))
        flops = median(seen) if seen else modelled * ratio
        source = _source(known.counts, gpus)
        if not seen and source is ThroughputSource.MEASURED:
            source = ThroughputSource.INTERPOLATED
        return ThroughputEstimate(flops=flops, source=source, reach=_reach(known.counts, gpus), layout=layout, iteration_s=work / flops)

    def row(self, task: str, workers: int, granularity: int = 1) -> Floats:
        """(workers + 1,) FLOP/s at 0, 1, 2, ... workers, for tasks.Task; 0 between multiples of the granularity."""
        counts = np.arange(granularity, workers + 1, granularity, dtype=np.int64)
        row = np.zeros(workers + 1)
        row[counts] = self._flops(task, counts, self._known(task))
        return row

    def _flops(self, task: str, counts: NDArray[np.int64], known: _Points) -> Floats:
        model = self._model(task, counts)
        flops = model * np.exp(self._log_ratio(task, counts, known))
        at = np.searchsorted(known.counts, counts)
        for index in np.flatnonzero(at < len(known.counts)):
            if known.counts[at[index]] == counts[index]:
                flops[index] = known.flops[at[index]]
        return flops

    def _model(self, task: str, counts: NDArray[np.int64]) -> Floats:
        """(counts,) FLOP/s; without a described model the counts themselves: what is interpolated is FLOP/s per GPU then."""
        if task in self._rows:
            row = self._rows[task]
            return np.where(counts < len(row), row[np.minimum(counts, len(row) - 1)], 0.0)
        if task not in self.runs:
            return counts.astype(np.float64)
        run = self.runs[task]
        found = self._search(task, counts.tolist())
        work = run.global_batch * run.shape.sample_flops
        return np.array([work / one.seconds if one else 0.0 for one in (found.get(count) for count in counts.tolist())])

    def _log_ratio(self, task: str, counts: NDArray[np.int64], known: _Points) -> Floats:
        usable = np.isfinite(known.log_ratio)
        if not usable.any():
            return np.zeros(len(counts))
        at, value = np.log(known.counts[usable]), known.log_ratio[usable]
        wanted = np.log(np.maximum(counts, 1))
        ratio = np.interp(wanted, at, value)
        if task in self.runs or task in self._rows:
            return ratio
        slope = min(0.0, (value[-1] - value[-2]) / (at[-1] - at[-2])) if len(at) > 1 else 0.0
        ratio = np.where(wanted > at[-1], value[-1] + slope * (wanted - at[-1]), ratio)
        return np.where(counts < known.counts[0], -np.inf, ratio)

    def _search(self, task: str, counts: list[int]) -> dict[int, FoundLayout | None]:
        """Layouts of these counts, at least."""
        known = self._found[task]
        missing = [count for count in counts if count not in known]
        if missing:
            found = search(self.runs[task], self.hardware, self.coefficients, missing)
            known.update({count: found.get(count) for count in missing})
        return known

    def _known(self, task: str) -> _Points:
        if task not in self._points:
            counts, flops = measurements.points(self._measured, task)
            if task not in self.runs and task not in self._rows and not len(counts):
                names = sorted({*self.runs, *self._rows, *(one.task for one in self._measured)})
                raise ConfigError(f"nothing is known of task {task!r}: describe its model or measure it; known are {', '.join(names) or 'none'}")
            with np.errstate(divide="ignore"):
                model = self._model(task, counts)
                ratio = np.where(model > 0, np.log(flops) - np.log(model), np.nan)
            self._points[task] = _Points(counts, flops, ratio)
        return self._points[task]


def _source(counts: NDArray[np.int64], gpus: int) -> ThroughputSource:
    if not len(counts):
        return ThroughputSource.MODELLED
    if gpus in counts:
        return ThroughputSource.MEASURED
    return ThroughputSource.INTERPOLATED if counts[0] < gpus < counts[-1] else ThroughputSource.EXTRAPOLATED


def _reach(counts: NDArray[np.int64], gpus: int) -> float:
    if not len(counts) or gpus < 1:
        return math.inf
    return float(max(1.0, counts[0] / gpus, gpus / counts[-1]))
