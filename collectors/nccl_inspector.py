"""Bytes, bus bandwidth and duration of each worker's collectives, as NCCL Inspector writes them (a profiler plugin of NCCL 2.28 and later).

Its logs, HOST-pidPID.log, are followed as they grow, from when the collector first sees them; they are written only where the job sets
NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS. Nothing is asked of a worker.
"""

import logging
import math
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from eagle_eye.activity.inspector_log import OperationTotals, measured_operation
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.parallel_ranks import ROLES, role_of
from eagle_eye.ranges import Seconds
from eagle_eye.types import Kind, Reading

from .agent.job_directory import JobDirectory, LocalJob, LocalWorker, trusted
from .log.file_tailer import FileTailer

log = logging.getLogger(__name__)

LOOK_BYTES = 8 << 20
"""Of one worker in one look: 20,000 collectives."""
SEARCH_S = 30.0
"""A worker's log is searched so often until it is there."""
PEER_TO_PEER = "p2p"
GROUPS = (*ROLES, PEER_TO_PEER)
NAMES = tuple(f"{group}_{name}" for group in GROUPS for name in ("measured_bytes_per_s", "bus_bytes_per_s", "measured_mean_s"))
NO_FOLDER = 'no folder is named; name those of NCCL_INSPECTOR_DUMP_DIR: [collectors.nccl_inspector] folders = ["/scratch/nccl-inspector-*"]'

Folders = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=4096)], ...], msgspec.Meta(max_length=16)]


@dataclass
class _WorkerLog:
    """A worker's log, and when it was read last (monotonic)."""

    tailer: FileTailer
    read_at: float


@dataclass
class NcclInspectorCollector:
    """What was measured of each worker's collectives since the look before, by role of the process group. Reads nothing unless folders are named."""

    folders: Folders = ()
    """Folders that NCCL Inspector writes to (NCCL_INSPECTOR_DUMP_DIR), as patterns: "/scratch/nccl-inspector-*"."""
    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[Seconds] = 5.0
    timeout_s: ClassVar[Seconds] = 5.0

    def __post_init__(self) -> None:
        """Raises ValueError for a folder that is no whole path."""
        if relative := [folder for folder in self.folders if not folder.strip("/") or not folder.startswith("/")]:
            raise ValueError(f"folders: {', '.join(map(repr, relative))} is no path from the root; write it as in /scratch/nccl-inspector-*")
        self._jobs = JobDirectory(Path(self.run_dir))
        self._followed: dict[tuple[str, int, int, int], _WorkerLog] = {}
        """By life of the worker."""
        self._searched: dict[tuple[str, int, int, int], float] = {}
        self._told: set[str] = set()
        self.unreadable = 0
        """Lines that were torn or of another version."""

    @property
    def unavailable(self) -> str:
        """Why nothing is read."""
        return "" if self.folders else NO_FOLDER

    def collect(self) -> Iterator[Reading]:
        if not self.folders:
            return
        monotonic = self.clock.monotonic()
        jobs = [job for job in self._jobs.read() if not job.stopped]
        self._forget({worker.life for job in jobs for worker in job.workers})
        for job in jobs:
            rows = {worker.worker: row for worker in job.workers if (row := self._row(job, worker, monotonic)) is not None}
            if rows:
                yield Reading(
                    source="nccl_inspector", kind=Kind.WORKER, entities=tuple(rows), names=NAMES, matrix=np.array(list(rows.values()), np.float32), time=self.clock.now()
                )

    def _row(self, job: LocalJob, worker: LocalWorker, monotonic: float) -> list[float] | None:
        """As NAMES; None where there is no log, or nothing new in it."""
        followed = self._followed.get(worker.life) or self._search(job, worker, monotonic)
        if followed is None:
            return None
        elapsed, followed.read_at = monotonic - followed.read_at, monotonic
        try:
            totals = self._totals(followed.tailer)
        except OSError as error:
            self._tell(f"{followed.tailer.path}: {error.strerror or error}")
            return None
        return [value for group in GROUPS for value in _numbers(totals.get(group), elapsed)] if totals and elapsed > 0 else None

    def _search(self, job: LocalJob, worker: LocalWorker, monotonic: float) -> _WorkerLog | None:
        """By this host's name and the worker's process id, which its file has in its name."""
        if monotonic - self._searched.get(worker.life, -math.inf) < SEARCH_S:
            return None
        self._searched[worker.life] = monotonic
        name = f"{socket.gethostname()}-pid{worker.pid}.log"
        path = next((path for folder in self.folders for path in Path("/").glob(f"{folder.strip('/')}/{name}")), None)
        if path is None:
            return None
        tailer = FileTailer(path, most_backlog=LOOK_BYTES, owner=None if trusted(job.user) else job.user)
        self._followed[worker.life] = _WorkerLog(tailer, monotonic)
        return self._followed[worker.life]

    def _totals(self, tailer: FileTailer) -> dict[str, OperationTotals]:
        """Of the new lines, by role of the group. Raises OSError."""
        totals: dict[str, OperationTotals] = {}
        size = 0
        while size < LOOK_BYTES and (data := tailer.read()):
            size += len(data)
            for line in data.splitlines():
                try:
                    one = measured_operation(line)
                except ValueError as error:
                    self.unreadable += 1
                    self._tell(f"{tailer.path}: a line is no record of NCCL Inspector: {error}")
                    continue
                if one is not None:
                    totals.setdefault(PEER_TO_PEER if one.peer_to_peer else role_of(one.group), OperationTotals()).add(one)
        return totals

    def _tell(self, text: str) -> None:
        """Once for each file."""
        path = text.partition(": ")[0]
        if path not in self._told:
            self._told.add(path)
            log.warning("%s", text)

    def _forget(self, listed: set[tuple[str, int, int, int]]) -> None:
        for life in [life for life in self._followed if life not in listed]:
            followed = self._followed.pop(life)
            followed.tailer.close()
            self._told.discard(str(followed.tailer.path))
        self._searched = {life: at for life, at in self._searched.items() if life in listed}


def _numbers(totals: OperationTotals | None, elapsed: float) -> tuple[float, float, float]:
    if totals is None:
        return math.nan, math.nan, math.nan
    return totals.bytes / elapsed, totals.bus_bytes_per_s, totals.mean_s
