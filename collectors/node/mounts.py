"""Mounts of a process, and which of them it uses: /proc/PID/mountinfo, its working directory and its open files. Asks no file system anything."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from .kernel_files import names_in

NOT_STORAGE = frozenset({
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fuse.lxcfs", "fusectl", "hugetlbfs", "mqueue", "nsfs",
    "proc", "pstore", "ramfs", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
})  # fmt: skip
"""File systems that hold no files of a job."""
DEVICES = "/dev/"
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # it is looked at, not written to
READ_ONLY = frozenset({"ro", "emergency_ro", "shutdown"})
"""Options that say so. ext4 shows the latter two after an error, or a shutdown, since Linux 6.15."""
FILES_LOOKED_AT = 256
"""Open files of a process that are looked at."""
LARGEST = 4 << 20
"""Bytes of a list of mounts; a node of a Kubernetes cluster has some 100,000."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/PID/mountinfo (proc_pid_mountinfo(5))."""

    point: str
    kind: str
    """Type of the file system, such as nfs4, lustre or ext4."""
    source: str
    """Device, or server and export."""
    read_only: bool
    device: str = ""
    """The kernel's number of the mounted file system, such as 0:52: another one may be mounted at the same point."""

    @property
    def is_storage(self) -> bool:
        return self.kind not in NOT_STORAGE and (not self.point.startswith(DEVICES) or self.point == SHARED_MEMORY) and self.point != "/dev"


def mounts_of(pid: str, proc: Path) -> tuple[Mount, ...]:
    """Of the mount namespace of a process, or of `self`; of two at one point the later one, which hides the other. None if it is gone."""
    try:
        with (proc / pid / "mountinfo").open("rb") as file:
            lines = file.read(LARGEST).decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple({mount.point: mount for line in lines if (mount := _mount(line)) is not None}.values())


def _mount(line: str) -> Mount | None:
    """None for a torn line."""
    before, dash, after = line.partition(" - ")
    fields, more = before.split(" "), after.split(" ")
    if not dash or len(fields) < 6 or len(more) < 3:
        return None
    options = {*fields[5].split(","), *more[2].split(",")}
    return Mount(_plain(fields[4]), more[0], _plain(more[1]), bool(options & READ_ONLY), fields[2])


def _plain(text: str) -> str:
    """With the spaces that the kernel writes as octal numbers.

    >>> _plain("/my" + chr(92) + "040data")
    '/my data'
    """
    for character in " \t\n\\":
        text = text.replace(f"\\{ord(character):03o}", character)
    return text


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The innermost mount that a path is on, by its letters alone: links in it are not followed."""
    inside = [mount for mount in mounts if mount.point == "/" or path == mount.point or path.startswith(mount.point + "/")]
    return max(inside, key=lambda mount: len(mount.point), default=None)


def paths_of(pid: int, proc: Path) -> Iterator[str]:
    """The open files of a process, then its working directory; without pipes, sockets, devices and files that are removed."""
    folder = proc / str(pid)
    links = [folder / "fd" / name for name in islice(names_in(folder / "fd"), FILES_LOOKED_AT)]
    for link in (*links, folder / "cwd"):
        try:
            path = os.readlink(link)  # noqa: PTH115  # asked for each open file
        except OSError:
            continue
        if path.startswith("/") and not path.endswith(" (deleted)") and (not path.startswith(DEVICES) or path.startswith(SHARED_MEMORY)) and _is_text(path):
            yield path


def _is_text(path: str) -> bool:
    """Names of files may be any bytes; those that are no UTF-8 are not asked about."""
    return not any("\ud800" <= letter <= "\udfff" for letter in path)


def used_by(pid: int, proc: Path, mounts: Sequence[Mount]) -> dict[str, str]:
    """Mount point → the first path on it that a process uses, of storage alone."""
    found: dict[str, str] = {}
    for path in paths_of(pid, proc):
        mount = mount_of(path, mounts)
        if mount is not None and mount.is_storage:
            found.setdefault(mount.point, path)
    return found
