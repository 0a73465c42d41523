"""Bytes and bus bandwidth of each worker's collectives, by role of the process group and by kind, from torch's flight recorder.

How many collectives are over the workers write themselves, once a second (eagle_eye/training/group_progress.py); how large one is says the ring, which is read seldom (worker/ring_reader.py).
Both together are the bytes of each second, without NCCL Inspector and without stopping anybody. A collector of its own, so that a worker that does not answer holds up no other numbers.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from eagle_eye.activity.collective_bytes import CollectiveKind
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.parallel_ranks import ROLES, GroupRole, role_of
from eagle_eye.training import live_flight_recorder
from eagle_eye.types import Kind, Reading

from .agent.job_directory import JobDirectory, LocalJob, LocalWorker
from .worker.process_groups import GroupRecord, groups_of_worker
from .worker.ring_reader import FlightRingReader, RingRequest
from .worker.ring_sizes import RingGroup, RingSizes

log = logging.getLogger(__name__)

OLD_S = 5.0
"""A record of a worker's groups that is older is of one that does not write any more."""
TOLD_KINDS: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")
LEAST_APART_S = 0.1
"""Between two records of one worker, which writes one a second."""
MOST_OVER = 1 << 24
"""Collectives of a group in one look: there are never so many."""
ROLE_NAMES = ("bytes_per_s", "ring_mean_bytes", "ring_bus_bandwidth_bytes_per_s")
NAMES = (*(f"{role}_{name}" for role in ROLES for name in ROLE_NAMES), *(f"{kind}_{name}" for kind in TOLD_KINDS for name in ("bytes_per_s", "per_s")))


@dataclass
class FlightRecorderCollector:
    """Bytes that each worker's collectives moved since the look before: how many were over, times how large one is by the newest ring."""

    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 1.0
    timeout_s: ClassVar[float] = 10.0

    def __post_init__(self) -> None:
        self._jobs = JobDirectory(Path(self.run_dir))
        self._before: dict[tuple[str, int, int, int], GroupRecord] = {}
        self.rings = FlightRingReader()
        self._look_fails = False

    def collect(self) -> list[Reading]:
        monotonic = self.clock.monotonic()
        jobs = [job for job in self._jobs.read() if not job.stopped]
        found: list[Reading] = []
        requests: list[RingRequest] = []
        for job in jobs:
            rows: dict[str, list[float]] = {}
            for worker in job.workers:
                record = _record(job, worker, monotonic)
                if record is None:
                    continue
                requests.append(_request(job, worker, record))
                before = self._before.get(worker.life)
                self._before[worker.life] = record
                sizes = self.rings.sizes(worker.life, monotonic)
                if sizes and before is not None and record.monotonic_ns - before.monotonic_ns >= LEAST_APART_S * 1e9:
                    rows[worker.worker] = _row(before, record, sizes)
            if rows:
                matrix = np.array(list(rows.values()), np.float32)
                found.append(Reading(source="flight_recorder", kind=Kind.WORKER, entities=tuple(rows), names=NAMES, matrix=matrix, time=self.clock.now()))
        listed = {worker.life for job in jobs for worker in job.workers}
        self._before = {life: record for life, record in self._before.items() if life in listed}
        self.rings.keep(listed)
        self._look(requests, monotonic)
        return found

    def _look(self, requests: list[RingRequest], monotonic: float) -> None:
        try:
            self.rings.look(requests, monotonic)
            self._look_fails = False
        except Exception:  # boundary: what a worker answers may be anything, and costs nobody the numbers of this second
            if not self._look_fails:
                log.exception("a ring of a flight recorder was not read")
            self._look_fails = True


def _record(job: LocalJob, worker: LocalWorker, monotonic: float) -> GroupRecord | None:
    """None where there is nothing new; what cannot be read is told by the collector `collective`."""
    try:
        found = groups_of_worker(job, worker)
    except (OSError, ValueError):
        return None
    return found if found is not None and monotonic - found.monotonic_ns / 1e9 <= OLD_S else None


def _request(job: LocalJob, worker: LocalWorker, record: GroupRecord) -> RingRequest:
    over = sum(backend.over for group in record.groups for backend in group.backends.values())
    recorder = live_flight_recorder.path_beside(worker.socket)
    return RingRequest(worker.life, recorder, job.user, over, {group.name: group.size for group in record.groups})


@dataclass
class _RoleTotals:
    """Of the groups with one role."""

    bytes: float = 0.0
    over: int = 0
    bus_bytes: float = 0.0
    bus_s: float = 0.0

    def numbers(self, elapsed: float) -> tuple[float, float, float]:
        """As ROLE_NAMES: the mean and the bandwidth only while collectives are over."""
        mean, bus = self.bytes / self.over if self.over else math.nan, self.bus_bytes / self.bus_s if self.bus_s else math.nan
        return self.bytes / elapsed, mean, bus


def _row(before: GroupRecord, record: GroupRecord, sizes: Mapping[RingGroup, RingSizes]) -> list[float]:
    """As NAMES."""
    elapsed = (record.monotonic_ns - before.monotonic_ns) / 1e9
    counted = {(group.name, recorder): backend.over for group in before.groups for recorder, backend in group.backends.items()}
    roles: dict[GroupRole, _RoleTotals] = {}
    kinds: dict[CollectiveKind, list[float]] = {}
    for group in record.groups:
        for recorder, backend in group.backends.items():
            of_ring, over = sizes.get(RingGroup(group.name, recorder)), backend.over - counted.get((group.name, recorder), backend.over)
            if of_ring is None or not 0 <= over <= MOST_OVER:  # below 0: the group was made anew
                continue
            totals = roles.setdefault(role_of(group.description), _RoleTotals())
            totals.bytes += over * of_ring.mean_bytes
            totals.over += over
            totals.bus_bytes += of_ring.bus_bytes if over else 0.0
            totals.bus_s += of_ring.bus_s if over else 0.0
            for kind in of_ring.bytes:
                of_kind = kinds.setdefault(kind, [0.0, 0.0])
                of_kind[0] += over * of_ring.bytes[kind] / elapsed
                of_kind[1] += over * of_ring.calls[kind] / elapsed
    of_roles = [value for role in ROLES for value in (roles[role].numbers(elapsed) if role in roles else (math.nan,) * len(ROLE_NAMES))]
    return of_roles + [value for kind in TOLD_KINDS for value in kinds.get(kind, (math.nan, math.nan))]
