"""A synthetic cluster, run by run: made, judged, written; one run is held at a time."""

import hashlib
import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from detectors.runtime.evaluator import Prototypes
from eagle_eye.app.evaluation.drill_corpus.drill_frames import JobFrames
from eagle_eye.app.evaluation.drill_corpus.drill_job import BEGAN, DrillJob
from eagle_eye.frames import Frame

from .cluster_jobs import PlannedRun, jobs_of
from .cluster_score import JobLabel, JobVerdict
from .frame_files import FrameFiles
from .healthy_signals import as_sensors_tell, make_healthy
from .job_judge import JobJudge
from .job_scenario import nodes_of
from .recorded_data import RecordedData

HOUR_S = 3600.0


class ClusterRun(NamedTuple):
    """What came of a cluster."""

    labels: list[JobLabel]
    verdicts: list[JobVerdict]
    digest: str
    """Of all frames, events and labels: the same for the same seed."""


def run_cluster(runs: Sequence[PlannedRun], detectors: Prototypes, files: FrameFiles | None, recorded: RecordedData, done: Callable[[PlannedRun], None]) -> ClusterRun:
    """`detectors` empty: the cluster is only made. `done` is called after each run."""
    labels: list[JobLabel] = []
    verdicts: list[JobVerdict] = []
    digest = FrameDigest()
    for run in runs:
        jobs = jobs_of(run)
        run.scenario.happen(jobs)
        labels += labels_of(run, jobs)
        for job in jobs:
            make_healthy(job, recorded, run.seed)
            if files is not None:
                files.begin(job)
        judge = JobJudge(jobs, detectors) if detectors else None
        for frame in frames_of(jobs, run.until):
            digest.take(frame)
            if files is not None:
                files.add(frame)
            if judge is not None:
                judge.take(frame)
        verdicts += judge.verdicts if judge is not None else ()
        done(run)
    for label in labels:
        digest.add(msgspec.json.encode(label))
    if files is not None:
        files.finish(labels)
    return ClusterRun(labels, verdicts, digest.text)


def frames_of(jobs: Sequence[DrillJob], until: float) -> Iterator[Frame]:
    """Of all jobs of a run, in the order of their times, as sensors tell them."""
    for frame in heapq.merge(*(JobFrames(job, until) for job in jobs), key=lambda frame: frame.time):
        as_sensors_tell(frame)
        yield frame


def labels_of(run: PlannedRun, jobs: Sequence[DrillJob]) -> Iterator[JobLabel]:
    """One for each job, once it has happened to them."""
    scenario = run.scenario
    parts = scenario.at(jobs) if scenario.fault else ()
    culprits = nodes_of(parts, jobs) if scenario.sick else ()
    for job in jobs:
        yield JobLabel(
            job=job.name, scenario=scenario.name, fault=scenario.fault, onset=run.onset, end=run.until, hours=(run.until - BEGAN) / HOUR_S, culprits=culprits, kind=scenario.kind,
            entities=tuple(map(str, parts)), informs=scenario.informs, twin=run.twin, shared=f"run{run.number}" if scenario.fault and scenario.jobs > 1 else "",
        )  # fmt: skip


class FrameDigest:
    """Of everything that is written of a cluster."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def text(self) -> str:
        return self._hash.hexdigest()

    def add(self, data: bytes) -> None:
        """A label."""
        self._hash.update(data)

    def take(self, frame: Frame) -> None:
        """A frame."""
        self.add(np.array([frame.time, *frame.reporting.values(), *frame.clocks.values()]).tobytes())
        metrics = chain.from_iterable(values.items() for values in frame.metrics.values())
        steps = chain.from_iterable(step.values.items() for step in frame.steps)
        for name, values in chain(metrics, steps):
            self.add(name.encode())
            self.add(np.ascontiguousarray(values).tobytes())
        for event in frame.events:
            self.add(msgspec.json.encode(event, order="deterministic"))
