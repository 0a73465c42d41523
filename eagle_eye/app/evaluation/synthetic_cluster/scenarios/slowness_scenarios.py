"""Jobs that become slower: a worker, a node, all of them, their input, their collectives; and work that only looks like it."""

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob, StepSignals
from eagle_eye.app.evaluation.synthetic_cluster.job_scenario import (
    JobScenario,
    ScenarioPair,
    alone,
    as_drill,
    its_node,
    worker_or_gpu,
)

from .step_changes import StepCount, each_step, slower, slower_all, waits_more

PAUSE_S = 20.0
CREEPS_OVER = 90
"""Steps."""
GARBAGE_EVERY = 25
REFILL_EVERY = 20
OF_A_NODE = 32
"""Workers of a stage, of which a node has eight."""


def _slower(times: float) -> JobScenario:
    return JobScenario(name=f"worker {times:g} times as slow", kind="slow compute", fault=True, at=worker_or_gpu, happen=alone(lambda job: slower(job, [job.target.rank], times)))


def _creeps(job: DrillJob) -> None:
    count = StepCount()

    def change(step: StepSignals) -> None:
        step.compute_s[job.target.rank] *= 1.0 + 0.5 * min(1.0, count.since(step) / CREEPS_OVER)

    each_step(job, change)


def _more_work(job: DrillJob, who: list[int]) -> None:
    def change(step: StepSignals) -> None:
        step.compute_s[who] *= 1.3
        step.tokens[who] *= 1.3

    each_step(job, change)


def _long_stage(job: DrillJob) -> None:
    last = max(place.pp for place in job.layout.placements)
    slower(job, [place.rank for place in job.layout.placements if place.pp == last], 1.4)


def _larger_batches(job: DrillJob) -> None:
    """From a step on all have 1.25 times the tokens."""

    def change(step: StepSignals) -> None:
        step.compute_s *= 1.25
        step.data_s *= 1.25
        step.tokens *= 1.25
        step.wait_s *= 1.25

    each_step(job, change)


def _pause(job: DrillJob) -> None:
    count = StepCount()

    def change(step: StepSignals) -> None:
        if count.since(step) == 0:
            step.wait_s += PAUSE_S

    each_step(job, change)


def _storm(job: DrillJob) -> None:
    """Python's garbage collector, in every step of one worker."""

    def change(step: StepSignals) -> None:
        step.compute_s[job.target.rank] += 0.5
        step.logged["garbage_collection_s"][job.target.rank] = 0.5

    each_step(job, change)


def _collects_together(job: DrillJob) -> None:
    """As a script does that collects by itself, so that all do it in the same step."""

    def change(step: StepSignals) -> None:
        if step.number % GARBAGE_EVERY == 0:
            step.compute_s += 0.4
            step.logged["garbage_collection_s"][:] = 0.4

    each_step(job, change)


def _slow_data(job: DrillJob, who: list[int]) -> None:
    more = float(job.rng.uniform(0.5, 1.0))

    def change(step: StepSignals) -> None:
        step.data_s[who] += more

    each_step(job, change)


def _next_file(job: DrillJob) -> None:
    """The first steps of another part of the data: all read slowly, for a while."""
    count = StepCount()

    def change(step: StepSignals) -> None:
        if count.since(step) < 4:
            step.data_s += 0.8

    each_step(job, change)


def _refills(job: DrillJob) -> None:
    """A buffer of all loaders is filled again, in each twentieth step."""

    def change(step: StepSignals) -> None:
        if step.number % REFILL_EVERY == 0:
            step.data_s += 0.8

    each_step(job, change)


def _varies(job: DrillJob) -> None:
    """Collectives of single steps take longer, now and then."""

    def change(step: StepSignals) -> None:
        step.wait_s += 0.7 * float(job.rng.random() < 0.04)

    each_step(job, change)


def _fast(job: DrillJob) -> None:
    slower(job, [job.target.rank], 0.7)


def _node_slower(job: DrillJob) -> None:
    slower(job, job.indices(job.target.node), 1.3)


def _everybody(job: DrillJob) -> None:
    _slow_data(job, list(np.arange(len(job.layout.placements))))


PAIRS = (
    ScenarioPair(
        _slower(1.3),
        JobScenario(name="more work: one worker has 1.3 times the tokens", kind="slow compute", fault=False, happen=alone(lambda job: _more_work(job, [job.target.rank]))),
    ),
    ScenarioPair(_slower(1.1), JobScenario(name="one worker is fast", kind="slow compute", fault=False, happen=alone(_fast))),
    ScenarioPair(
        JobScenario(name="worker creeps to 1.5 times", kind="slow compute", fault=True, at=worker_or_gpu, happen=alone(_creeps)),
        JobScenario(name="the last stage is long", kind="slow compute", fault=False, happen=alone(_long_stage), stages=2),
    ),
    ScenarioPair(
        JobScenario(name="node 1.3 times as slow", kind="slow compute", fault=True, at=its_node, happen=alone(_node_slower), peers=OF_A_NODE),
        JobScenario(name="more work: the workers of a node have 1.3 times the tokens", kind="slow compute", fault=False, happen=alone(lambda job: _more_work(job, job.indices(job.target.node))), peers=OF_A_NODE),
    ),
    ScenarioPair(
        JobScenario(name="all 1.2 times as slow", kind="slow job", fault=True, happen=alone(lambda job: slower_all(job, 1.2))),
        JobScenario(name="larger batches: all have 1.25 times the tokens", kind="slow job", fault=False, happen=alone(_larger_batches)),
    ),
    ScenarioPair(
        JobScenario(name="all 1.5 times as slow", kind="slow job", fault=True, happen=alone(lambda job: slower_all(job, 1.5))),
        JobScenario(name="pause of all", kind="slow job", fault=False, happen=alone(_pause)),
    ),
    ScenarioPair(
        JobScenario(name="collectives of all take longer", kind="slow communication", fault=True, happen=alone(lambda job: waits_more(job, 0.6))),
        JobScenario(name="a collective takes longer now and then", kind="slow communication", fault=False, happen=alone(_varies)),
    ),
    ScenarioPair(
        JobScenario(name="slow data of one worker", kind="slow input", fault=True, at=worker_or_gpu, sick=False, informs=True, happen=alone(lambda job: _slow_data(job, [job.target.rank]))),
        JobScenario(name="all read slowly at the beginning of a file", kind="slow input", fault=False, happen=alone(_next_file)),
    ),
    ScenarioPair(
        JobScenario(name="slow data of all workers", kind="slow input", fault=True, happen=alone(_everybody)),
        JobScenario(name="buffers of all loaders are filled now and then", kind="slow input", fault=False, happen=alone(_refills)),
    ),
    ScenarioPair(
        JobScenario(name="garbage collection of one worker in each step", kind="garbage collection", fault=True, at=worker_or_gpu, sick=False, informs=True, happen=alone(_storm)),
        JobScenario(name="all collect garbage in the same steps", kind="garbage collection", fault=False, happen=alone(_collects_together)),
    ),
    ScenarioPair(_slower(1.6), JobScenario(name="work wanders over the workers", kind="slow compute", fault=False, happen=as_drill("work wanders over the workers"))),
    ScenarioPair(_slower(1.2), JobScenario(name="steps of all vary more", kind="slow compute", fault=False, happen=as_drill("steps of all vary more"))),
)
