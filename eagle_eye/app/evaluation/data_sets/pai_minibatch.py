"""Time of each mini-batch of the workers of jobs in Alibaba's cluster, which do not wait for one another; all mini-batches of a job are of one size.

The authors say of job 1 that worker 6 becomes slow in the middle, and of job 3 that several are, without their names. Of other jobs nothing is known: what is found is printed.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.job_steps import layout_of
from eagle_eye.app.evaluation.labelled_files import REMEDY, table_of
from eagle_eye.app.evaluation.slow_workers import WorkerTimes, figure_of
from eagle_eye.errors import DataSetError

WINDOW = 20
"""Steps of the rule of others."""
LABELS = {"job_1": ({6}, (180, 200))}
"""Job → its slow workers, and between which mini-batches they must be found: it begins at 180."""
UNIT = 1000.0
"""Times are normalised to 0 to 1,000: a unit is taken as a millisecond."""


def figures(folder: Path) -> Iterator[Figure]:
    """One row a job. Raises DataSetError."""
    paths = sorted(folder.glob("job_*.csv.gz"))
    if not paths:
        raise DataSetError(f"{folder}: it has no job_N.csv.gz; {REMEDY}")
    for path in paths:
        name = path.name.partition(".")[0]
        expected, onset = LABELS.get(name, (None, (0, 0)))
        words = f"{name}: worker {min(expected)} in the middle" if expected else f"{name}: no worker is named"
        yield figure_of(words, mini_batches(path), expected, onset, WINDOW)


def mini_batches(path: Path) -> WorkerTimes:
    """Each worker's mini-batches in their order. Raises DataSetError."""
    times: dict[int, list[float]] = {}
    try:
        for row in table_of(path, "worker", "batch_time_norm"):
            times.setdefault(int(row["worker"]), []).append(float(row["batch_time_norm"]) / UNIT)
    except ValueError as error:
        raise DataSetError(f"{path}: {error}; {REMEDY}") from error
    shortest = min(map(len, times.values()))
    seconds = np.array([times[worker][:shortest] for worker in sorted(times)]).T
    return WorkerTimes(np.maximum(seconds, 1e-3), layout_of([0] * len(times)), tokens=True)
