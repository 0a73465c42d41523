"""Servers of an Internet company, 38 metrics a minute: VUS-PR, and whether the metrics that explain an anomaly are named.

The published VUS-PR of others (TSB-AD) are fitted to the beginning of the test parts, and the beginning of some is left out; here the training parts are used, and the whole test.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.labelled_machines import explaining_metrics, machines, mean_score, scored
from eagle_eye.app.evaluation.precision_curves import average_precision, period_of, vus_pr

GOAL = 0.42


def figures(folder: Path) -> Iterator[Figure]:
    """Means over the machines. Raises DataSetError."""
    found = [scored(machine) for machine in machines(folder)]
    areas = [vus_pr(each.machine.labels, each.scores, period_of(each.machine.test[:, 0])) for each in found]
    yield mean_score(found, areas, "machines: mean VUS-PR", goal=GOAL, others="PCA 0.364, KMeansAD 0.358, CNN 0.353 (TSB-AD, over 20 files)")
    precision = float(np.mean([average_precision(each.machine.labels, each.scores) for each in found]))
    yield Figure(what="the same: mean AUC-PR", figure=f"{precision:.3f}", others="PCA of 90 % 0.482, largest deviation 0.360, random 0.047")
    yield explaining_metrics(found)
