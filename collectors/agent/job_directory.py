"""The jobs of this node, as their launchers write them down: one file a run in `<run-dir>/jobs`."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from collectors.worker.procfs import alive

log = logging.getLogger(__name__)

VERSION = 1


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
    """Epoch in which it was forked: an elastic one lives on in later ones. -1: its epoch."""

    @property
    def birth(self) -> int:
        return self.born if self.born >= 0 else self.epoch

    @property
    def life(self) -> tuple[str, int, int, int]:
        """What tells this process from every other one that ran or will run as the same worker."""
        return (self.worker, self.birth, self.pid, self.start_time)


class LocalJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job's part on this node."""

    version: int = VERSION
    job: str
    """tenant/name/run"""
    run: str
    node: str = ""
    epoch: int = 0
    launcher_pid: int = 0
    launcher_start_time: int = 0
    """0: not known; then a recycled pid passes for the launcher."""
    workers: tuple[LocalWorker, ...] = ()
    state: str = "running"
    """running or stopped"""

    @property
    def stopped(self) -> bool:
        return self.state == "stopped"

    @property
    def launched(self) -> bool:
        """Its launcher lives."""
        return alive(self.launcher_pid, self.launcher_start_time)


Mark = tuple[int, int, int]
"""Inode, size and time of change of a file: launchers replace their files as a whole."""


class JobDirectory:
    """Reads the files that have changed since the last look."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / "jobs"
        self._files: dict[str, tuple[Mark, LocalJob | None]] = {}

    def look(self) -> tuple[LocalJob, ...]:
        """Every job that is written down and can be read, stopped ones too."""
        files: dict[str, tuple[Mark, LocalJob | None]] = {}
        for name, mark in self._marks():
            before = self._files.get(name)
            files[name] = before if before and before[0] == mark else (mark, self._read(name))
        self._files = files
        return tuple(job for _, job in files.values() if job is not None)

    def _marks(self) -> Iterator[tuple[str, Mark]]:
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if entry.name.endswith(".json"):
                        status = entry.stat()
                        yield entry.name, (status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:  # no launcher has been here yet, or a file went while we looked
            return

    def _read(self, name: str) -> LocalJob | None:
        """A job's file; None, and told once, if it is not one of ours."""
        try:
            job = msgspec.json.decode((self.path / name).read_bytes(), type=LocalJob)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s is passed over: %s", self.path / name, error)
            return None
        if job.version != VERSION:
            log.warning("%s has version %d, this agent reads %d: update it", self.path / name, job.version, VERSION)
            return None
        return job
