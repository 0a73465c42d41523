"""A synthetic cluster, job by job: made, judged, written; one job is held at a time."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from detectors.runtime.evaluator import Prototypes
from eagle_eye.app.evaluation.data_sets import straggler_ops
from eagle_eye.app.evaluation.labelled_files import objects_of
from eagle_eye.errors import DataSetError
from eagle_eye.types import Doubles

from .cluster_jobs import BEGAN
from .cluster_score import JobLabel, JobVerdict
from .frame_files import FrameFiles
from .job_judge import JobJudge
from .job_run import RunFrame, run_frames
from .scenarios import PlannedJob

HOUR_S = 3600.0
MOST_NOISE = 0.5
"""Logarithm: what is beyond it is no noise."""


class ClusterRun(NamedTuple):
    """What came of a cluster."""

    labels: list[JobLabel]
    verdicts: list[JobVerdict]
    digest: str
    """Of all frames, events and labels: the same for the same seed."""


def run_cluster(jobs: list[PlannedJob], detectors: Prototypes, files: FrameFiles | None, noise: Doubles | None, done: Callable[[PlannedJob], None]) -> ClusterRun:
    """`detectors` empty: the cluster is only made. `done` is called after each job."""
    labels: list[JobLabel] = []
    verdicts: list[JobVerdict] = []
    digest = hashlib.blake2b(digest_size=16)
    for job in jobs:
        judge = JobJudge(job.layout, detectors) if detectors else None
        if files is not None:
            files.begin(job)
        onset = end = BEGAN
        for made in run_frames(job, noise):
            _feed(digest.update, made)
            onset, end = end if made.begins else onset, made.frame.time
            if judge is not None:
                judge.take(made.frame)
            if files is not None:
                files.add(made)
        labels.append(JobLabel(job=job.name, scenario=job.scenario.name, fault=job.scenario.fault, onset=onset, end=end, hours=(end - BEGAN) / HOUR_S, culprits=job.culprits))
        digest.update(msgspec.json.encode(labels[-1]))
        verdicts += judge.verdicts if judge is not None else ()
        done(job)
    if files is not None:
        files.finish(labels)
    return ClusterRun(labels, verdicts, digest.hexdigest())


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


def _feed(update: Callable[[bytes], None], made: RunFrame) -> None:
    update(np.float64(made.frame.time).tobytes())
    for name, values in made.values.items():
        update(name.encode())
        update(values.tobytes())
    for event in made.events:
        update(msgspec.json.encode(event, order="deterministic"))
