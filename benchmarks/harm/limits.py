"""What the machine refuses a job for real: a full and a read-only file system, and a cgroup whose memory is used up.

Mounts and cgroups need root. Where the machine does not allow them the benchmark says so and takes what needs no permission.
"""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harm.faults import LIMITED, MIB, READ_ONLY, SMALL_DISK
from eagle_eye.cgroups import Cgroup, cgroups_of, memory_cgroups_of

SMALL_DISK_BYTES = MIB
HEADROOM_BYTES = 384 * MIB
"""More than the job uses at the moment."""
LIMIT_FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
"""Version of cgroups → the files of the limit and of what is used."""
QUOTA_FILES = {1: "cpu.cfs_quota_us", 2: "cpu.max"}
PERIOD_US = 100_000
"""The kernel's own, unless it is told otherwise."""
GONE_S = 5.0


def can_mount() -> bool:
    """Whether this process may mount file systems."""
    with tempfile.TemporaryDirectory(prefix="harm") as name:
        if not _done("mount", "-t", "tmpfs", "-o", "size=4k", "harm", name):
            return False
        return _done("umount", name)


def can_limit_memory() -> bool:
    """Whether this process may make memory cgroups whose kills are counted."""
    try:
        with limited_memory("harm-try", ()):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """A small file system and a read-only one in the job's folder. Raises OSError where that is not allowed."""
    points = [(folder / SMALL_DISK, f"size={SMALL_DISK_BYTES}"), (folder / READ_ONLY, "size=1m,ro")]
    made: list[Path] = []
    try:
        for point, options in points:
            point.mkdir(parents=True)
            if not _done("mount", "-t", "tmpfs", "-o", options, "harm", str(point)):
                raise PermissionError(f"{point} cannot be mounted")
            made.append(point)
        yield
    finally:
        for point in made:
            _done("umount", "--lazy", str(point))


class MemoryLimit:
    """The cgroup of one job."""

    def __init__(self, cgroup: Cgroup) -> None:
        self._cgroup = cgroup

    def take(self, pids: Sequence[int]) -> None:
        """Processes without children as yet: what they start is in it, too."""
        for pid in pids:
            (self._cgroup.folder / "cgroup.procs").write_text(str(pid))

    def lower(self, folder: Path) -> None:
        """Little more than is used now; the job is told by a file in its folder."""
        limit, used = LIMIT_FILES[self._cgroup.version]
        (self._cgroup.folder / limit).write_text(str(int((self._cgroup.folder / used).read_text()) + HEADROOM_BYTES))
        (folder / LIMITED).touch()


@contextlib.contextmanager
def limited_memory(name: str, pids: Sequence[int]) -> Iterator[MemoryLimit]:
    """A cgroup inside our own, for these processes. Raises OSError where that is not allowed."""
    own = next((cgroup for cgroup in memory_cgroups_of(os.getpid()) if cgroup.kills() is not None), None)
    if own is None:
        raise PermissionError("no cgroup here counts the kernel's kills")
    with _inside(own.cgroup, name, LIMIT_FILES[own.cgroup.version][0]) as cgroup:
        limit = MemoryLimit(cgroup)
        limit.take(pids)
        yield limit


class ProcessorQuota:
    """The processor time of some processes together."""

    def __init__(self, cgroup: Cgroup) -> None:
        self._cgroup = cgroup

    @contextlib.contextmanager
    def limited(self, processors: float) -> Iterator[None]:
        """So many at most."""
        microseconds = round(processors * PERIOD_US)
        self._write(str(microseconds) if self._cgroup.version == 1 else f"{microseconds} {PERIOD_US}")
        try:
            yield
        finally:
            self._write("-1" if self._cgroup.version == 1 else f"max {PERIOD_US}")

    def _write(self, quota: str) -> None:
        (self._cgroup.folder / QUOTA_FILES[self._cgroup.version]).write_text(quota)


@contextlib.contextmanager
def limited_processor(name: str, pids: Sequence[int]) -> Iterator[ProcessorQuota]:
    """A cgroup inside our own, for these processes and what they start; no limit as yet. Raises OSError where that is not allowed."""
    own = next(iter(cgroups_of(os.getpid(), "cpu")), None)
    if own is None:
        raise PermissionError("no cgroup here has the cpu controller")
    with _inside(own, name, QUOTA_FILES[own.version]) as cgroup:
        for pid in pids:
            (cgroup.folder / "cgroup.procs").write_text(str(pid))
        yield ProcessorQuota(cgroup)


@contextlib.contextmanager
def _inside(outer: Cgroup, name: str, file: str) -> Iterator[Cgroup]:
    """A new cgroup in another one, which must have this file; it goes once its processes have ended. Raises OSError."""
    cgroup = Cgroup(f"{outer.name}/{name}", outer.folder / f"{name}-{os.getpid()}", outer.version)
    cgroup.folder.mkdir()
    try:
        if not (cgroup.folder / file).exists():
            raise PermissionError(f"{cgroup.folder} has no {file}: cgroups in our own cannot be limited")
        yield cgroup
    finally:
        deadline = time.monotonic() + GONE_S
        while cgroup.folder.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # a process in it has not ended yet
                cgroup.folder.rmdir()
            time.sleep(0.02)


def _done(*command: str) -> bool:
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False
