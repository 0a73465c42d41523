"""Job files: the jobs of this node, as registered by their launchers, one file per run in `<run-dir>/jobs`."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from collectors.worker.procfs import alive
from eagle_eye.regular_file import read_regular

log = logging.getLogger(__name__)

VERSION = 1
LARGEST = 1 << 20
"""Bytes of a job file; one of a node with 1,000 workers has a quarter of that."""


class LocalWorker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process of a job on this node."""

    worker: str
    """run/node/slot"""
    slot: int
    rank: int
    pid: int
    start_time: int = 0
    """Field 22 of /proc/PID/stat."""
    ring: str = ""
    socket: str = ""
    epoch: int = 0
    born: int = -1
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

    version: int = VERSION
    job: str
    """tenant/name/run"""
    run: str
    node: str = ""
    epoch: int = 0
    launcher_pid: int = 0
    launcher_start_time: int = 0
    """0: not known; then a recycled pid is taken for the launcher."""
    workers: tuple[LocalWorker, ...] = ()
    state: str = "running"
    """running or stopped"""

    @property
    def stopped(self) -> bool:
        return self.state == "stopped"

    @property
    def launched(self) -> bool:
        """Its launcher process is alive."""
        return alive(self.launcher_pid, self.launcher_start_time)


FileVersion = tuple[int, int, int]
"""Inode, size and time of change of a file: launchers replace their files as a whole."""


class JobDirectory:
    """Reads the job files of a run directory, each again only when it has changed."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / "jobs"
        self._files: dict[str, tuple[FileVersion, LocalJob | None]] = {}

    def read(self) -> tuple[LocalJob, ...]:
        """Every job that is registered and whose file is readable, stopped ones too."""
        files: dict[str, tuple[FileVersion, LocalJob | None]] = {}
        for name, version in self._versions():
            before = self._files.get(name)
            files[name] = before if before and before[0] == version else (version, self._read(name))
        self._files = files
        return tuple(job for _, job in files.values() if job is not None)

    def _versions(self) -> Iterator[tuple[str, FileVersion]]:
        try:
            files = [path for path in self.path.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:  # no launcher has run here yet
            return
        for path in files:
            with suppress(OSError):  # it was removed meanwhile, or leads nowhere: the others count all the same
                status = path.stat()
                yield path.name, (status.st_ino, status.st_size, status.st_mtime_ns)

    def _read(self, name: str) -> LocalJob | None:
        """Content of a job file; None, with one warning, if it cannot be read."""
        try:
            job = msgspec.json.decode(read_regular(self.path / name, LARGEST), type=LocalJob)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log.warning("job file %s is ignored: %s", self.path / name, error)
            return None
        if job.version != VERSION:
            log.warning("%s has version %d, this agent reads %d: update the agent", self.path / name, job.version, VERSION)
            return None
        return job
