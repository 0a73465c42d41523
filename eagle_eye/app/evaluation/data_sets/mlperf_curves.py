"""Loss and step time of language models trained for MLPerf, by 19 organisations: healthy runs accuse nobody, and faults written into them are told.

Where a run logs no loss in each step, that of each few steps is taken (fine-tuning). A run that did not end is left out.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from eagle_eye.app import plugin_wiring
from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.labelled_files import REMEDY, table_of
from eagle_eye.app.evaluation.loss_curves import LossCurve, healthy
from eagle_eye.app.evaluation.loss_faults import figures_of_faults
from eagle_eye.config import Config
from eagle_eye.errors import DataSetError
from eagle_eye.types import Doubles

HEALTHY = "success"
EVERY = 4
"""Faults are written into one run of so many."""


def figures(folder: Path) -> Iterator[Figure]:
    """As they are, then with faults. Raises DataSetError."""
    curves = runs(folder)
    detectors = plugin_wiring.detectors(Config())
    yield healthy(curves, detectors)
    yield from figures_of_faults([curve for curve in curves if len(curve.losses) >= 100][::EVERY], detectors)


def runs(folder: Path) -> list[LossCurve]:
    """Those that ended well. Raises DataSetError."""
    sparse, each_step = _rows(folder / "sparse_loss.csv.gz", "samples"), _rows(folder / "steps.csv.gz", "samples_or_step", "step_time_s")
    rows = {**sparse, **each_step}
    found = []
    for row in table_of(folder / "runs.csv", "run", "run_start_ms", "run_stop_ms", "status"):
        if row["status"] == HEALTHY and row["run"] in rows:
            table = np.array(rows[row["run"]])
            found.append(_curve(row["run"], table[np.argsort(table[:, 0], kind="stable")], _hours(row)))
    return found


def _rows(path: Path, step: str, spent: str = "") -> Mapping[str, list[tuple[float, float, float, float]]]:
    """Run → its lines: time in seconds, step, loss, seconds of the step."""
    rows: dict[str, list[tuple[float, float, float, float]]] = {}
    columns = ("run", "time_ms", step, "loss", *([spent] if spent else []))
    for line, row in enumerate(table_of(path, *columns), 2):
        try:
            rows.setdefault(row["run"], []).append((float(row["time_ms"]) / 1000.0, float(row[step]), _number(row["loss"]), _number(row[spent]) if spent else np.nan))
        except ValueError as error:
            raise DataSetError(f"{path}, line {line}: {error}; {REMEDY}") from error
    return rows


def _number(word: str) -> float:
    return float(word) if word else np.nan


def _hours(row: Mapping[str, str]) -> float:
    try:
        return (_number(row["run_stop_ms"]) - float(row["run_start_ms"])) / 3_600_000.0
    except ValueError as error:
        raise DataSetError(f"runs.csv: run {row['run']}: {error}; {REMEDY}") from error


def _curve(run: str, table: Doubles, hours: float) -> LossCurve:
    rising = np.append(True, (np.diff(table[:, 0]) > 0.0) & (np.diff(np.maximum.accumulate(table[:, 1])) > 0.0))
    times, steps, losses, seconds = table[rising].T
    return LossCurve(f"mlperf_curves/{run}", times, steps, losses, seconds, hours)
