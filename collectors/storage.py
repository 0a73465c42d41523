"""Storage of the jobs on this node: how long a stat, a read and a write take on each mount that they use, free space, and what the servers behind it show.

A file system that hangs holds whoever touches it, so this collector touches none: a process of its own does (`node/mount_probe.py`),
with a thread for each mount. A mount that hangs is told once, and is not asked again before it has answered.
"""

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.ranges import Seconds
from eagle_eye.types import Event, Kind, Reading

from .agent.job_directory import JobDirectory
from .agent.unsigned_event import unsigned_event
from .node import server_counters
from .node.probe_process import MountProber, ProbeAnswer, ProbeProcess, ProbeQuestion
from .node.server_counters import ServerCounters
from .node.used_mounts import MountFinder, UsedMount

log = logging.getLogger(__name__)

MEASURED = ("stat_s", "read_s", "write_s", "free_bytes", "free_inodes")
STATES = ("read_only", "hung")
NAMES = (*MEASURED, *STATES, *server_counters.NAMES)
ANSWER_S = 0.3
"""Answers that come within so many seconds are part of the same reading; later ones of the next."""


@dataclass
class _WatchedMount:
    used: UsedMount
    read_only: bool
    timed: float = -math.inf
    """When it was asked for times, by the monotonic clock."""
    written: float = -math.inf
    answer: ProbeAnswer | None = None
    """Since the last reading."""


@dataclass
class _Pending:
    asked: float
    told: bool = False


@dataclass
class StorageCollector:
    """Metrics of each mount that a job of this node uses; `storage.hung` and `storage.read_only` events."""

    node: str = ""
    """Name of this node; set by the agent."""
    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    paths: tuple[str, ...] = ()
    """Further paths whose mounts are watched. They are taken as they are written: name the folder, and not a link to it."""
    write_paths: tuple[str, ...] = ()
    """The same, and a file of 4 KiB is written there from time to time and removed again; as in the checkpoint folders of jobs."""
    probe_s: Seconds = 10.0
    """Seconds between two measurements of a stat and a read."""
    write_s: Seconds = 60.0
    """Seconds between two measurements of a write: each makes and removes a file, on a storage that all nodes may share."""
    hung_s: Seconds = 20.0
    """A mount that has not answered for so many seconds hangs."""
    proc: Path = Path("/proc")
    """Where the kernel's procfs is mounted."""
    counters: ServerCounters | None = None
    """Reads the kernel's counters of NFS and Lustre; its own if none is handed in."""
    prober: MountProber | None = None
    """Times the mounts; a process of its own if none is handed in."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 5.0
    timeout_s: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        self._jobs = JobDirectory(Path(self.run_dir))
        self._finder = MountFinder(self.proc, self.paths, self.write_paths)
        self._counters = self.counters or ServerCounters(self.proc)
        self._prober = self.prober or ProbeProcess(self.clock)
        self._ended = 0
        self._mounts: dict[str, _WatchedMount] = {}
        self._pending: dict[str, _Pending] = {}
        """Mounts that have been asked and have not answered, also those that no job uses any more."""
        self._logged: set[tuple[str, str]] = set()

    def collect(self) -> list[Reading | Event]:
        monotonic = self.clock.monotonic()
        found: list[Reading | Event] = list(self._update(self._finder.find(self._jobs.read(), monotonic)))
        if self._prober.ended != self._ended:  # what it had been asked will not be answered
            self._ended = self._prober.ended
            self._pending.clear()
        for point, watched in self._mounts.items():
            self._ask(point, watched, monotonic)
        self._take(self._prober.answers(ANSWER_S, sum(not pending.told for pending in self._pending.values())))
        found += self._hung(self.clock.monotonic())
        if self._mounts:
            found.append(self._reading(monotonic))
        return found

    def _update(self, used: dict[str, UsedMount]) -> Iterator[Event]:
        """Follow what the jobs use now. How a mount is when it is first seen is no change, also where another was mounted there before."""
        self._mounts = {point: watched for point, watched in self._mounts.items() if point in used}
        for point, each in used.items():
            watched = self._mounts.get(point)
            if watched is None or watched.used.mount.device != each.mount.device:
                watched = self._mounts[point] = _WatchedMount(each, each.mount.read_only)
            watched.used, before = each, watched.read_only
            watched.read_only = each.mount.read_only
            if watched.read_only and not before:
                yield from self._events("storage.read_only", each, "has become read-only")

    # --- times

    def _ask(self, point: str, watched: _WatchedMount, now: float) -> None:
        if point in self._pending:
            return
        used, slack = watched.used, self.interval_s / 2
        timed = now - watched.timed >= self.probe_s - slack
        written = timed and bool(used.write) and not watched.read_only and now - watched.written >= self.write_s - slack
        question = ProbeQuestion(
            name=point, mount=used.seen_from_here(point, self.proc), path=used.seen_from_here(used.path, self.proc), node=self.node.replace("/", "_"),
            timed=timed, write=used.seen_from_here(used.write, self.proc) if written else "", owner=used.owner,
        )  # fmt: skip
        if not self._prober.ask(question):
            return
        self._pending[point] = _Pending(now)
        watched.timed = now if timed else watched.timed
        watched.written = now if written else watched.written

    def _take(self, answers: Iterable[ProbeAnswer]) -> None:
        for answer in answers:
            pending, watched = self._pending.pop(answer.name, None), self._mounts.get(answer.name)
            if pending is not None and pending.told:
                log.info("mount %s answers again", answer.name)
            if watched is not None:
                watched.answer = answer
            for what, error in answer.errors.items():
                if (answer.name, what) not in self._logged:
                    self._logged.add((answer.name, what))
                    log.info("mount %s gives no figure for %s: %s", answer.name, what, error)

    def _hung(self, now: float) -> Iterator[Event]:
        for point, pending in self._pending.items():
            if not pending.told and now - pending.asked > self.hung_s and point in self._mounts:
                pending.told = True
                waited = now - pending.asked
                yield from self._events("storage.hung", self._mounts[point].used, f"has not answered for {waited:.0f} s", waited_s=f"{waited:.1f}")

    # --- what is told

    def _reading(self, monotonic: float) -> Reading:
        counted = self._counters.read({point: (watched.used.mount, watched.used.pid) for point, watched in self._mounts.items()}, monotonic)
        rows = [self._row(point, watched, counted.get(point, {})) for point, watched in self._mounts.items()]
        entities = tuple(f"{self.node}{point}" for point in self._mounts)
        return Reading(source="storage", kind=Kind.MOUNT, entities=entities, names=NAMES, matrix=np.array(rows, np.float32), time=self.clock.now())

    def _row(self, point: str, watched: _WatchedMount, counted: dict[str, float]) -> list[float]:
        answer, watched.answer = watched.answer, None
        pending = self._pending.get(point)
        return [
            *(getattr(answer, name) if answer is not None else math.nan for name in MEASURED),
            float(watched.read_only),
            float(pending is not None and pending.told),
            *(counted.get(name, math.nan) for name in server_counters.NAMES),
        ]

    def _events(self, name: str, used: UsedMount, what: str, **attributes: str) -> Iterator[Event]:
        """One for each job that uses the mount: nobody else's business. One that is watched by configuration is told to all."""
        mount = used.mount
        message = f"{mount.kind} of {mount.source} at {mount.point} {what}"
        log.warning("%s: %s", name, message)
        for job in sorted(used.jobs) or ("",):
            yield unsigned_event(
                name, Kind.MOUNT, f"{self.node}{mount.point}", self.clock.now(), message, job,
                mount=mount.point, file_system=mount.kind, source=mount.source, **attributes,
            )  # fmt: skip
