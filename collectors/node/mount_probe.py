"""Runs as a process of its own: times a stat, a read and a write on mounts, each in a thread, for one that hangs must stop nothing else.

Neither the agent's threads nor its files are held by a file system that does not answer: this process is left behind, and ends
once its standard input is closed. It imports the standard library alone. Each line of its input is a question, each line of
its output an answer, as JSON; answers come in the order in which the mounts answer.
"""

import contextlib
import json
import mmap
import os
import stat
import sys
import threading
import time
from typing import Any

BLOCK = 4096
"""Bytes that are read and written."""
LOOKED_AT = 64
"""Entries of a folder that are looked at for a file to read."""
LONGEST = 500
"""Letters of an error: an answer is written in one piece."""
PREFIX = ".eagle-eye-probe-"


def main() -> None:
    """Answer until the input ends; then end at once, whatever hangs."""
    for line in sys.stdin:
        threading.Thread(target=_answer, args=(json.loads(line),), daemon=True).start()
    os._exit(0)


def _answer(question: dict[str, Any]) -> None:
    answer = {"name": question["name"], **measured(question)}
    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")  # one call: lines of several threads do not mix


def measured(question: dict[str, Any]) -> dict[str, Any]:
    """What a question asks for: seconds of what worked, free bytes and inodes, and the errors.

    `mount`: the mount point; `path`: a file or folder on it that a job uses, to be read if `timed`; `write`: a folder to write
    into, '' for none; `owner`: whose folder that has to be, -1 for anybody's; `node`: of the name of the file that is written.
    """
    found: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, act in (("free", _free), ("stat_s", _stat), ("read_s", _read), ("write_s", _write)):
        if name == "free" or (question["timed"] and (name != "write_s" or question["write"])):
            try:
                found |= act(question)
            except OSError as error:
                errors[name] = str(error)[:LONGEST]
    return found | {"errors": errors}


def _free(question: dict[str, Any]) -> dict[str, Any]:
    """To whom is no administrator; a file system without a fixed number of inodes says 0 of 0."""
    found = os.statvfs(question["mount"])
    return {"free_bytes": found.f_bavail * found.f_frsize} | ({"free_inodes": found.f_favail} if found.f_files else {})


def _stat(question: dict[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    with contextlib.suppress(FileNotFoundError):  # a file that the job has removed since: that was an answer, too
        os.stat(question["path"])  # noqa: PTH116  # the time of a plain call is wanted
    return {"stat_s": time.perf_counter() - began}


def _read(question: dict[str, Any]) -> dict[str, Any]:
    path = question["path"]
    if not _holds_something(path):
        path = _file_in(path if os.path.isdir(path) else os.path.dirname(path))  # noqa: PTH112, PTH120  # paths are plain text here
    return {"read_s": _read_s(path)} if path else {}


def _holds_something(path: str) -> bool:
    """Whether it is a file with anything to read."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > 0


def _file_in(folder: str) -> str:
    """Some file of a folder; '' if there is none among the first entries."""
    try:
        with os.scandir(folder) as entries:
            looked_at = (entry.path for entry, _ in zip(entries, range(LOOKED_AT), strict=False))
            return next((path for path in looked_at if _holds_something(path)), "")
    except (NotADirectoryError, FileNotFoundError):
        return ""


def _read_s(path: str) -> float:
    """Of the first block, from the device or the server where the file system can do so (O_DIRECT), and not from the page cache."""
    plain = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with mmap.mmap(-1, BLOCK) as room:  # O_DIRECT wants memory that begins at a page
        began = time.perf_counter()
        try:
            file = os.open(path, plain | os.O_DIRECT)
        except OSError:  # tmpfs before Linux 6.6, and some others, have none
            file = os.open(path, plain)
        try:
            os.preadv(file, [room], 0)
            return time.perf_counter() - began
        finally:
            os.close(file)


def _write(question: dict[str, Any]) -> dict[str, Any]:
    """A new file of one block, until the storage has it. The folder is held open: it cannot become another one meanwhile."""
    folder = os.open(question["write"], os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        if question["owner"] not in (-1, os.fstat(folder).st_uid):
            raise PermissionError(f"{question['write']} is not of the user {question['owner']}")
        return {"write_s": _write_s(folder, PREFIX + question["node"])}
    finally:
        os.close(folder)


def _write_s(folder: int, name: str) -> float:
    began = time.perf_counter()
    file = _new_file(folder, name)
    try:
        os.write(file, bytes(BLOCK))
        os.fsync(file)
        return time.perf_counter() - began
    finally:
        os.close(file)
        os.unlink(name, dir_fd=folder)


def _new_file(folder: int, name: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, 0o600, dir_fd=folder)
    except FileExistsError:  # of a probe that was ended in between
        os.unlink(name, dir_fd=folder)
        return os.open(name, flags, 0o600, dir_fd=folder)


if __name__ == "__main__":
    main()
