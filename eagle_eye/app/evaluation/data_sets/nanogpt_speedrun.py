"""Loss and step time of GPT-2-sized models that were trained for speed: healthy runs accuse nobody, and faults written into them are told.

Runs with a loss in each step, and runs with step times alone; those that hold nothing but validation losses are left out. Of a run without times a step is taken for a second, and no hours count.
"""

from collections.abc import Iterator
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

FILES = ("train_loss_runs.csv.gz", "step_time_runs.csv.gz")


def figures(folder: Path) -> Iterator[Figure]:
    """As they are, then with faults. Raises DataSetError."""
    curves = [curve for name in FILES for curve in runs(folder / name)]
    detectors = plugin_wiring.detectors(Config())
    yield healthy(curves, detectors)
    yield from figures_of_faults(curves, detectors)


def runs(path: Path) -> list[LossCurve]:
    """Raises DataSetError."""
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for line, row in enumerate(table_of(path, "run", "step", "train_loss", "val_loss", "train_time_ms"), 2):
        if row["val_loss"]:
            continue  # an evaluation before the step of this number
        try:
            step, loss, time = (float(row[name]) if row[name] else np.nan for name in ("step", "train_loss", "train_time_ms"))
        except ValueError as error:
            raise DataSetError(f"{path}, line {line}: {error}; {REMEDY}") from error
        rows.setdefault(row["run"], []).append((step, loss, time / 1000.0))
    return [_curve(run, np.array(table)) for run, table in rows.items()]


def _curve(run: str, table: Doubles) -> LossCurve:
    table = table[np.append(True, np.diff(np.maximum.accumulate(table[:, 0])) > 0.0)]
    steps, losses, spent = table.T
    seconds = np.append(np.nan, np.diff(spent))
    known = bool(np.isfinite(spent).all())
    seconds[~(seconds > 0.0)] = np.nan
    times = np.cumsum(np.where(np.isfinite(seconds), seconds, 1.0))
    return LossCurve(f"nanogpt_speedrun/{run}", times, steps, losses, seconds, float(np.nansum(seconds)) / 3600.0 if known else 0.0)
