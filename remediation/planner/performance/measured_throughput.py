"""Throughputs that were measured on this cluster: rows of a CSV, or of any table that has the same columns.

    task,gpus,flops        achieved model FLOP/s of all GPUs together
    task,gpus,samples_s    needs the task's model, to know the FLOPs of a sample
    task,gpus,tokens_s     the same

With the columns tensor, pipeline, data, micro_batch and recompute (none, selective or full) a row also calibrates the
performance model, for every task. Of several rows for the same task and count the median counts.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from eagle_eye.errors import ConfigError
from eagle_eye.ledger import Throughput
from eagle_eye.text_file import read_text

from .calibration import MeasuredIteration
from .parallel_layout import ParallelLayout, Recompute
from .training_run import TrainingRun

LAYOUT = ("tensor", "pipeline", "data", "micro_batch")


@dataclass(frozen=True, slots=True)
class MeasuredThroughput:
    """One throughput."""

    task: str
    gpus: int
    flops: float
    """Achieved model FLOP/s of all GPUs together."""
    layout: ParallelLayout | None = None
    """That it ran with, if it is known."""


def measured_iterations(measured: Iterable[MeasuredThroughput], runs: Mapping[str, TrainingRun]) -> list[MeasuredIteration]:
    """What calibrates the model: rows with a layout, of tasks whose model is described."""
    found = []
    for one in measured:
        run = runs.get(one.task)
        if one.layout is not None and run is not None:
            found.append(MeasuredIteration(run, one.layout, run.global_batch * run.shape.sample_flops / one.flops))
    return found


def read_csv(path: Path, runs: Mapping[str, TrainingRun] | None = None) -> list[MeasuredThroughput]:
    """Raises ConfigError that names the file, the line and the column."""
    try:
        text = read_text(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    rows: list[MeasuredThroughput] = []
    reader = csv.DictReader(text.splitlines())
    try:
        rows.extend(from_row(row, runs or {}) for row in reader)
    except (ConfigError, csv.Error) as error:
        raise ConfigError(f"{path}, line {reader.reader.line_num}: {error}") from error
    return rows


def from_row(row: Mapping[str, object], runs: Mapping[str, TrainingRun]) -> MeasuredThroughput:
    """Raises ConfigError that names the column."""
    task = str(row.get("task") or "")
    if not task:
        raise ConfigError("task is missing; every row names one")
    gpus = _number(row, "gpus")
    if gpus != int(gpus):
        raise ConfigError(f"gpus is {gpus}; it must be a whole number")
    layout = _layout(row, int(gpus))
    if row.get("flops") not in (None, ""):
        return MeasuredThroughput(task, int(gpus), _number(row, "flops"), layout)
    column = next((name for name in ("samples_s", "tokens_s") if row.get(name) not in (None, "")), None)
    if column is None:
        raise ConfigError("flops, samples_s or tokens_s is missing; a row has one of them")
    if task not in runs:
        raise ConfigError(f"{column} of task {task!r} cannot be converted without its model; describe the model, or give flops")
    shape = runs[task].shape
    samples = _number(row, column) / (shape.sequence if column == "tokens_s" else 1)
    return MeasuredThroughput(task, int(gpus), samples * shape.sample_flops, layout)


def from_ledger(seen: Iterable[Throughput], runs: Mapping[str, TrainingRun]) -> list[MeasuredThroughput]:
    """What jobs of these names reached here; a job of the cluster's file is tenant/name, or the name alone.

    Steps per second count where a script does not report its tokens: a step is a global batch.
    """
    found = []
    for one in seen:
        task = next((name for name in (one.job, one.job.partition("/")[2]) if name in runs), None)
        if task is None:
            continue
        run = runs[task]
        if one.tokens_per_s is not None:
            samples = one.tokens_per_s / run.shape.sequence
        else:
            samples = (one.steps_per_s or 0.0) * run.global_batch
        if samples > 0:
            found.append(MeasuredThroughput(task, one.workers, samples * run.shape.sample_flops))
    return found


def points(measured: Iterable[MeasuredThroughput], task: str) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """(counts,) ascending, and (counts,) the median FLOP/s at each."""
    by_count: dict[int, list[float]] = {}
    for one in measured:
        if one.task == task:
            by_count.setdefault(one.gpus, []).append(one.flops)
    counts = sorted(by_count)
    return np.array(counts, dtype=np.int64), np.array([median(by_count[count]) for count in counts])


def check(measured: Sequence[MeasuredThroughput]) -> None:
    """Raises ConfigError for what cannot have been measured."""
    for one in measured:
        if one.gpus < 1 or not (math.isfinite(one.flops) and one.flops > 0):
            raise ConfigError(f"task {one.task!r} was measured with {one.flops} FLOP/s on {one.gpus} GPUs; both are above zero")


def _layout(row: Mapping[str, object], gpus: int) -> ParallelLayout | None:
    given = [column for column in (*LAYOUT, "recompute") if row.get(column) not in (None, "")]
    if not given:
        return None
    missing = next((column for column in LAYOUT if column not in given), None)
    if missing is not None:
        raise ConfigError(f"{missing} is missing; a layout has {', '.join(LAYOUT)}")
    tensor, pipeline, data, micro_batch = (int(_number(row, column)) for column in LAYOUT)
    word = str(row.get("recompute") or "none").upper()
    if word not in Recompute.__members__:
        raise ConfigError(f"recompute is {row.get('recompute')!r}; it must be none, selective or full")
    layout = ParallelLayout(tensor, pipeline, data, micro_batch, Recompute[word])
    if layout.gpus != gpus:
        raise ConfigError(f"gpus is {gpus}, but the layout {layout} has {layout.gpus}")
    return layout


def _number(row: Mapping[str, object], column: str) -> float:
    text = row.get(column)
    try:
        value = float(str(text))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{column} is {text!r}; it must be a number above zero")
    return value
