"""How far each worker is in its collectives, by the role of its process groups, and what that says of its parallel ranks.

The workers write it themselves, once a second (eagle_eye/training/group_progress.py); this collector reads their files and asks nobody.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.parallel_ranks import ROLES, WORKER_GROUPS, GroupRole, parallel_ranks, role_of
from eagle_eye.training import group_progress
from eagle_eye.types import Event, Kind, Reading

from .agent.failure_boundary import FailureBoundary
from .agent.job_directory import JobDirectory, LocalJob, LocalWorker
from .agent.unsigned_event import unsigned_event
from .worker.process_groups import BackendProgress, GroupRecord, groups_of_worker

NAMES = tuple(f"{role}_{name}" for role in ROLES for name in ("collectives", "collectives_over", "collective_age_s"))
EXACT = 1 << 24
"""Numbers are told modulo this: a float of four bytes holds each smaller one."""
OLD_S = 5.0
"""A record that is older is of a worker that does not write any more: stopped, or held by its interpreter's lock."""
AGAIN_S = 60.0
"""Facts are told again so often, for those who begin to read later."""
MOST_TOLD = 64
"""Groups that are named in one event."""
NOTHING = math.nan


class _ReportedGroups(NamedTuple):
    facts: dict[str, str]
    at: float


@dataclass
class CollectiveCollector:
    """Collectives that each worker has begun and finished, by role of the group; `worker.groups` events."""

    node: str = ""
    """Name of this node; set by the agent."""
    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 1.0
    timeout_s: ClassVar[float] = 3.0

    def __post_init__(self) -> None:
        self._jobs = JobDirectory(Path(self.run_dir))
        self._told: dict[tuple[str, int, int, int], _ReportedGroups] = {}
        self._boundary = FailureBoundary("collective")

    def collect(self) -> list[Reading | Event]:
        wall, monotonic = self.clock.now(), self.clock.monotonic()
        jobs = [job for job in self._jobs.read() if not job.stopped]
        found: list[Reading | Event] = []
        for job in jobs:
            records = {worker: record for worker in job.workers if (record := self._record(job, worker, monotonic)) is not None}
            if records:
                rows = [_row(record) for record in records.values()]
                entities = tuple(worker.worker for worker in records)
                found.append(Reading(source="collective", kind=Kind.WORKER, entities=entities, names=NAMES, matrix=np.array(rows, np.float32), time=wall))
                found += [event for worker, record in records.items() for event in self._facts(job, worker, record, wall, monotonic)]
        listed = {worker.life for job in jobs for worker in job.workers}
        self._told = {life: told for life, told in self._told.items() if life in listed}
        self._boundary.keep({_groups_words(worker) for job in jobs for worker in job.workers})
        return [*found, *self._boundary.events(self.node, wall, "the process groups of every worker are read again")]

    @property
    def problems(self) -> tuple[str, ...]:
        """Files of process groups that are left out, each with the reason and what mends it."""
        return self._boundary.problems

    def _record(self, job: LocalJob, worker: LocalWorker, monotonic: float) -> GroupRecord | None:
        """None where there is nothing new; what cannot be read is told once."""
        try:
            found = groups_of_worker(job, worker)
        except (OSError, ValueError) as error:
            self._boundary.unreadable(_groups_words(worker), error)
            return None
        self._boundary.readable(_groups_words(worker), monotonic)
        return found if found is not None and monotonic - found.monotonic_ns / 1e9 <= OLD_S else None

    def _facts(self, job: LocalJob, worker: LocalWorker, record: GroupRecord, wall: float, monotonic: float) -> Iterator[Event]:
        """Told when they are first seen, when they change, and again from time to time."""
        ranks = parallel_ranks(group.place for group in record.groups)
        groups = "; ".join(f"{group.description} {group.position}/{group.size} {group.members}" for group in record.groups[:MOST_TOLD])
        facts = {"rank": str(worker.rank), "epoch": str(worker.epoch), "groups": groups, **{name: str(rank) for name, rank in ranks.items()}}
        told = self._told.get(worker.life)
        if told is not None and told.facts == facts and monotonic - told.at < AGAIN_S:
            return
        self._told[worker.life] = _ReportedGroups(facts, monotonic)
        place = ", ".join(f"{name} {rank}" for name, rank in ranks.items()) or "no parallel ranks known"
        message = f"rank {worker.rank} is in {len(record.groups)} process groups: {place}"
        yield unsigned_event(WORKER_GROUPS, Kind.WORKER, worker.worker, wall, message, job.job, **facts)


def _groups_words(worker: LocalWorker) -> str:
    return f"process groups of {worker.worker}, file {group_progress.path_beside(worker.socket)},"


def _row(record: GroupRecord) -> list[float]:
    """As NAMES; of several groups with one role the sums, and the age of the oldest collective that is not over."""
    of_role: dict[GroupRole, list[BackendProgress]] = {}
    for group in record.groups:
        of_role.setdefault(role_of(group.description), []).extend(group.backends.values())
    return [value for role in ROLES for value in _numbers(of_role.get(role, []))]


def _numbers(progress: list[BackendProgress]) -> tuple[float, float, float]:
    if not progress:
        return NOTHING, NOTHING, NOTHING
    begun, over = sum(each.begun for each in progress), sum(each.over for each in progress)
    return begun % EXACT, over % EXACT, max(each.pending_ns for each in progress) / 1e9
