"""Which ranks NCCL's own RAS subsystem says lag, have failed or do not answer (NCCL 2.24 and later, on by default); the parts are in collectors/nccl/.

Each process of a job knows of all others, so one node asks: that of rank 0. It asks seldom, and at once where a collective of a worker here has been under
way for long. What RAS says informs, and accuses nobody: whoever waits looks like whoever is waited for.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.parallel_ranks import role_of
from eagle_eye.ranges import Delay, Seconds
from eagle_eye.types import Event, Kind

from .agent.job_directory import JobDirectory, LocalJob
from .agent.unsigned_event import unsigned_event
from .nccl.outlier_ranks import OutlierMemory
from .nccl.ras_client import NobodyListens, ReportTooLong, ask_ras, parse_ras_address
from .nccl.ras_report import RasReport
from .worker.process_groups import groups_of_worker

log = logging.getLogger(__name__)

SELDOM_S = 60.0
"""A suspicion that lasts is looked into less and less often, down to this."""
FOREIGN = "its processes are not registered as workers here, or their job is not clear; give each job its own NCCL_RAS_ADDR"
MOST_TOLD = 16
"""Communicators of one look; where a rank hangs most of them stand."""


class _Progress(NamedTuple):
    """Of a job's workers here, by what they write of their process groups."""

    waited_s: float = 0.0
    """For how long the oldest collective of them is under way; who writes nothing any more waits for as long as that."""
    world_size: int = 0
    """Ranks of the job; 0: not known."""


@dataclass
class NcclRasCollector:
    """`nccl.outlier_ranks` events, and `nccl.ranks_agree` when they are over. Asks nothing where no job with rank 0 runs."""

    address: str = "localhost:28028"
    """Where RAS listens on this node: what NCCL_RAS_ADDR of the jobs says, if they set it."""
    every_s: Delay = 300.0
    """Seconds between two looks while nothing is suspected; 0: no look then."""
    suspicion_s: Seconds = 10.0
    """A collective that takes so long is looked into ..."""
    again_s: Seconds = 5.0
    """... and again so many seconds later: only what stays is reported."""
    json: bool = True
    """Ask for JSON where NCCL has it (2.28.7). A report of more than 8 MiB, as of 10,000 ranks, is asked for in text from then on."""
    node: str = ""
    """Name of this node; set by the agent."""
    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[Seconds] = 5.0
    timeout_s: ClassVar[Seconds] = 20.0

    def __post_init__(self) -> None:
        """Raises ValueError for what is no address."""
        self._address = parse_ras_address(self.address)
        self._jobs = JobDirectory(Path(self.run_dir))
        self._memory: dict[str, OutlierMemory] = {}
        """By job."""
        self._in_json = self.json
        self._suspected = self._confirming = False
        self._next = self._after_idle(-math.inf)
        self._pause = self.again_s
        self.unavailable = ""
        """Why nothing is read, where that is no failure."""
        self.doing = ""

    def collect(self) -> list[Event]:
        """Raises RasError where RAS, or another program at its address, does not answer as it should."""
        monotonic = self.clock.monotonic()
        local = [job for job in self._jobs.read() if not job.stopped]
        jobs = [job for job in local if any(worker.rank == 0 for worker in job.workers)]
        self._memory = {job.job: self._memory.get(job.job, OutlierMemory()) for job in jobs}
        progress = {job.job: _progress(job, monotonic) for job in jobs}
        if not self._is_due(any(each.waited_s >= self.suspicion_s for each in progress.values()), monotonic) or not jobs:
            return []
        report = self._ask()
        found = list(self._told(report, local, progress)) if report is not None else []
        self._next = self._after_look(self.clock.monotonic())
        return found

    # --- when

    def _is_due(self, suspected: bool, monotonic: float) -> bool:
        """A suspicion that begins is looked into at once; and so is its end, where something was told."""
        if suspected != self._suspected and (suspected or any(memory.told for memory in self._memory.values())):
            self._next, self._pause = monotonic, self.again_s
        self._suspected = suspected
        return monotonic >= self._next

    def _after_look(self, monotonic: float) -> float:
        if self._suspected:
            pause, self._pause = self._pause, min(2.0 * self._pause, SELDOM_S)
            return monotonic + pause
        memories = self._memory.values()
        self._confirming = not self._confirming and any(memory.unconfirmed for memory in memories)
        if self._confirming:
            return monotonic + self.again_s
        return min(self._after_idle(monotonic), monotonic + SELDOM_S if any(memory.told for memory in memories) else math.inf)

    def _after_idle(self, monotonic: float) -> float:
        return monotonic + self.every_s if self.every_s else math.inf

    # --- what

    def _ask(self) -> RasReport | None:
        """None where nobody listens. Raises RasError; then it is asked again as soon as the agent comes back to us."""
        self._next, self.doing = -math.inf, f"RAS at {self._address}"
        try:
            return ask_ras(self._address, self.clock, as_json=self._in_json)
        except NobodyListens as error:
            self.unavailable = f"{error}; NCCL 2.24 and later listens there unless NCCL_RAS_ENABLE=0 or NCCL_RAS_ADDR says otherwise"
            return None
        except ReportTooLong as error:
            if not self._in_json:
                raise
            self._in_json = False
            log.warning("RAS at %s: %s; it is asked for text from now on", self._address, error)
            return None
        finally:
            self.doing = ""

    def _told(self, report: RasReport, local: Sequence[LocalJob], progress: Mapping[str, _Progress]) -> Iterator[Event]:
        job = _whose(report, local)
        self.unavailable = "" if job is not None else f"RAS at {self._address}: {FOREIGN}"
        if job is None or job.job not in self._memory:
            return
        new, over = self._memory[job.job].look(report, progress[job.job].world_size)
        for each in new[:MOST_TOLD]:
            yield self._event("nccl.outlier_ranks", job, str(each), **each.attributes)
        if len(new) > MOST_TOLD:
            log.info("%s: ranks stand out in %d further communicators", job.job, len(new) - MOST_TOLD)
        for name in over:
            yield self._event("nccl.ranks_agree", job, f"NCCL RAS: no rank of communicator {name} stands out any more", communicator=name)

    def _event(self, name: str, job: LocalJob, message: str, **attributes: str) -> Event:
        return unsigned_event(name, Kind.JOB, job.job, self.clock.now(), message, job.job, epoch=job.epoch, **attributes)


def _progress(job: LocalJob, monotonic: float) -> _Progress:
    waited_s, world_size = 0.0, 0
    for worker in job.workers:
        try:
            record = groups_of_worker(job, worker)
        except (OSError, ValueError):  # the collector `collective` tells of it
            continue
        if record is None:
            continue
        pending = max((each.pending_ns for group in record.groups for each in group.backends.values()), default=0) / 1e9
        waited_s = max(waited_s, pending, monotonic - record.monotonic_ns / 1e9)
        world_size = max((group.size for group in record.groups if role_of(group.description) == "world"), default=world_size)
    return _Progress(waited_s, world_size)


def _whose(report: RasReport, local: Sequence[LocalJob]) -> LocalJob | None:
    """The job that a report is of: with the most workers here among its processes; a text names too few, and is of the only job here."""
    if not report.members:
        return local[0] if len(local) == 1 else None
    pids = {each.pid for members in report.members.values() for each in members}
    counts = [(sum(worker.pid in pids for worker in job.workers), job) for job in local]
    most = max((count for count, _ in counts), default=0)
    best = [job for count, job in counts if count == most]
    return best[0] if most and len(best) == 1 else None
