"""Which jobs this node sends its batches to: those that launchers have written down, remembered on disk."""

import logging
from pathlib import Path

import msgspec

from eagle_eye.training import atomic_file

from .job_directory import JobDirectory

log = logging.getLogger(__name__)

VERSION = 1
ENDING_LOOKS = 3
"""So many looks longer a job that has ended is sent to: its last steps come after its end."""
FORGOTTEN_S = 600.0
"""A job that is only remembered, and that no launcher has written down since, is given up after so long."""


class _Known(msgspec.Struct, kw_only=True):
    job: str
    seen: float
    """Wall time when a launcher last had it written down."""
    ended: bool = False


class _Memory(msgspec.Struct, kw_only=True):
    version: int = VERSION
    jobs: dict[str, _Known] = {}
    """By run."""


class JobRegistry:
    """Follows the run directory. A job runs while it is listed; one that was struck off, or says so, has ended.

    One that the memory alone knows (the run directory did not outlive a restart) goes on for a while: nobody has
    said that it ended.
    """

    def __init__(self, run_dir: Path, memory: Path, now: float) -> None:
        self._directory = JobDirectory(run_dir)
        self._path = memory
        self._runs = self._recall(now)
        self._listed: set[str] = set()
        self._ending: dict[str, int] = {}

    @property
    def running(self) -> tuple[str, ...]:
        """Jobs to send to, those that have just ended among them."""
        runs = [run for run, known in self._runs.items() if not known.ended or run in self._ending]
        return tuple(dict.fromkeys(self._runs[run].job for run in runs))

    @property
    def idle(self) -> bool:
        """This node had jobs, and every one of them was said to have ended."""
        return bool(self._runs) and all(known.ended for known in self._runs.values())

    def job_of(self, worker: str) -> str:
        """Job of a worker (run/node/slot), '' if it belongs to none that is known."""
        known = self._runs.get(worker.partition("/")[0])
        return known.job if known else ""

    def look(self, now: float) -> None:
        """Follow what has changed; writes the memory when it has."""
        before = {run: known.ended for run, known in self._runs.items()}
        self._ending = {run: left - 1 for run, left in self._ending.items() if left > 1}
        listed = {job.run: job for job in self._directory.look()}
        for run, job in listed.items():
            self._runs[run] = _Known(job=job.job, seen=now, ended=job.stopped)
        for run, known in self._runs.items():
            vanished = run in self._listed and run not in listed
            if vanished or (run not in listed and now - known.seen > FORGOTTEN_S):
                known.ended = True
            if known.ended and before.get(run) is False:
                self._ending[run] = ENDING_LOOKS
        self._listed = set(listed)
        if before != {run: known.ended for run, known in self._runs.items()}:
            self._remember()

    def _remember(self) -> None:
        """Keep the jobs that run, and the last one that ended: it makes the node idle."""
        ended = [run for run, known in self._runs.items() if known.ended and run not in self._listed]
        for run in ended[:-1]:
            if run not in self._ending:
                del self._runs[run]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(self._path, msgspec.json.encode(_Memory(jobs=self._runs)), lasting=False)
        except OSError as error:  # a full disk: the agent goes on, a restarted one knows less
            log.warning("the jobs of this node cannot be remembered in %s: %s", self._path, error)

    def _recall(self, now: float) -> dict[str, _Known]:
        try:
            memory = msgspec.json.decode(self._path.read_bytes(), type=_Memory)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s is passed over, so jobs are known from the run directory alone: %s", self._path, error)
            return {}
        for known in memory.jobs.values():
            known.seen = now  # the time counts in which this agent could have seen a launcher
        return memory.jobs if memory.version == VERSION else {}
