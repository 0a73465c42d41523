"""Application servers, 19 metrics each five minutes: AUC-PR, and whether the metrics that explain an anomaly are named."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.labelled_machines import explaining_metrics, machines, scored
from eagle_eye.app.evaluation.precision_curves import average_precision

GOAL = 0.50


def figures(folder: Path) -> Iterator[Figure]:
    """Means over the servers. Raises DataSetError."""
    found = [scored(machine) for machine in machines(folder)]
    precisions = [average_precision(each.machine.labels, each.scores) for each in found]
    precision = float(np.mean(precisions))
    worst = min(zip(precisions, (each.machine.name for each in found), strict=True))
    yield Figure(
        what=f"{len(found)} servers: mean AUC-PR",
        figure=f"{precision:.3f}",
        goal=f"≥ {GOAL}",
        met=precision >= GOAL,
        others="PCA of 90 % 0.324, random 0.056",
        reason="" if precision >= GOAL else f"lowest: {worst[1]} {worst[0]:.3f}",
    )
    yield explaining_metrics(found)
