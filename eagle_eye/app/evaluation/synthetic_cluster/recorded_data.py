"""Real data that a synthetic cluster can be made on: how compute times vary (straggler_ops), powers of nodes (mlperf_power), temperatures of GPUs (acme_dist).

Each is used where its folder is there. Of powers only what a node differs from the others in the same moment is taken, since a synthetic job has phases of its own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eagle_eye.app.evaluation.data_sets import straggler_ops
from eagle_eye.app.evaluation.labelled_files import REMEDY, arrays_of, objects_of, table_of
from eagle_eye.errors import DataSetError
from eagle_eye.types import Doubles, Floats

MOST_NOISE = 0.5
"""Logarithm: what is beyond it is no noise."""
FEWEST_METERS, FEWEST_READINGS, TRAINS = 8, 600, 0.75
"""Of a run whose powers are used; and the share of the highest power of the median node above which it trains."""
UNDER_LOAD = (0.7, 0.99)
"""Quantiles of the temperatures of a cluster in which two thirds of all GPUs are idle."""
FOLDERS = ("straggler_ops", "mlperf_power", "acme_dist")


class RecordedData(NamedTuple):
    """What was found; None: the synthetic default counts."""

    noise: Doubles | None = None
    """Logarithms of compute times beside their median."""
    power: Floats | None = None
    """Meters × readings of two seconds: each as a multiple of the median of all in that moment."""
    temperature: Floats | None = None
    """Usual temperatures of GPUs under load, in degrees Celsius."""
    memory_temperature: Floats | None = None


def recorded_data(data: Path) -> RecordedData:
    """Raises DataSetError."""
    there = [name for name in FOLDERS if (data / name).is_dir()]
    if not there:
        raise DataSetError(f"{data}: it has none of {', '.join(FOLDERS)}; leave --data out, or name the folder that they are in")
    noise = measured_noise(data) if "straggler_ops" in there else None
    power = _powers(data / "mlperf_power") if "mlperf_power" in there else None
    temperatures = _temperatures(data / "acme_dist") if "acme_dist" in there else (None, None)
    return RecordedData(noise, power, *temperatures)


def measured_noise(data: Path) -> Doubles:
    """How compute times of real workers vary beside the median of their stage, from the traces of straggler_ops without a slow worker. Raises DataSetError."""
    folder = data / "straggler_ops"
    found = []
    for row in objects_of(folder / "labels.json", "trace", "label"):
        if not str(row["label"]).startswith("individual_worker"):
            job, stages = straggler_ops.trace(folder / f"trace_{row['trace']}.npz")
            found += [_deviations(job.compute_s[:, stage::stages]) for stage in range(stages)]
    noise = np.concatenate(found) if found else np.empty(0)
    if not len(noise):
        raise DataSetError(f"{folder}: it has no trace without a slow worker; leave --data out, or copy the data set again")
    return noise


def _deviations(seconds: Doubles) -> Doubles:
    """Of each worker from its own usual place among the peers, in each step: what is not the same every time."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(seconds / np.median(seconds, axis=1, keepdims=True))
    logs -= np.median(logs, axis=0, keepdims=True)
    return logs[np.isfinite(logs) & (np.abs(logs) < MOST_NOISE)]


def _powers(folder: Path) -> Floats:
    found = [power for path in sorted(folder.glob("*.npz")) if (power := _of_run(np.asarray(arrays_of(path, "ac_watt")["ac_watt"], np.float64))) is not None]
    if not found:
        raise DataSetError(f"{folder}: it has no run of {FEWEST_METERS} nodes and {FEWEST_READINGS} readings in training; {REMEDY}")
    return max(found, key=lambda power: power.size)


def _of_run(watts: Doubles) -> Floats | None:
    """While it trains; what was not read is what the others show."""
    if watts.ndim != 2 or len(watts) < FEWEST_METERS:
        return None
    watts = watts[:, np.isfinite(watts).sum(axis=0) * 2 > len(watts)]
    median = np.nanmedian(watts, axis=0) if watts.size else np.empty(0)
    trains = median > TRAINS * median.max(initial=0.0)
    if trains.sum() < FEWEST_READINGS:
        return None
    shares: Floats = np.nan_to_num(watts[:, trains] / median[trains], nan=1.0).astype(np.float32)
    return shares


def _temperatures(folder: Path) -> tuple[Floats, Floats]:
    rows = table_of(folder / "seren_cdf.csv.gz", "metric", "x", "cdf_pct")
    return _under_load(folder, rows, "gpu_temp_c"), _under_load(folder, rows, "gpu_mem_temp_c")


def _under_load(folder: Path, rows: Sequence[dict[str, str]], metric: str) -> Floats:
    try:
        points = np.array([(float(row["x"]), float(row["cdf_pct"]) / 100.0) for row in rows if row["metric"] == metric])
    except ValueError as error:
        raise DataSetError(f"{folder}: {metric}: {error}; {REMEDY}") from error
    loaded = points[(points[:, 1] >= UNDER_LOAD[0]) & (points[:, 1] <= UNDER_LOAD[1]), 0] if len(points) else points
    if not len(loaded):
        raise DataSetError(f"{folder}: it has no {metric}; {REMEDY}")
    return loaded.astype(np.float32)
