"""The mounts that the jobs of this node use, and what is asked about each: found without asking any file system anything."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collectors.agent.job_directory import LocalJob, LocalWorker, trusted

from .mounts import Mount, mount_of, mounts_of, used_by

SCAN_S = 30.0
"""Between two looks at the open files of a worker."""
OURSELVES = "self"


@dataclass
class UsedMount:
    """One mount, seen through a process that uses it."""

    mount: Mount
    pid: str
    """Whose mount namespace it is in; `self`: that of the agent."""
    path: str
    """A file or folder on it that a job uses, as that process sees it."""
    jobs: set[str] = field(default_factory=set)
    """None: it is watched for the sake of the configuration."""
    write: str = ""
    """Folder that may be written into."""
    owner: int = -1
    """User id that the folder has to be of; -1: anybody's."""

    def seen_from_here(self, path: str, proc: Path) -> str:
        """The path as we get there."""
        return path if self.pid == OURSELVES or not path else f"{proc / self.pid / 'root'}{path}"


@dataclass
class _Scanned:
    at: float
    namespace: str
    used: dict[str, str]


class MountFinder:
    """Asked at each look; the open files of a worker are looked at every SCAN_S."""

    def __init__(self, proc: Path, paths: Sequence[str], write_paths: Sequence[str]) -> None:
        self._proc, self._paths, self._write_paths = proc, tuple(paths), tuple(write_paths)
        self._scanned: dict[tuple[str, int, int, int], _Scanned] = {}

    def find(self, jobs: Iterable[LocalJob], monotonic: float) -> dict[str, UsedMount]:
        """Mount point → the mount. Of two with one mount point in different containers the first."""
        running = [job for job in jobs if not job.stopped]
        lives = {worker.life for job in running for worker in job.workers}
        self._scanned = {life: known for life, known in self._scanned.items() if life in lives}
        tables: dict[str, tuple[str, tuple[Mount, ...]]] = {}
        found: dict[str, UsedMount] = {}
        if running or self._paths or self._write_paths:
            tables[self._namespace(OURSELVES)] = OURSELVES, mounts_of(OURSELVES, self._proc)
        for job in running:
            for worker in job.workers:
                self._add_worker(found, tables, job, worker, monotonic)
        for path in (*self._paths, *self._write_paths):
            self._add_path(found, tables, path, write=path in self._write_paths)
        return found

    def _add_worker(
        self, found: dict[str, UsedMount], tables: dict[str, tuple[str, tuple[Mount, ...]]], job: LocalJob, worker: LocalWorker, monotonic: float
    ) -> None:
        known = self._scanned.get(worker.life)
        namespace = known.namespace if known else self._namespace(str(worker.pid))
        if namespace not in tables:
            tables[namespace] = str(worker.pid), mounts_of(str(worker.pid), self._proc)
        pid, mounts = tables[namespace]
        if known is None or monotonic - known.at >= SCAN_S:
            known = self._scanned[worker.life] = _Scanned(monotonic, namespace, used_by(worker.pid, self._proc, mounts))
        by_point = {mount.point: mount for mount in mounts}
        for point, path in known.used.items():
            if point in by_point:  # else it was unmounted since
                found.setdefault(point, UsedMount(by_point[point], pid, path)).jobs.add(job.job)
        folder = mount_of(job.checkpoints, mounts) if job.checkpoints.startswith("/") else None
        if folder is not None and folder.is_storage:
            used = found.setdefault(folder.point, UsedMount(folder, pid, job.checkpoints))
            used.jobs.add(job.job)
            if not used.write:
                used.write, used.owner = job.checkpoints, -1 if trusted(job.user) else job.user

    def _add_path(self, found: dict[str, UsedMount], tables: dict[str, tuple[str, tuple[Mount, ...]]], path: str, *, write: bool) -> None:
        _, mounts = tables[self._namespace(OURSELVES)]
        mount = mount_of(path, mounts)
        if mount is None:
            return
        used = found.setdefault(mount.point, UsedMount(mount, OURSELVES, path))
        if write and used.pid == OURSELVES:
            used.write, used.owner = path, -1

    def _namespace(self, pid: str) -> str:
        """Of its mounts; what cannot be read counts as our own."""
        for process in (pid, OURSELVES):
            try:
                return os.readlink(self._proc / process / "ns" / "mnt")  # noqa: PTH115
            except OSError:
                continue
        return ""
