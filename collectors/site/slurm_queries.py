"""Slurm's controller, asked by `scontrol` about this node and the jobs that run on it: seldom, never waited for, and about a job by its first node alone."""

import math
import os
from collections.abc import Callable, Collection
from typing import TypeVar

from collectors.node.polled_program import PolledProgram, ProgramAnswer

from .scheduler_facts import NodeState
from .slurm_records import SlurmJob, job_in, node_state_in

ANSWER_S = 10.0
"""Within which scontrol has to answer; a controller that is busy takes seconds."""
LARGEST = 1 << 20
"""Bytes; a job takes two thousand, each of an array."""
NODE_EVERY = 4
"""The node is asked about so many times less often than a job."""
JOBS_MOST = 16
"""Of one node, that are asked about."""
_Record = TypeVar("_Record")
_UNSET = ("SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN")


class SlurmQueries:
    """Asks, and keeps the newest answers."""

    def __init__(self, program: str, node: str, every_s: float) -> None:
        """`program`: scontrol; '' asks nobody. `node`: as Slurm calls it. `every_s`: seconds between two questions about a job."""
        self.node = node
        self.node_state: NodeState | None = None
        """None: not known."""
        self.jobs: dict[str, SlurmJob] = {}
        """By job id, of those that were asked for last."""
        self.problems: dict[str, str] = {}
        """Question → why it has no answer."""
        self._program, self._every_s = program, every_s
        self._of_node = self._question(("show", "node", node), NODE_EVERY * every_s)
        self._of_jobs: dict[str, PolledProgram] = {}

    @property
    def present(self) -> bool:
        """scontrol is installed."""
        return bool(self._program) and not self._of_node.missing

    @property
    def waits(self) -> bool:
        """A question has no answer yet."""
        return any(question.waits for question in (self._of_node, *self._of_jobs.values()))

    def look(self, now: float, jobs: Collection[str]) -> None:
        """Ask, or take answers; never waits. `now`: monotonic time."""
        self._take_node(self._of_node.look(now))
        if not self.present:
            return
        self._forget({job for job in self._of_jobs if job not in jobs})
        for job in sorted(jobs, key=int)[:JOBS_MOST]:
            self._take_job(job, self._asked(job).look(now))

    def _asked(self, job: str) -> PolledProgram:
        if job not in self._of_jobs:
            self._of_jobs[job] = self._question(("show", "job", job), self._every_s)
        return self._of_jobs[job]

    def _forget(self, jobs: Collection[str]) -> None:
        for job in jobs:
            self._of_jobs.pop(job).close()
            self.jobs.pop(job, None)
            self.problems.pop(f"job {job}", None)

    def _question(self, words: tuple[str, ...], every_s: float) -> PolledProgram:
        environment = {name: value for name, value in os.environ.items() if name not in _UNSET} | {"TZ": "UTC0"}
        command = (self._program, *words) if self._program else ()
        return PolledProgram(command, "Slurm is not asked", every_s=every_s if command else math.inf, answer_s=ANSWER_S, largest=LARGEST, environment=environment)

    def _take_node(self, answer: ProgramAnswer | None) -> None:
        self.node_state = self._read(answer, f"node {self.node}", node_state_in) or self.node_state

    def _take_job(self, job: str, answer: ProgramAnswer | None) -> None:
        if (record := self._read(answer, f"job {job}", lambda text: job_in(text, job))) is not None:
            self.jobs[job] = record

    def _read(self, answer: ProgramAnswer | None, subject: str, read: Callable[[str], _Record]) -> _Record | None:
        """None where there is no answer, or one that is of no use, which is named: what was known before holds."""
        if answer is None:
            return None
        try:
            if answer.problem:
                raise ValueError(answer.problem)
            record = read(answer.output.decode(errors="replace"))
        except ValueError as error:
            self.problems[subject] = f"scontrol show {subject}: {error}"
            return None
        self.problems.pop(subject, None)
        return record
