"""Servers whose metrics were recorded while they were healthy, and once more with labels: what the forecast of `metric_forecast` makes of them.

It is fitted to the training part alone; its score is the mean of as many samples as the detector's. The metrics that explain a labelled range are the strongest in it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from detectors.features.metric_model import Departures, departures, fitted
from detectors.metric_forecast import LOOKS
from eagle_eye.errors import DataSetError
from eagle_eye.types import Doubles, Integers

from .figures import Figure
from .labelled_files import REMEDY, arrays_of, objects_of

HIT_GOAL = 0.75


class LabelledMachine(NamedTuple):
    """One of them."""

    name: str
    train: Doubles
    """Samples × metrics."""
    test: Doubles
    labels: Integers
    """Of each sample of the test: 1 = a person called it abnormal."""
    explained: Sequence[tuple[int, int, frozenset[int]]]
    """First and last sample of a range, and the metrics (from 0) that a person says explain it."""


class MachineScores(NamedTuple):
    """What was made of it."""

    machine: LabelledMachine
    scores: Doubles
    """Of each sample of the test."""
    hits: Sequence[float]
    """Of each range that is explained by k metrics: the share of them that is among our k strongest."""


def machines(folder: Path) -> Iterator[LabelledMachine]:
    """Every NAME.npz with its NAME.interpretation.json. Raises DataSetError."""
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise DataSetError(f"{folder}: it has no machine (.npz); {REMEDY}")
    for path in paths:
        yield _machine(path)


def scored(machine: LabelledMachine) -> MachineScores:
    """Fit, forecast, compare. Raises DataSetError for a training part that is too short."""
    train, test = machine.train, machine.test
    names = tuple(f"metric {number}" for number in range(1, train.shape[1] + 1))
    try:
        model = fitted(names, train[:-1], train[1:], network=True)
    except ValueError as error:
        raise DataSetError(f"{machine.name}: {error}; {REMEDY}") from error
    seen = departures(model, np.vstack([train[-1:], test[:-1]]), test)
    return MachineScores(machine, mean_of_looks(seen.scores), [_hits(seen, *each) for each in machine.explained if each[2]])


def mean_score(found: Sequence[MachineScores], scores: Sequence[float], what: str, *, goal: float, others: str) -> Figure:
    """The mean of one score of each machine; where it misses the goal, with the lowest."""
    mean = float(np.mean(scores))
    lowest, name = min(zip(scores, (each.machine.name for each in found), strict=True))
    return Figure(
        what=f"{len(found)} {what}", figure=f"{mean:.3f}", goal=f"≥ {goal}", met=mean >= goal, others=others, reason="" if mean >= goal else f"lowest: {name} {lowest:.3f}"
    )


def explaining_metrics(found: Sequence[MachineScores]) -> Figure:
    """Whether the metrics that a person says explain an anomaly are named: the mean over all of them."""
    hits = [hit for each in found for hit in each.hits]
    hit = float(np.mean(hits)) if hits else np.nan
    return Figure(what=f"{len(hits)} anomalies: metrics that explain them (HitRate@100 %)", figure=f"{hit:.3f}", goal=f"≥ {HIT_GOAL}", met=hit >= HIT_GOAL)


def mean_of_looks(scores: Doubles) -> Doubles:
    """Of the newest samples at each; of the first ones fewer."""
    sums = np.cumsum(np.concatenate([np.zeros(LOOKS), scores]))
    means: Doubles = (sums[LOOKS:] - sums[:-LOOKS]) / np.minimum(np.arange(1, len(scores) + 1), LOOKS)
    return means


def _hits(seen: Departures, first: int, last: int, metrics: frozenset[int]) -> float:
    strongest = np.argsort(-Departures(*(each[first : last + 1] for each in seen)).explained(), kind="stable")[: len(metrics)]
    return len(metrics & set(strongest.tolist())) / len(metrics)


def _machine(path: Path) -> LabelledMachine:
    arrays = arrays_of(path, "train", "test", "label")
    train, test, labels = (np.asarray(arrays[name]) for name in ("train", "test", "label"))
    if train.ndim != 2 or test.ndim != 2 or train.shape[1] != test.shape[1] or labels.shape != test.shape[:1] or not labels.any():
        raise DataSetError(f"{path}: its parts are of different sizes, or nothing is labelled; {REMEDY}")
    explanations = path.with_name(f"{path.stem}.interpretation.json")
    try:
        explained = [(int(row["start"]), int(row["end"]), frozenset(int(metric) - 1 for metric in row["dims_1based"])) for row in objects_of(explanations, "start", "end", "dims_1based")]
    except (TypeError, ValueError) as error:
        raise DataSetError(f"{explanations}: a range of another form: {error}; {REMEDY}") from error
    if any(not 0 <= first <= last < len(test) for first, last, _ in explained):
        raise DataSetError(f"{explanations}: a range is not within the test; {REMEDY}")
    return LabelledMachine(path.stem, train.astype(np.float64), test.astype(np.float64), labels.astype(np.int64), explained)
