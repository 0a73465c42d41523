"""Job files: the jobs of this node, as registered by their launchers, one file per run in `<run-dir>/jobs`.

Several users may register there (a directory of mode 1770). What a user writes is believed of that user's processes, rings and sockets
alone, and of two users who claim one run the first is believed. Files of root, and of the user that reads, may name anything.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from collectors.worker.procfs import alive, certain_users_of
from eagle_eye.errors import UNREADABLE
from eagle_eye.open_file_limit import NO_ROOM
from eagle_eye.regular_file import read_owned
from eagle_eye.types.entity import Name, Number

log = logging.getLogger(__name__)

VERSION = 1
TOLD_MOST = 1000
"""Refusals that are remembered, so that each is told once."""
MOST_FILES = 1000
"""Of one user: with more the agent would have no time for the jobs of others."""
LARGEST = 1 << 20
"""Bytes of a job file; one of a node with 1,000 workers has a quarter of that."""
FilePath = Annotated[str, msgspec.Meta(max_length=4096, pattern=r"\A[^\x00]*\Z")]
"""What the kernel takes as a path: PATH_MAX, and no NUL."""
ProcessNumber = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 31) - 1)]
"""What the kernel takes as a process id; 0 and -1: none."""


class LocalWorker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process of a job on this node. A file in which one text or number cannot be is refused as a whole."""

    worker: Name
    """run/node/slot"""
    slot: Number
    rank: Number
    pid: ProcessNumber
    start_time: Number = 0
    """Field 22 of /proc/PID/stat."""
    ring: FilePath = ""
    socket: FilePath = ""
    log: FilePath = ""
    """File with its output."""
    log_from: Number = 0
    """Bytes that were in it before: of the processes of the epochs before."""
    epoch: Number = 0
    born: Number = -1
    """Epoch in which its process was forked: an elastic worker continues in later epochs. -1: the same as `epoch`."""

    @property
    def birth(self) -> int:
        return self.born if self.born >= 0 else self.epoch

    @property
    def life(self) -> tuple[str, int, int, int]:
        """Identity of this process among all processes of the same worker."""
        return (self.worker, self.birth, self.pid, self.start_time)


class LocalJob(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a job that runs on this node (content of a job file)."""

    version: Number = VERSION
    job: Name
    """tenant/name/run"""
    run: Name
    node: Name = ""
    epoch: Number = 0
    launcher_pid: ProcessNumber = 0
    launcher_start_time: Number = 0
    """0: not known; then a recycled pid is taken for the launcher."""
    workers: tuple[LocalWorker, ...] = ()
    checkpoints: FilePath = ""
    """Folder of its checkpoints; '' if the launcher does not say."""
    state: str = "running"
    """running or stopped"""
    user: Number = 0
    """Owner of the file; whatever the file says of it."""
    file: str = ""
    """Its name; the same."""

    @property
    def stopped(self) -> bool:
        return self.state == "stopped"

    @property
    def launched(self) -> bool:
        """Its launcher process is alive."""
        return alive(self.launcher_pid, self.launcher_start_time)


FileVersion = tuple[int, int, int]
"""Inode, size and time of change of a file: launchers replace their files as a whole."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A job file, or a part of one, that is not believed."""

    file: str
    user: int
    job: str
    """That it claims."""
    reason: str


def trusted(user: int) -> bool:
    """Whether a file of this user may name processes and files of others: root's, and our own."""
    return user in (0, os.geteuid())


def may_name(user: int, path: str | os.PathLike[str]) -> bool:
    """Whether this user's job file may name a file: its own, and one that is not there."""
    return trusted(user) or _owner(path) in (user, None)


def _owner(path: str | os.PathLike[str]) -> int | None:
    """Whose file it is; None if there is none, and for what no file can be named (with a NUL, or text that has no encoding)."""
    try:
        return os.lstat(path).st_uid
    except (OSError, ValueError):
        return None


class JobDirectory:
    """Reads the job files of a run directory, each again only when it has changed."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / "jobs"
        self._files: dict[str, tuple[FileVersion, LocalJob | None]] = {}
        self._users: dict[str, int] = {}
        """Run → whose it is, as long as that user has a file of it."""
        self._unreadable = False
        """The directory could not be read at the last try."""
        self._told: set[Refusal] = set()
        self._news: list[Refusal] = []

    def read(self) -> tuple[LocalJob, ...]:
        """Every job that is registered and whose file is readable, stopped ones too; each run once."""
        files: dict[str, tuple[FileVersion, LocalJob | None]] = {}
        try:
            versions = self._versions()
        except OSError as error:  # what is known goes on: a job does not end because its file cannot be read for a moment
            if not self._unreadable:
                log.warning("%s cannot be read, so that jobs which begin are not seen: %s", self.path, error)
            self._unreadable = True
            return tuple(self._of_first_users([job for _, job in self._files.values() if job is not None]))
        self._unreadable = False
        for name, version in versions:
            before = self._files.get(name)
            try:
                files[name] = before if before and before[0] == version else (version, self._read(name))
            except OSError as error:  # no room to look: it is read at the next round
                log.warning("job file %s cannot be read now: %s", self.path / name, error)
                if before:
                    files[name] = before
        self._files = files
        return tuple(self._of_first_users([job for _, job in files.values() if job is not None]))

    def refusals(self) -> list[Refusal]:
        """What is not believed, each once."""
        news, self._news = self._news, []
        return news

    # --- files ---------------------------------------------------------------------------------------------------

    def _versions(self) -> list[tuple[str, FileVersion]]:
        """The files that count, of each user at most MOST_FILES, the newest first. Raises OSError."""
        found: dict[int, list[tuple[str, FileVersion]]] = {}
        try:
            with os.scandir(self.path) as entries:
                files = [entry for entry in entries if entry.name.endswith(".json")]
        except FileNotFoundError:  # no launcher has run here yet
            return []
        for entry in files:
            with suppress(OSError):  # it was removed meanwhile, or leads nowhere: the others count all the same
                status = entry.stat(follow_symlinks=False)
                found.setdefault(status.st_uid, []).append((entry.name, (status.st_ino, status.st_size, status.st_mtime_ns)))
        for user, own in found.items():
            if len(own) > MOST_FILES and not trusted(user):
                own.sort(key=lambda file: file[1][2], reverse=True)
                del own[MOST_FILES:]
                self._refuse(LocalJob(job="", run="", user=user), f"the user has more than {MOST_FILES} job files, of which the newest count")
        return [file for own in found.values() for file in own]

    def _read(self, name: str) -> LocalJob | None:
        """Content of a job file; None, with one warning, if it cannot be read. Raises OSError where that says nothing of the file."""
        try:
            content, user = read_owned(self.path / name, LARGEST, follow=False)
            job = msgspec.structs.replace(msgspec.json.decode(content, type=LocalJob), user=user, file=name)
        except FileNotFoundError:
            return None
        except (OSError, *UNREADABLE) as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise
            log.warning("job file %s is ignored: %s", self.path / name, error)
            return None
        if job.version != VERSION:
            log.warning("%s has version %d, this agent reads %d: update the agent", self.path / name, job.version, VERSION)
            return None
        return job if trusted(user) else self._believed(job)

    # --- other users ---------------------------------------------------------------------------------------------

    def _believed(self, job: LocalJob) -> LocalJob | None:
        """What a user may say: of runs that the file is named after, and of the user's own processes."""
        if job.file not in (f"{job.run}.json", f"{job.run}.{job.user}.json") or job.job.rpartition("/")[2] != job.run:
            self._refuse(job, f"it is not named after its run, {job.job}")
            return None
        if job.job.count("/") != 2 or not all(job.job.split("/")):  # what is of no job is told to all, and `idle/NODE` is the node's own
            self._refuse(job, f"{job.job!r} is no job: use tenant/name/run")
            return None
        if not _may_be_of(job.user, job.launcher_pid, job.launcher_start_time):
            self._refuse(job, f"its launcher, process {job.launcher_pid}, is another user's")
            return None
        workers = tuple(worker for worker in job.workers if self._is_own(job, worker))
        return msgspec.structs.replace(job, workers=workers)

    def _is_own(self, job: LocalJob, worker: LocalWorker) -> bool:
        if not worker.worker.startswith(f"{job.run}/{job.node}/"):
            self._refuse(job, f"its worker {worker.worker} is none of {job.run} on {job.node}")
        elif not _may_be_of(job.user, worker.pid, worker.start_time):
            self._refuse(job, f"its worker {worker.worker}, process {worker.pid}, is another user's")
        else:
            return True
        return False

    def _of_first_users(self, jobs: Iterable[LocalJob]) -> Iterator[LocalJob]:
        """One user's job for each run: of whose launcher has the run's socket, which there is once; else of who was there first."""
        by_run: dict[str, list[LocalJob]] = {}
        for job in jobs:
            by_run.setdefault(job.run, []).append(job)
        users: dict[str, int] = {}
        for run, claims in by_run.items():
            if len(claims) == 1:  # nearly always: nobody is asked who listens, nor whether the launcher lives
                users[run] = claims[0].user
                yield claims[0]
                continue
            listening = _owner(self.path.parent / f"{run}-launcher.sock")
            first = min(claims, key=lambda job: (job.user != listening, job.user != self._users.get(job.run), not job.launched, job.user))
            users[run] = first.user
            for job in claims:
                if job.user == first.user:
                    yield job
                else:
                    self._refuse(job, f"the run {run} is of the user {first.user}")
        self._users = users

    def _refuse(self, job: LocalJob, reason: str) -> None:
        refusal = Refusal(file=job.file, user=job.user, job=job.job, reason=reason)
        if refusal not in self._told:
            if len(self._told) >= TOLD_MOST:
                self._told.clear()
            self._told.add(refusal)
            self._news.append(refusal)


def _may_be_of(user: int, pid: int, start_time: int) -> bool:
    """Whether a process that a user's file names is that user's, or is gone. Without a start time a later process could be meant. Raises OSError where there is no room to look."""
    if start_time <= 0 or not alive(pid, start_time):
        return start_time > 0
    try:
        return user in certain_users_of(pid)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        return False
