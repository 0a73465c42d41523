"""Ends of processes without a launcher: workers whose launcher was killed, and processes named in the configuration; and launchers that are stopped.

A launcher reports the end of its own workers, with exit code and last lines of output. This collector reports those that
no launcher can report: one `exit` event each. Nor can a launcher say that it is stopped by a signal.
"""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.ranges import ProcessId
from eagle_eye.types import Event, Kind

from .agent.job_directory import JobDirectory, trusted
from .agent.unsigned_event import unsigned_event
from .worker.launcher_processes import LauncherProcesses
from .worker.procfs import DEAD, ProcessHandle


class _Owner(NamedTuple):
    """The entity and job that a process belongs to."""

    entity: str
    job: str = ""
    run: str = ""
    """Empty: it is named in the configuration."""
    rank: str = ""
    epoch: str = ""


@dataclass
class ProcessCollector:
    """`exit` events of orphaned workers and of the processes in `pids`, `launcher.stopped` and `launcher.continued`."""

    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    node: str = ""
    pids: tuple[ProcessId, ...] = ()
    """Further processes whose end is reported."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 0.5
    timeout_s: ClassVar[float] = 3.0
    urgent: ClassVar[bool] = True
    """Never slowed for the agent's budget: hangs and deaths are found by it."""

    def __post_init__(self) -> None:
        self._jobs = JobDirectory(Path(self.run_dir))
        self._watched: dict[tuple[str, int, int, int], tuple[_Owner, ProcessHandle]] = {}
        self._launchers = LauncherProcesses(self.node, self.clock.now)
        for pid in self.pids:
            self._watch((str(pid), 0, pid, 0), _Owner(f"{self.node}/pid-{pid}"))

    def collect(self) -> list[Event]:
        jobs = {job.run: job for job in self._jobs.read() if not job.stopped}
        for job in jobs.values():
            for worker in job.workers:
                owner = _Owner(worker.worker, job.job, job.run, str(worker.rank), str(worker.epoch))
                self._watch(worker.life, owner, None if trusted(job.user) else job.user)
        listed = {worker.life for job in jobs.values() for worker in job.workers}
        ended = list(self._launchers.look(jobs.values()))
        for life, (owner, process) in list(self._watched.items()):
            if owner.run and life not in listed:  # its launcher has removed it and reports its end
                self._forget(life)
                continue
            stat = process.read()
            if stat is None or stat.state in DEAD:
                self._forget(life)
                if owner.run not in jobs or not jobs[owner.run].launched:
                    ended.append(self._exit(owner, process.pid, stat.status if stat else None))
        return ended

    def _watch(self, life: tuple[str, int, int, int], owner: _Owner, user: int | None = None) -> None:
        if life not in self._watched:
            process = ProcessHandle.open(life[2], life[3], user)
            if process is not None:
                self._watched[life] = owner, process

    def _forget(self, life: tuple[str, int, int, int]) -> None:
        self._watched.pop(life)[1].close()

    def _exit(self, owner: _Owner, pid: int, status: int | None) -> Event:
        """The `exit` event; the exit status is known only if we read it before the parent process does."""
        code = "" if status is None else str(os.waitstatus_to_exitcode(status))
        name = _signal_name(-int(code)) if code.startswith("-") else ""
        how = name or (f"code {code}" if code else "in an unknown way")
        of = "whose launcher is dead" if owner.run else "that no launcher owns"
        return unsigned_event(
            "exit",
            Kind.WORKER,
            owner.entity,
            self.clock.now(),
            f"process {pid}, {of}, ended: {how}",
            owner.job,
            pid=pid,
            code=code,
            signal=name,
            rank=owner.rank,
            epoch=owner.epoch,
            step="",
            last_lines="",
            exception="",
            launcher="ended" if owner.run else "",
        )


def _signal_name(number: int) -> str:
    """Those of the real-time signals have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
