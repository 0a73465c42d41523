"""Which control groups a process is in, and their folders: cgroup v1 and v2, as far as they can be seen from here."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC = Path("/proc")


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
            return int((self.folder / file).read_text())
        except (OSError, ValueError):
            return None

    def keyed(self, file: str, key: str) -> int | None:
        """One value of a file of the lines `key value`; None if it is not there."""
        try:
            lines = (line.split() for line in (self.folder / file).read_text().splitlines())
            return next((int(words[1]) for words in lines if len(words) == 2 and words[0] == key), None)
        except (OSError, ValueError):
            return None


def membership_of(pid: int, proc: Path = PROC) -> str:
    """The text of /proc/PID/cgroup; '' once the process is gone. While it stays the same, so do its cgroups."""
    try:
        return (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""


def cgroups_of(pid: int, controller: str, proc: Path = PROC) -> tuple[Cgroup, ...]:
    """The cgroup of a process that has this controller and those around it, the innermost first."""
    rows = [line.split(":", 2) for line in membership_of(pid, proc).splitlines()]
    try:
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
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
