"""Series of one metric each (servers, traffic, tweets, made up) in which people have marked windows: alarms of the forecast of `metric_forecast`, by the score of the benchmark that they are from.

The forecast is fitted to the part of each series that the benchmark gives for learning, without labels. An alarm is a row in which the mean score of the newest looks comes above the threshold, as a claim
of the detector is told once. The threshold is the detector's own of each series, which no label has touched; and, as the benchmark does with every detector, the best one for all series together.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from detectors.features.metric_model import departures, fitted
from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.labelled_files import REMEDY, arrays_of, json_of, table_of
from eagle_eye.app.evaluation.labelled_machines import mean_of_looks
from eagle_eye.app.evaluation.window_score import STANDARD, SeriesWindows, best, probation, score, windows_of
from eagle_eye.errors import DataSetError
from eagle_eye.types import Doubles

GOAL = 75.0
THRESHOLDS = np.logspace(-5.0, -1.0, 120)
"""Shares of all rows that are above a threshold that is tried."""
PEERS = ("ARTime", "contextOSE", "numenta")
PUBLISHED = "whole corpus: ARTime 74.9, CAD OSE 69.9, Numenta HTM 70.1"


class ScoredSeries(NamedTuple):
    """One of them."""

    file: str
    windows: SeriesWindows
    scores: Doubles
    """Mean of the newest looks, a row each."""
    limit: float
    """The detector's own threshold."""


def figures(folder: Path) -> Iterator[Figure]:
    """Standard profile. Raises DataSetError."""
    series = scored(folder)
    own = score([(each.windows, begun(each.scores, each.limit)) for each in series], 1.0, STANDARD)
    yield Figure(what=f"{len(series)} series, {sum(each.windows.labelled for each in series)} windows: the detector's own thresholds, standard profile", figure=f"{own:.1f}")
    limits = np.quantile(np.concatenate([each.scores for each in series]), 1.0 - THRESHOLDS)
    reached = max(score([(each.windows, begun(each.scores, limit)) for each in series], 1.0, STANDARD) for limit in limits.tolist())
    yield Figure(
        what="the same: one threshold, the best for all series together", figure=f"{reached:.1f}", goal=f"≥ {GOAL:.0f}", met=reached >= GOAL, others=_others(folder, series),
        reason="" if reached >= GOAL else "a forecast from the moment before knows neither the time of day nor a level that is lost slowly",
    )  # fmt: skip


def scored(folder: Path) -> list[ScoredSeries]:
    """All that files.csv names. Raises DataSetError."""
    marked = json_of(folder / "windows.json")
    found = []
    for row in table_of(folder / "files.csv", "file", "gz"):
        path = folder / row["gz"]
        try:
            table = table_of(path, "timestamp", "value")
            values = np.array([[float(line["value"])] for line in table])
            place = {line["timestamp"]: number for number, line in reversed(list(enumerate(table)))}
            windows = windows_of(len(values), [(place[first[:19]], place[last[:19]]) for first, last in marked[row["file"]]])
            learning = probation(len(values))
            model = fitted(("value",), values[: learning - 1], values[1:learning])
        except (KeyError, TypeError, ValueError) as error:
            raise DataSetError(f"{path}: its values or its windows are of another form: {error}; {REMEDY}") from error
        seen = departures(model, values[:-1], values[1:])
        found.append(ScoredSeries(row["file"], windows, np.append(0.0, mean_of_looks(seen.scores)), model.limit))
    return found


def begun(scores: Doubles, limit: float) -> Doubles:
    """1.0 where they come above the limit."""
    above = scores > limit
    alarms: Doubles = (above & ~np.append(False, above[:-1])).astype(np.float64)
    return alarms


def _others(folder: Path, series: Sequence[ScoredSeries]) -> str:
    """Scores that other detectors reach on these series, each with its best threshold, by their raw scores beside the data; what was published, where there are none."""
    path = folder / "detector_scores.npz"
    if not path.exists():
        return PUBLISHED
    raw = arrays_of(path, *(f"{name}|{each.file}" for name in PEERS for each in series))
    reached = {name: best([(each.windows, raw[f"{name}|{each.file}"].astype(np.float64)) for each in series], STANDARD)[0] for name in PEERS}
    return f"these series: {', '.join(f'{name} {points:.1f}' for name, points in reached.items())}; {PUBLISHED}"
