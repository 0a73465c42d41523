"""What the collectors returned since the last batch, shared out to the jobs of this node."""

from collections.abc import Callable, Iterator

import numpy as np

from eagle_eye.types import Block, Kind, Reading, StepReading
from eagle_eye.wire import Schemas

MOST_STEPS = 4096
"""Step blocks kept while no batch takes them: a node whose jobs nobody knows must not fill the memory."""


class BatchBuilder:
    """Readings and steps since the last batch: of each source the newest reading counts, of the steps all."""

    def __init__(self, job_of: Callable[[str], str]) -> None:
        """`job_of`: worker → its job, '' if unknown."""
        self.schemas = Schemas()
        self._job_of = job_of
        self._of_node: dict[tuple[str, Kind], Reading] = {}
        self._of_job: dict[tuple[str, str], Reading] = {}
        self._steps: list[tuple[str, StepReading]] = []

    def add(self, found: Reading | StepReading) -> None:
        """Take one in. What belongs to no known job is dropped."""
        if isinstance(found, StepReading):
            job = self._job_of(found.workers[0]) if found.workers else ""
            if job and len(self._steps) < MOST_STEPS:
                self._steps.append((job, found))
        elif found.kind is Kind.WORKER:
            for job, part in self._by_job(found):
                self._of_job[job, found.source] = part
        else:
            self._of_node[found.source, found.kind] = found

    def blocks(self, job: str) -> tuple[Block, ...]:
        """What a batch of this job holds: the node's readings, its own workers' readings and steps."""
        readings: list[Reading | StepReading] = list(self._of_node.values())
        readings += [reading for (of, _), reading in self._of_job.items() if of == job]
        readings += [steps for of, steps in self._steps if of == job]
        return tuple(Block(schema_id=self.schemas.schema_of(each).id, reading=each) for each in readings)

    def clear(self) -> None:
        """A batch was made: what comes next belongs to the next one."""
        self._of_node.clear()
        self._of_job.clear()
        self._steps.clear()

    def _by_job(self, reading: Reading) -> Iterator[tuple[str, Reading]]:
        """A reading of workers, cut up by their jobs."""
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
