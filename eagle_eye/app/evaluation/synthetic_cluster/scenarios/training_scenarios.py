"""What workers log of the training itself: losses, gradient norms, digests of parameters and of batches, the scale of the loss."""

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob, StepSignals
from eagle_eye.app.evaluation.synthetic_cluster.job_scenario import (
    JobScenario,
    ScenarioPair,
    alone,
    as_drill,
    worker_or_gpu,
)

from .step_changes import StepCount, each_step

DIGESTS = 1 << 24
RISES = 0.006
"""Of the loss, in each step."""
NORM_TIMES = 30.0


def _drifts(job: DrillJob) -> None:
    count = StepCount()
    level: list[float] = []

    def change(step: StepSignals) -> None:
        since = count.since(step)
        level.append(float(np.median(step.loss)))
        step.loss += level[0] - level[-1] + RISES * since

    each_step(job, change)


def _flattens(job: DrillJob) -> None:
    """It has learned what it can: the loss falls no more."""
    count = StepCount()
    level: list[float] = []

    def change(step: StepSignals) -> None:
        count.since(step)
        level.append(2.0 + 4.0 * float(np.exp(-step.number / 300.0)))
        step.loss += level[0] - level[-1]

    each_step(job, change)


def _norm_jumps(job: DrillJob) -> None:
    def change(step: StepSignals) -> None:
        step.grad_norm *= NORM_TIMES

    each_step(job, change)


def _few_large_norms(job: DrillJob) -> None:
    """Odd batches, now and then."""

    def change(step: StepSignals) -> None:
        if job.rng.random() < 0.02:
            step.grad_norm *= 6.0

    each_step(job, change)


def _corrupted(job: DrillJob) -> None:
    """The parameters of one replica are not those of the others any more."""

    def change(step: StepSignals) -> None:
        digests = step.logged["replica_digest"]
        if np.isfinite(digests).any():
            digests[job.target.rank] = np.float32(job.rng.integers(1, DIGESTS))

    each_step(job, change)


def _shards(job: DrillJob) -> None:
    """Each worker holds a part of its own of the parameters, so all digests differ from the first step on."""

    def tell(step: StepSignals) -> None:
        digests = step.logged["replica_digest"]
        if np.isfinite(digests).any():
            digests[:] = job.rng.integers(1, DIGESTS, len(digests)).astype(np.float32)

    job.effect.script = tell


PAIRS = (
    ScenarioPair(
        JobScenario(name="loss not finite, of one worker first", kind="loss", fault=True, at=worker_or_gpu, most_stages=1, happen=as_drill("loss not finite, of one worker first")),
        JobScenario(name="one infinite gradient norm of a loss scaler", kind="loss", fault=False, most_stages=1, happen=as_drill("one infinite gradient norm of a loss scaler")),
    ),
    ScenarioPair(
        JobScenario(name="loss not finite, of all at once", kind="loss", fault=True, happen=as_drill("loss not finite, of all at once")),
        JobScenario(name="loss is logged seldom", kind="loss", fault=False, happen=as_drill("loss is logged seldom")),
    ),
    ScenarioPair(
        JobScenario(name="loss jumps to 2 to 6 times", kind="loss", fault=True, happen=as_drill("loss jumps to 2 to 6 times")),
        JobScenario(name="loss varies more", kind="loss", fault=False, happen=as_drill("loss varies more")),
    ),
    ScenarioPair(
        JobScenario(name="loss drifts upwards", kind="loss", fault=True, happen=alone(_drifts)),
        JobScenario(name="loss falls no more", kind="loss", fault=False, happen=alone(_flattens)),
    ),
    ScenarioPair(
        JobScenario(name="gradient norms jump to 30 times and stay there", kind="gradient", fault=True, happen=alone(_norm_jumps)),
        JobScenario(name="a few large gradient norms", kind="gradient", fault=False, happen=alone(_few_large_norms)),
    ),
    ScenarioPair(
        JobScenario(name="silent corruption: parameters of one replica differ", kind="corruption", fault=True, at=worker_or_gpu, happen=alone(_corrupted)),
        JobScenario(name="parameters differ by design", kind="corruption", fault=False, happen=alone(_shards)),
    ),
    ScenarioPair(
        JobScenario(name="one worker gets the same batch again and again", kind="data", fault=True, at=worker_or_gpu, sick=False, informs=True, happen=as_drill("a loader gives one worker the same batch again and again")),
        JobScenario(name="a small set of data in several passes", kind="data", fault=False, happen=as_drill("a small set of data in several passes")),
    ),
    ScenarioPair(
        JobScenario(name="the scale of the loss collapses", kind="loss", fault=True, happen=as_drill("the scale of the loss is halved in each step")),
        JobScenario(name="the scale of the loss is halved three times", kind="loss", fault=False, happen=as_drill("the scale of the loss is halved three times")),
    ),
)
