"""Application servers, 19 metrics each five minutes: AUC-PR, and whether the metrics that explain an anomaly are named."""

from collections.abc import Iterator
from pathlib import Path

from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.labelled_machines import explaining_metrics, machines, mean_score, scored
from eagle_eye.app.evaluation.precision_curves import average_precision

GOAL = 0.50


def figures(folder: Path) -> Iterator[Figure]:
    """Means over the servers. Raises DataSetError."""
    found = [scored(machine) for machine in machines(folder)]
    precisions = [average_precision(each.machine.labels, each.scores) for each in found]
    yield mean_score(found, precisions, "servers: mean AUC-PR", goal=GOAL, others="PCA of 90 % 0.324, random 0.056")
    yield explaining_metrics(found)
