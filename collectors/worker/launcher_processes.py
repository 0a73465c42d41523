"""Launchers on this node that are stopped by a signal: they answer nobody, and their workers train on."""

from collections.abc import Callable, Iterable, Iterator

from collectors.agent.job_directory import LocalJob, trusted
from collectors.agent.unsigned_event import unsigned_event
from eagle_eye.types import Event, Kind

from .procfs import DEAD, ProcessHandle
from .stall_limits import STOPPED


class _Launcher:
    """One launcher process under observation."""

    def __init__(self, job: LocalJob, process: ProcessHandle) -> None:
        self.job, self.process = job.job, process
        self.stopped = False
        """That is told."""
        self._turns: int | None = None
        """In state T: how often it had got a processor."""

        self.ended = False

    def stands(self) -> bool:
        """It was stopped in two looks, without a turn in between."""
        stat = self.process.read()
        self.ended = stat is None or stat.state in DEAD
        before, self._turns = self._turns, self.process.turns() if stat is not None and stat.state == STOPPED else None
        return self._turns is not None and (self.stopped or before == self._turns)


class LauncherProcesses:
    """`launcher.stopped` and `launcher.continued` events of the launchers that the job files name."""

    def __init__(self, node: str, now: Callable[[], float]) -> None:
        """`now`: seconds since 1970."""
        self._node, self._now = node, now
        self._launchers: dict[tuple[str, int, int], _Launcher] = {}
        """(run, pid, start time) → its launcher."""

    def look(self, jobs: Iterable[LocalJob]) -> Iterator[Event]:
        """What has changed since the look before. `jobs`: those that run here."""
        listed = {(job.run, job.launcher_pid, job.launcher_start_time): job for job in jobs}
        for key in [key for key in self._launchers if key not in listed]:
            launcher = self._launchers.pop(key)
            launcher.process.close()
            if launcher.stopped:
                yield self._event("launcher.continued", launcher, "is not the job's launcher any more")
        for key, job in listed.items():
            self._open(key, job)
        for launcher in self._launchers.values():
            before, launcher.stopped = launcher.stopped, launcher.stands()
            if launcher.stopped and not before:
                remedy = f"kill -CONT {launcher.process.pid} continues it; its workers train on meanwhile"
                yield self._event("launcher.stopped", launcher, f"is stopped by a signal (process state {STOPPED}): {remedy}")
            elif before and not launcher.stopped:
                yield self._event("launcher.continued", launcher, "has ended" if launcher.ended else "is not stopped any more")

    def _open(self, key: tuple[str, int, int], job: LocalJob) -> None:
        if key not in self._launchers:
            process = ProcessHandle.open(job.launcher_pid, job.launcher_start_time, None if trusted(job.user) else job.user)
            if process is not None:
                self._launchers[key] = _Launcher(job, process)

    def _event(self, name: str, launcher: _Launcher, words: str) -> Event:
        message = f"the launcher of {launcher.job} on {self._node} (process {launcher.process.pid}) {words}"
        return unsigned_event(name, Kind.NODE, self._node, self._now(), message, launcher.job, pid=launcher.process.pid)
