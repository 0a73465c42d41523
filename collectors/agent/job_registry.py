"""Jobs that this node writes batches for: those registered by launchers, saved on disk over a restart of the agent."""

import logging
from pathlib import Path

import msgspec

from eagle_eye.errors import UNREADABLE
from eagle_eye.training import atomic_file

from .job_directory import JobDirectory

log = logging.getLogger(__name__)

VERSION = 1
ENDING_REFRESHES = 3
"""A job that has ended gets batches for so many refreshes more: its last steps come after its end."""
FORGOTTEN_S = 600.0
"""A job known from the saved file alone, without a job file since, counts as ended after so long."""


class _Run(msgspec.Struct, kw_only=True):
    job: str
    seen: float
    """Wall time at which its job file was last seen."""
    ended: bool = False


class _SavedJobs(msgspec.Struct, kw_only=True):
    version: int = VERSION
    jobs: dict[str, _Run] = {}
    """By run."""


class JobRegistry:
    """Follows the job files. A job runs while it has one; it has ended when the file is removed or says so.

    A job known from the saved file alone (the run directory did not survive a restart) runs for FORGOTTEN_S more.
    """

    def __init__(self, run_dir: Path, saved: Path, now: float) -> None:
        self._directory = JobDirectory(run_dir)
        self._path = saved
        self._runs = self._load(now)
        self._listed: set[str] = set()
        self._ending: dict[str, int] = {}

    @property
    def running(self) -> tuple[str, ...]:
        """Jobs to write batches for, including those that have just ended."""
        runs = [run for run, known in self._runs.items() if not known.ended or run in self._ending]
        return tuple(dict.fromkeys(self._runs[run].job for run in runs))

    @property
    def idle(self) -> bool:
        """This node had jobs, and all of them have ended."""
        return bool(self._runs) and all(known.ended for known in self._runs.values())

    def job_of(self, worker: str) -> str:
        """Job of a worker (run/node/slot), '' if it belongs to none that is known."""
        known = self._runs.get(worker.partition("/")[0])
        return known.job if known else ""

    def refresh(self, now: float) -> None:
        """Read the job files again; saves the jobs if they changed."""
        before = {run: known.ended for run, known in self._runs.items()}
        self._ending = {run: left - 1 for run, left in self._ending.items() if left > 1}
        listed = {job.run: job for job in self._directory.read()}
        for run, job in listed.items():
            self._runs[run] = _Run(job=job.job, seen=now, ended=job.stopped)
        for run, known in self._runs.items():
            vanished = run in self._listed and run not in listed
            if vanished or (run not in listed and now - known.seen > FORGOTTEN_S):
                known.ended = True
            if known.ended and before.get(run) is False:
                self._ending[run] = ENDING_REFRESHES
        self._listed = set(listed)
        if before != {run: known.ended for run, known in self._runs.items()}:
            self._save()

    def _save(self) -> None:
        """Save the running jobs and the last one that ended, which makes the node idle."""
        ended = [run for run, known in self._runs.items() if known.ended and run not in self._listed]
        for run in ended[:-1]:
            if run not in self._ending:
                del self._runs[run]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(self._path, msgspec.json.encode(_SavedJobs(jobs=self._runs)), durable=False)
        except OSError as error:  # a full disk: the agent goes on, a restarted one knows less
            log.warning("the jobs of this node cannot be saved in %s: %s", self._path, error)

    def _load(self, now: float) -> dict[str, _Run]:
        try:
            saved = msgspec.json.decode(self._path.read_bytes(), type=_SavedJobs)
        except FileNotFoundError:
            return {}
        except (OSError, *UNREADABLE) as error:
            log.warning("%s is ignored, so jobs are known from the run directory alone: %s", self._path, error)
            return {}
        for known in saved.jobs.values():
            known.seen = now  # FORGOTTEN_S counts from the start of this agent
        return saved.jobs if saved.version == VERSION else {}
