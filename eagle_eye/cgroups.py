"""Which control groups a process is in, and their folders: cgroup v1 and v2, as far as they can be seen from here."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from eagle_eye.regular_file import read_kernel_file

PROC = Path("/proc")
NO_LIMIT = 1 << 60
"""Bytes: v1 has such a number where memory has no limit."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One cgroup of one hierarchy, as the files of its folder."""

    name: str
    """Its path below the mount, such as /kubepods/pod1."""
    folder: Path
    version: int

    def number(self, file: str) -> int | None:
        """The content of a file with one number; None if it is not there, or says `max`."""
        try:
            return int(self.content(file))
        except (OSError, ValueError):
            return None

    def keyed(self, file: str, key: str) -> int | None:
        """One value of a file of the lines `key value`; None if it is not there."""
        try:
            lines = (line.split() for line in self.content(file).splitlines())
            return next((int(words[1]) for words in lines if len(words) == 2 and words[0] == key.encode()), None)
        except (OSError, ValueError):
            return None

    def content(self, file: str) -> bytes:
        """Of one of its files. Raises OSError."""
        return read_kernel_file(f"{self.folder}/{file}")


def membership_of(pid: int, proc: Path = PROC) -> str:
    """The text of /proc/PID/cgroup; '' once the process is gone. While it stays the same, so do its cgroups."""
    try:
        return read_kernel_file(f"{proc}/{pid}/cgroup").decode(errors="replace")
    except OSError:
        return ""


def cgroups_of(pid: int, controller: str, proc: Path = PROC) -> tuple[Cgroup, ...]:
    """The cgroup of a process that has this controller and those around it, the innermost first."""
    rows = [line.split(":", 2) for line in membership_of(pid, proc).splitlines()]
    try:
        mounts = (proc / "self" / "mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ()
    paths = {row[1]: row[2] for row in rows if len(row) == 3}
    first = next((path for controllers, path in paths.items() if controller in controllers.split(",")), None)
    version, path = (1, first) if first is not None else (2, paths.get("", ""))
    found = next(_mounts(mounts, version, controller), None)
    if found is None or not path.startswith("/") or path.startswith("/.."):
        return ()
    root, point = found
    inside = PurePosixPath(path)
    below = inside.relative_to(root) if inside.is_relative_to(root) else PurePosixPath()  # a container that sees its own part alone
    names = [below, *below.parents] if below.parts else [below]
    return tuple(Cgroup(str(PurePosixPath("/") / name), point / name, version) for name in names)


def _mounts(lines: list[str], version: int, controller: str) -> Iterator[tuple[str, Path]]:
    """(root within the hierarchy, mount point) of the hierarchies that have the controller; proc_pid_mountinfo(5)."""
    for line in lines:
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        if (version == 2 and kind == "cgroup2") or (version == 1 and kind == "cgroup" and controller in options.split(" ")[-1].split(",")):
            fields = before.split(" ")
            yield fields[3], Path(fields[4])


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """One cgroup, by its counters of memory."""

    cgroup: Cgroup

    @property
    def name(self) -> str:
        return self.cgroup.name

    def kills(self) -> int | None:
        """None where the kernel does not count them."""
        return self.cgroup.keyed("memory.events" if self.cgroup.version == 2 else "memory.oom_control", "oom_kill")

    def limit_hits(self) -> int:
        """How often its limit was reached."""
        found = self.cgroup.keyed("memory.events", "oom") if self.cgroup.version == 2 else self.cgroup.number("memory.failcnt")
        return found or 0

    def limit_bytes(self) -> int | None:
        found = self.cgroup.number("memory.max" if self.cgroup.version == 2 else "memory.limit_in_bytes")
        return found if found is not None and found < NO_LIMIT else None

    def used_bytes(self) -> int | None:
        """Without cached files that nobody reads any more: the kernel drops those first, and a job that reads its data fills any limit with them."""
        used = self.cgroup.number("memory.current" if self.cgroup.version == 2 else "memory.usage_in_bytes")
        cached = self.cgroup.keyed("memory.stat", "inactive_file" if self.cgroup.version == 2 else "total_inactive_file")
        return None if used is None else max(used - (cached or 0), 0)

    def high_events(self) -> int | None:
        """How often its processes were slowed down because they used more than memory.high; None: v1 has no such limit."""
        return self.cgroup.keyed("memory.events", "high") if self.cgroup.version == 2 else None

    def peak_bytes(self) -> int | None:
        return self.cgroup.number("memory.peak" if self.cgroup.version == 2 else "memory.max_usage_in_bytes")


def memory_cgroups_of(pid: int, proc: Path = PROC) -> tuple[MemoryCgroup, ...]:
    """The memory cgroup of a process and those around it, the innermost first."""
    return tuple(MemoryCgroup(cgroup) for cgroup in cgroups_of(pid, "memory", proc))
