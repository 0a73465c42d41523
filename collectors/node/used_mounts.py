"""The mounts that the jobs of this node use, and what is asked about each: found without asking any file system anything."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collectors.agent.job_directory import LocalJob, LocalWorker, trusted

from .mounts import Mount, mount_of, mounts_of, used_by

SCAN_S = 30.0
"""Between two looks at the open files of a worker."""
OURSELVES, FIRST = "self", "1"
"""Processes of /proc."""


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
class _ProcessMounts:
    at: float
    namespace: str
    used: dict[str, str]


@dataclass(frozen=True)
class _MountTable:
    namespace: str
    pid: str
    """Through whom it is seen; `self` for our own."""
    mounts: tuple[Mount, ...]


class MountFinder:
    """Asked at each look; the open files of a worker are looked at every SCAN_S.

    A worker's mounts may be others than ours: it runs in a container, or we do, or systemd shows us a read-only tree.
    """

    def __init__(self, proc: Path, paths: Sequence[str], write_paths: Sequence[str]) -> None:
        self._proc, self._paths, self._write_paths = proc, tuple(paths), tuple(write_paths)
        self._scanned: dict[tuple[str, int, int, int], _ProcessMounts] = {}
        self._tables: dict[str, _MountTable] = {}

    def find(self, jobs: Iterable[LocalJob], monotonic: float) -> dict[str, UsedMount]:
        """Mount point → the mount. Of two with one mount point in different containers the first."""
        running = [job for job in jobs if not job.stopped]
        lives = {worker.life for job in running for worker in job.workers}
        self._scanned = {life: known for life, known in self._scanned.items() if life in lives}
        self._tables = {}
        found: dict[str, UsedMount] = {}
        for job in running:
            for worker in job.workers:
                self._add_worker(found, job, worker, monotonic)
        for path in dict.fromkeys((*self._paths, *self._write_paths)):
            self._add_path(found, path)
        return found

    def _add_worker(self, found: dict[str, UsedMount], job: LocalJob, worker: LocalWorker, monotonic: float) -> None:
        known = self._scanned.get(worker.life)
        table = self._table_of(str(worker.pid), known.namespace if known else "")
        if known is None or monotonic - known.at >= SCAN_S:
            known = self._scanned[worker.life] = _ProcessMounts(monotonic, table.namespace, used_by(worker.pid, self._proc, table.mounts))
        by_point = {mount.point: mount for mount in table.mounts}
        for point, path in known.used.items():
            if point in by_point:  # else it was unmounted since
                found.setdefault(point, UsedMount(by_point[point], table.pid, path)).jobs.add(job.job)
        folder = mount_of(job.checkpoints, table.mounts) if job.checkpoints.startswith("/") else None
        if folder is not None and folder.is_storage:
            used = found.setdefault(folder.point, UsedMount(folder, table.pid, job.checkpoints))
            used.jobs.add(job.job)
            if not used.write:
                used.write, used.owner = job.checkpoints, -1 if trusted(job.user) else job.user

    def _add_path(self, found: dict[str, UsedMount], path: str) -> None:
        """As the machine sees it: its first process, where we may look at that."""
        table = self._table_of(FIRST if self._namespace_of(FIRST) else OURSELVES)
        mount = mount_of(path, table.mounts)
        if mount is None:
            return
        used = found.setdefault(mount.point, UsedMount(mount, table.pid, path))
        if path in self._write_paths and used.pid == table.pid:
            used.write, used.owner = path, -1

    def _table_of(self, pid: str, namespace: str = "") -> _MountTable:
        """Of the namespace that a process is in, read once a look; one that may not be asked for counts as our own."""
        ours = self._namespace_of(OURSELVES)
        namespace = namespace or self._namespace_of(pid) or ours
        if namespace not in self._tables:
            through = OURSELVES if namespace == ours else pid
            self._tables[namespace] = _MountTable(namespace, through, mounts_of(through, self._proc))
        return self._tables[namespace]

    def _namespace_of(self, pid: str) -> str:
        try:
            return os.readlink(self._proc / pid / "ns" / "mnt")  # noqa: PTH115
        except OSError:
            return ""
