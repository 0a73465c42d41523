"""Runs as a process of its own, beside a launcher: a stat and a read of 4 KiB on each mount that the workers use, each in a thread, for one that hangs must stop nothing else.

The launcher starts it when all is well, and is not held by a file system that does not answer: it leaves this process behind, which ends once its standard input is closed. It
imports the standard library alone, all of it before the first question, since later the file system that holds it may hang; and writes nothing. Each line of its input is a test,
{"test", "pids", "paths"}; its output {"test", "mounts": [...]}, then a line for each mount that has answered; {"test", "busy": true} while a mount of the test before has not.
"""

import contextlib
import json
import mmap
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

BLOCK = 4096
MOST_MOUNTS, MOST_FILES, MOST_ENTRIES = 8, 256, 64
LONGEST = 200
"""Letters of an error."""
NO_STORAGE = frozenset({"autofs", "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "nsfs", "proc", "ramfs", "sysfs", "tmpfs"})


def main() -> None:
    """Ends when the input does, whatever hangs, and by no signal that a scheduler or a terminal sends to all processes of a job."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    _use_all()
    threads: list[threading.Thread] = []
    for line in sys.stdin:
        asked = json.loads(line)
        if any(thread.is_alive() for thread in threads):
            _say({"test": asked.get("test", 0), "busy": True})
        else:
            threads = _begin(asked)
    os._exit(0)


def _use_all() -> None:
    """Once, on the kernel's own files: what Python loads only when it is used is loaded, too."""
    used_mounts(list(_open_files(os.getpid())), _mounts())
    thread = threading.Thread(target=measured, args=("/proc/self/stat",), daemon=True)
    thread.start()
    thread.join()
    with contextlib.suppress(OSError):
        _read_s("/proc/self/stat")


def _begin(asked: dict[str, Any]) -> list[threading.Thread]:
    test = {"test": asked.get("test", 0)}
    used = used_mounts([*asked["paths"], *(path for pid in asked["pids"] for path in _open_files(int(pid)))], _mounts())
    _say({**test, "mounts": sorted(used)})
    threads = [threading.Thread(target=lambda mount=mount, path=path: _say({**test, "mount": mount, **measured(path)}), daemon=True) for mount, path in used.items()]
    for thread in threads:
        thread.start()
    return threads


def _say(words: dict[str, Any]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(words).encode() + b"\n")  # one call: lines of several threads do not mix


def used_mounts(paths: list[str], mounts: list[tuple[str, str]]) -> dict[str, str]:
    """Mount point → the first of these paths on it. `mounts`: (point, file system), the later one hides the earlier.

    >>> used_mounts(["/data/a", "/data/b", "/proc/1", "/x"], [("/", "ext4"), ("/proc", "proc"), ("/data", "nfs4")])
    {'/data': '/data/a', '/': '/x'}
    """
    found: dict[str, str] = {}
    for path in paths:
        inside = [(point, kind) for point, kind in dict(mounts).items() if point == "/" or path == point or path.startswith(point + "/")]
        point, kind = max(inside, key=lambda each: len(each[0]), default=("", ""))
        if point and kind not in NO_STORAGE and not point.startswith("/dev") and len(found) < MOST_MOUNTS:
            found.setdefault(point, path)
    return found


def _mounts() -> list[tuple[str, str]]:
    lines = [line.partition(" - ") for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()]
    return [(before.split(" ")[4].replace("\\040", " "), after.split(" ")[0]) for before, dash, after in lines if dash]


def _open_files(pid: int) -> Iterator[str]:
    """Of a worker, then its working directory: read from the kernel, no file system is asked."""
    try:
        links = list(islice(Path(f"/proc/{pid}/fd").iterdir(), MOST_FILES))
    except OSError:
        return
    for link in (*links, Path(f"/proc/{pid}/cwd")):
        try:
            path = str(link.readlink())
        except OSError:
            continue
        if path.startswith("/") and path.isprintable() and not path.endswith(" (deleted)"):
            yield path


def measured(path: str) -> dict[str, Any]:
    """Seconds of a stat and of a read, or the error of the first that fails. A file that the job has removed since was an answer, too."""
    found: dict[str, Any] = {}
    try:
        began = time.perf_counter()
        looked = _status(path)
        found["stat_s"] = time.perf_counter() - began
        if file := _file_to_read(path, looked):
            found["read_s"] = _read_s(file)
    except PermissionError:  # it has answered; whose file it is says nothing of the storage
        pass
    except OSError as error:
        found["error"] = (error.strerror or str(error))[:LONGEST]
    return found


def _status(path: str) -> os.stat_result | None:
    try:
        return Path(path).stat()
    except FileNotFoundError:
        return None


def _file_to_read(path: str, looked: os.stat_result | None) -> str:
    """The path itself if it is a file that holds something, else some file of its folder."""
    if looked is not None and stat.S_ISREG(looked.st_mode) and looked.st_size:
        return path
    return _file_in(path if looked is not None and stat.S_ISDIR(looked.st_mode) else str(Path(path).parent))


def _file_in(folder: str) -> str:
    """Some file of a folder; '' if there is none among the first entries."""
    try:
        with os.scandir(folder) as entries:
            return next((each.path for each in islice(entries, MOST_ENTRIES) if each.is_file(follow_symlinks=False) and each.stat(follow_symlinks=False).st_size), "")
    except (NotADirectoryError, FileNotFoundError):
        return ""


def _read_s(path: str) -> float:
    """Of the first block, from the device or the server where the file system can do so (O_DIRECT), and not from the page cache."""
    plain = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with mmap.mmap(-1, BLOCK) as room:  # O_DIRECT wants memory that begins at a page
        began = time.perf_counter()
        try:
            file = os.open(path, plain | os.O_DIRECT)
        except OSError:  # some file systems have none
            file = os.open(path, plain)
        try:
            os.preadv(file, [room], 0)
            return time.perf_counter() - began
        finally:
            os.close(file)


if __name__ == "__main__":
    main()
