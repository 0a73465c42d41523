"""File systems: of all nodes, or of one."""

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob, StepSignals, TickSignals
from eagle_eye.app.evaluation.drill_corpus.kinds.of_parts import mount_of
from eagle_eye.app.evaluation.drill_corpus.kinds.signs import peers_cry, restarts, stands_still
from eagle_eye.app.evaluation.synthetic_cluster.job_scenario import (
    JobScenario,
    Parts,
    ScenarioPair,
    Victims,
    alone,
    as_drill,
)
from eagle_eye.types import Kind

from .step_changes import each_step, each_tick, reads, reads_everywhere

SLOW_READ_S, SLOW_STAT_S = 3.0, 2.0
CLEANED_S = 25.0


def _mount(jobs: Victims) -> Parts:
    return (mount_of(jobs[0].target.node),)


def _slow_for_all(job: DrillJob) -> None:
    """The server of the file system, and every loader waits for it."""
    reads_everywhere(job, Kind.MOUNT, {"read_s": SLOW_READ_S, "stat_s": SLOW_STAT_S})

    def change(step: StepSignals) -> None:
        step.data_s += 0.8

    each_step(job, change)


def _slow_once(job: DrillJob) -> None:
    """One look at all mounts takes long: a backup; the loaders had read ahead."""

    def change(signals: TickSignals) -> None:
        if signals.time < job.onset + 12.0:
            for name in ("read_s", "stat_s"):
                row = signals.metrics[Kind.MOUNT][name]
                row[np.isfinite(row)] = SLOW_STAT_S

    each_tick(job, change)


def _full(job: DrillJob) -> None:
    """No room on the mount of one node: its worker cannot write."""
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    reads(job, Kind.MOUNT, mount_of(job.target.node).name, {"free_bytes": 4096.0})
    stands_still(job, at)
    told = {"type": "OSError", "message": "[Errno 28] No space left on device: '/mnt/data/step-7'", "errno": "ENOSPC", "path": "/mnt/data/step-7", "free_bytes": 4096, "step": 7}
    job.tell(at, "exception", job.worker, rank=job.target.rank, more=told)
    peers_cry(job, at + 0.1)
    restarts(job, at)


def _fills_and_is_cleaned(job: DrillJob) -> None:
    """Old checkpoints are deleted in time."""

    def change(signals: TickSignals) -> None:
        row, at = signals.metrics[Kind.MOUNT]["free_bytes"], signals.place(Kind.MOUNT, mount_of(job.target.node).name)
        if signals.time < job.onset + CLEANED_S and np.isfinite(row[at]):
            row[at] = 8e9

    each_tick(job, change)


PAIRS = (
    ScenarioPair(
        JobScenario(name="the file system of all is slow, loaders wait", kind="storage", fault=True, happen=alone(_slow_for_all)),
        JobScenario(name="one look at the file system takes long", kind="storage", fault=False, happen=alone(_slow_once)),
    ),
    ScenarioPair(
        JobScenario(name="the mount of one node is full", kind="storage", fault=True, at=_mount, sick=False, happen=alone(_full)),
        JobScenario(name="a mount fills and is cleaned", kind="storage", fault=False, happen=alone(_fills_and_is_cleaned)),
    ),
    ScenarioPair(
        JobScenario(name="a mount hangs", kind="storage", fault=True, at=_mount, sick=False, informs=True, happen=as_drill("a mount hangs")),
        JobScenario(name="the kernel tells of a disk", kind="storage", fault=False, happen=as_drill("the kernel tells of a disk")),
    ),
)
