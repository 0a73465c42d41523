"""Traces of the operations of slow jobs (ByteDance): one slow worker, or a long pipeline stage, or other causes that are no worker's fault.

What a worker computed in a step is the sum of its forward and backward operations; how many tokens it had is not in the trace. A trace whose label is
`individual_worker_slowdown` has one culprit: the replica and stage that the published what-if analysis puts the slowdown down to. In the others nobody may be accused.
Our own what-if (detectors/features/step_estimate.py) is printed beside the published one: how many times as long as with equal work a step takes, and what of that the slowest worker, or unequal stages, cost.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from detectors.features.step_estimate import even_stages, pipeline_grid, stage_seconds
from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.job_steps import layout_of
from eagle_eye.app.evaluation.labelled_files import REMEDY, arrays_of, objects_of
from eagle_eye.app.evaluation.slow_workers import WorkerTimes, figure_of
from eagle_eye.errors import DataSetError

FROM_THE_START = (0, 20)
WHOLE_TRACE = 10_000
"""Steps of the rule of others: all that there are."""
COLUMNS = ("optype_names", "optype", "step", "dp_rank", "stage", "duration")


def figures(folder: Path) -> Iterator[Figure]:
    """One row a trace. Raises DataSetError."""
    for row in objects_of(folder / "labels.json", "trace", "label"):
        path = folder / f"trace_{row['trace']}.npz"
        job, stages = trace(path)
        yield figure_of(f"{row['trace']}: {row['label']}", job, _culprit(path, row, stages), FROM_THE_START, WHOLE_TRACE)
        if "blocking_slowdown" in row.get("published_what_if", {}):
            yield what_if(path, row, job)


def what_if(path: Path, row: dict[str, Any], job: WorkerTimes) -> Figure:
    """Our slowdown and its attribution beside the published ones; it has no goal: the models differ. Raises DataSetError."""
    columns = arrays_of(path, "step", "start_ts", "duration", "mb_id")
    steps, number = np.unique(columns["step"], return_inverse=True)
    begins, ends = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(begins, number, columns["start_ts"].astype(np.float64))
    np.maximum.at(ends, number, (columns["start_ts"] + columns["duration"]).astype(np.float64))
    grid, count, own = pipeline_grid(job.layout.workers, job.layout), float(columns["mb_id"].max()) + 1.0, job.compute_s.astype(np.float32)
    lasted = grid.length(own, count)
    without = own.copy()
    slowest = int(np.median(own, axis=0).argmax())
    without[:, slowest] = np.median(own, axis=1)
    times = {
        "all equal": np.broadcast_to(own.mean(axis=1, keepdims=True), own.shape),
        f"worker {slowest} as the others": without,
        "equal stages": even_stages(grid, own, stage_seconds(grid, own)) if grid.stages > 1 else own,
    }
    slowdowns = {name: float(np.median((ends - begins) / np.maximum(ends - begins - (lasted - grid.length(had, count)), 1e-9))) for name, had in times.items()}
    told = ", ".join(f"{name} {times:.2f}" for name, times in slowdowns.items())
    published = row["published_what_if"]["blocking_slowdown"]
    return Figure(what=f"{row['trace']}: what-if, times as long as with", figure=told, others=f"published: all equal {float(published):.2f}; Mw {row.get('Mw', float('nan')):.2f}, Ms {row.get('Ms', float('nan')):.2f}")


def trace(path: Path) -> tuple[WorkerTimes, int]:
    """Its workers are the pairs of replica and pipeline stage; the second is how many stages there are. Raises DataSetError."""
    columns = arrays_of(path, *COLUMNS)
    if len({len(columns[name]) for name in COLUMNS[1:]}) != 1 or not len(columns["step"]):
        raise DataSetError(f"{path}: its columns are empty or of different lengths; {REMEDY}")
    names = columns["optype_names"].tolist()
    computes = np.isin(columns["optype"], [names.index(name) for name in names if str(name).endswith("-compute")])
    steps, number = np.unique(columns["step"], return_inverse=True)
    replicas, stages = int(columns["dp_rank"].max()) + 1, int(columns["stage"].max()) + 1
    seconds = np.zeros((len(steps), replicas * stages))
    worker = columns["dp_rank"].astype(np.int64) * stages + columns["stage"]
    np.add.at(seconds, (number[computes], worker[computes]), columns["duration"][computes].astype(np.float64))
    return WorkerTimes(seconds, layout_of([index % stages for index in range(replicas * stages)]), tokens=False), stages


def _culprit(path: Path, row: dict[str, Any], stages: int) -> set[int]:
    """Raises DataSetError where the label says that there is one, and not which."""
    if not str(row["label"]).startswith("individual_worker"):
        return set()
    parts = row.get("published_what_if", {})
    try:
        replica, stage = (max(parts[name].items(), key=lambda item: float(item[1]))[0] for name in ("blocking_decompose_by_dp_rank", "blocking_decompose_by_stage"))
        return {int(replica) * stages + int(stage)}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataSetError(f"{path.parent / 'labels.json'}: {row['trace']}: no what-if by replica and stage; {REMEDY}") from error
