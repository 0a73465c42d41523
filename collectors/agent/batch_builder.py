"""Builds batches: what the collectors returned since the last batch, by job."""

from collections.abc import Callable, Iterator

import numpy as np

from eagle_eye.types import Block, Kind, Reading, StepReading
from eagle_eye.wire import Schemas

from .reading_precedence import ReadingPrecedence

STEPS_MAX = 4096
"""Step blocks kept until the next batch: a node whose jobs are not known must not fill the memory."""


class BatchBuilder:
    """Readings and steps since the last batch: the newest reading of each source, and all steps."""

    def __init__(self, job_of: Callable[[str], str]) -> None:
        """`job_of`: returns the job of a worker, '' if unknown."""
        self.schemas = Schemas()
        self._job_of = job_of
        self._of_node: dict[tuple[str, Kind], Reading] = {}
        self._of_job: dict[tuple[str, str], Reading] = {}
        self._steps: list[tuple[str, StepReading]] = []
        self._precedence = ReadingPrecedence()

    def add(self, result: Reading | StepReading) -> None:
        """Add a result of a collector. Workers of an unknown job are dropped."""
        if isinstance(result, StepReading):
            job = self._job_of(result.workers[0]) if result.workers else ""
            if job and len(self._steps) < STEPS_MAX:
                self._steps.append((job, result))
            return
        self._precedence.observe(result)
        if result.kind is Kind.WORKER:
            for job, part in self._by_job(result):
                self._of_job[job, result.source] = part
        else:
            self._of_node[result.source, result.kind] = result

    def blocks(self, job: str) -> tuple[Block, ...]:
        """Blocks of a batch of this job: readings of the node, readings and steps of its own workers."""
        of_job = [reading for (of, _), reading in self._of_job.items() if of == job]
        readings: list[Reading | StepReading] = list(self._precedence.apply([*self._of_node.values(), *of_job]))
        readings += [steps for of, steps in self._steps if of == job]
        return tuple(Block(schema_id=self.schemas.schema_of(each).id, reading=each) for each in readings)

    def clear(self) -> None:
        """Start the next batch."""
        self._of_node.clear()
        self._of_job.clear()
        self._steps.clear()
        self._precedence.next_batch()

    def _by_job(self, reading: Reading) -> Iterator[tuple[str, Reading]]:
        """A reading of workers, split by job."""
        jobs = [self._job_of(worker) for worker in reading.entities]
        known = dict.fromkeys(job for job in jobs if job)
        if len(known) == 1 and "" not in jobs:
            yield jobs[0], reading
            return
        for job in known:
            rows = np.flatnonzero([each == job for each in jobs])
            yield job, Reading(
                source=reading.source,
                kind=reading.kind,
                entities=tuple(reading.entities[row] for row in rows),
                names=reading.names,
                matrix=reading.matrix[rows],
                time=reading.time,
            )
