"""Injected slowness and failures of a web shop of 41 components, with its call graph: who is to blame. No training, but real metrics and a known root cause.

Of the labels only the component that raised the alert, its metric and the time of the alert are used. Healthy times are those of `noissue.metrics.csv.gz`, where a scenario has
it; the moments before are the intervals of the incident's own file that were over before the alert.
"""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from detectors.diagnosis.call_cost_ranking import CallCosts, Suspect, loss_of, ranking
from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.labelled_files import REMEDY, objects_of, text_of
from eagle_eye.errors import DataSetError
from eagle_eye.types import Doubles

PUBLISHED = {
    ("low traffic", "latency"): (0.571, 0.571), ("low traffic", "availability"): (0.833, 1.0), ("high traffic", "latency"): (0.571, 0.786),
    ("high traffic", "availability"): (0.667, 1.0), ("temporal traffic", "latency"): (1.0, 1.0), ("temporal traffic", "availability"): (0.75, 1.0),
}  # fmt: skip
"""Scenario and metric → top-1 and top-3 of the data set's authors (anomaly traversal), over other incidents of the same kinds."""
INTERVAL_S = 300.0
HEADS = 3
"""Rows above the numbers: component, metric, statistic."""
CALLS = ("requests", "Sum")


class IntervalMetrics(NamedTuple):
    """One file: what was measured in each interval."""

    begins: Doubles
    """Seconds since 1970."""
    columns: Mapping[tuple[str, str, str], Doubles]
    """(component, metric, statistic) → values, NaN where nothing was."""

    def of(self, component: str, metric: str, statistic: str) -> Doubles:
        return self.columns.get((component, metric, statistic), np.full(len(self.begins), np.nan))


NOTHING = IntervalMetrics(np.array([]), {})


def figures(folder: Path) -> Iterator[Figure]:
    """One row for each scenario and metric. Raises DataSetError."""
    places: dict[tuple[str, str], list[int]] = {}
    for issue in objects_of(folder / "issues.json", "scenario", "issue", "target", "root_cause"):
        try:
            target, cause, scenario = issue["target"], str(issue["root_cause"]["node"]), str(issue["scenario"])
            key = (scenario.rstrip("0123456789").replace("_", " "), str(target["metric"]))
            names = [each.name for each in suspects(folder / scenario, str(issue["issue"]), str(target["node"]), (key[1], str(target["agg"])), float(target["timestamp"]))]
        except (KeyError, TypeError, ValueError) as error:
            raise DataSetError(f"{folder / 'issues.json'}: {issue['issue']}: target or root cause of another form: {error}; {REMEDY}") from error
        places.setdefault(key, []).append(names.index(cause) if cause in names else len(names))
    for key, found in places.items():
        yield _figure(key, found)


def suspects(folder: Path, issue: str, target: str, metric: tuple[str, str], alert: float) -> list[Suspect]:
    """A scenario's folder and one of its issues → who may be to blame, worst first. `metric`: name and statistic; `alert`: seconds since 1970. Raises DataSetError."""
    during = _metrics(folder / f"{issue}.metrics.csv.gz")
    usual = folder / "noissue.metrics.csv.gz"
    healthy = _metrics(usual) if usual.exists() else NOTHING
    needs = _calls(folder / "graph.csv")
    over = during.begins <= alert - INTERVAL_S
    struck = ~over & (during.begins <= alert + INTERVAL_S)
    losses = {}
    for name in {name for name, *_ in during.columns}:
        cost = _cost(metric[0], during.of(name, *metric))
        costs = CallCosts(cost[struck], during.of(name, *CALLS)[struck], cost[over], _cost(metric[0], healthy.of(name, *metric)))
        losses[name] = loss_of(costs)
    return list(ranking(losses, needs, target))


def _cost(metric: str, values: Doubles) -> Doubles:
    """Availability is the percentage of calls that succeed."""
    return 1.0 - values / 100.0 if metric == "availability" else values


def _figure(key: tuple[str, str], places: list[int]) -> Figure:
    count = len(places)
    first, third = (sum(place < top for place in places) / count for top in (1, 3))
    others = PUBLISHED.get(key)
    return Figure(
        what=f"{' '.join(key)}: {count} incidents, root cause ranked first, among the first three",
        figure=f"{first:.3f}, {third:.3f}",
        goal=f"≥ {others[0]:.3f}, ≥ {others[1]:.3f}" if others else "",
        met=first >= others[0] and third >= others[1] if others else None,
        others=f"the authors' anomaly traversal: {others[0]:.3f}, {others[1]:.3f}" if others else "",
    )


def _metrics(path: Path) -> IntervalMetrics:
    rows = list(csv.reader(text_of(path).splitlines()))
    try:
        heads, body = rows[:HEADS], [row for row in rows[HEADS:] if row and row[0].replace(".", "").isdigit()]
        table = np.array([[float(cell) if cell else np.nan for cell in row] for row in body])
        if not len(table) or {len(head) for head in heads} != {table.shape[1]}:
            raise ValueError("no row of numbers, or rows of different lengths")
    except ValueError as error:
        raise DataSetError(f"{path}: {error}; {REMEDY}") from error
    return IntervalMetrics(table[:, 0], {(component, metric, statistic): table[:, column] for column, (component, metric, statistic) in enumerate(zip(*heads, strict=True)) if column})


def _calls(path: Path) -> Mapping[str, set[str]]:
    """Component → whom it calls, of a matrix with a row a caller."""
    rows = list(csv.reader(text_of(path).splitlines()))
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise DataSetError(f"{path}: no matrix of callers and called; {REMEDY}")
    return {row[0]: {name for name, cell in zip(rows[0][1:], row[1:], strict=True) if cell not in ("", "0", "0.0")} for row in rows[1:]}
