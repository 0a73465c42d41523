"""Baselines: what a learner has fitted comes over the stream as bytes, and the detector reads it in every frame."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec

from detectors.isolation_forest import NAME, IsolationForest
from eagle_eye import wire
from eagle_eye.frames import FrameBuilder
from eagle_eye.types import Baseline, Mark

from .mutation import Mutation
from .sample_forest import forest
from .sample_job import JOB, SampleJob
from .target import Fault, Tally, Target

log = logging.getLogger("detectors.isolation_forest")


class Refusals(logging.Handler):
    """Counts what the detector tells of baselines that it cannot use."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "cannot be used" in record.getMessage()


class Baselines:
    """A detector that looks at the same frame with one mutated baseline after the other."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self._detector = IsolationForest(sustained=1)
        self._valid = forest()
        self._refused = self._taken = 0
        builder, job, now = FrameBuilder(JOB, wire.Schemas()), SampleJob(), 1.7e9
        for record in [job.layout(now), *job.second(now, 1)]:
            builder.feed(wire.RecordReader().read(wire.encode(record)))
        self._frame = builder.tick(Mark(mark="tick", generation=1, number=1, time=now))

    def take(self, random: Random) -> None:
        self._taken += 1
        mutation = Mutation(random)
        data = mutation.encoded(msgspec.msgpack.decode(self._valid), "msgpack") if random.random() < 0.9 else mutation.data(self._valid)
        baseline = Baseline(name=NAME, job=JOB, digest=str(self._taken), fitted=1.0, data=data)
        before = self._detector._forests
        for claim in self._detector.update(replace(self._frame, baselines={NAME: baseline})):
            if not claim.evidence:
                raise Fault("a claim without evidence")
        self._refused += self._detector._forests is before

    def tally(self) -> Tally:
        return Tally(self._refused, self._refusals.count)


@contextmanager
def baselines(_: Path) -> Iterator[Baselines]:
    """In the memory of this process."""
    refusals = Refusals()
    propagates, log.propagate = log.propagate, False
    log.addHandler(refusals)
    try:
        yield Baselines(refusals)
    finally:
        log.removeHandler(refusals)
        log.propagate = propagates


TARGET = Target("baseline", "baselines read by the detector that they are for", baselines)
