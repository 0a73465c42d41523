"""What is left of a deployment that was ended in order: processes, rings, sockets, job files, entries of launchers, locks that are held."""

import contextlib
import os
import time
from pathlib import Path

from eagle_eye.types import digest_of

SHARED_MEMORY = Path("/dev/shm")  # where launchers put rings
LOOK_S = 0.1


def leftovers(folder: Path, patience_s: float) -> list[str]:
    """Each as a sentence. Processes are given so long to end."""
    deadline = time.monotonic() + patience_s
    while (found := _processes(folder)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return [*(f"process left: {each}" for each in found), *_files(folder), *_locks(folder)]


def _processes(folder: Path) -> list[str]:
    """Those that name the folder in their command or environment."""
    mark, found = str(folder).encode(), list[str]()
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (directory / "cmdline").read_bytes()
            dead = (directory / "stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX"
            if int(directory.name) != os.getpid() and not dead and mark in words + (directory / "environ").read_bytes():
                found.append(f"{directory.name} {words.replace(bytes(1), b' ').decode(errors='replace')[:160]}")
    return found


def _files(folder: Path) -> list[str]:
    found = list[str]()
    for run_dir in (folder / "run").glob("*"):
        home = digest_of(str(run_dir.absolute()))[:8]
        found += [f"ring left in shared memory: {path.name}" for path in SHARED_MEMORY.glob(f"eagle-eye-*-{home}-*")]
        found += [f"left in the run directory: {path.relative_to(folder)}" for path in run_dir.rglob("*") if not path.is_dir()]
    return found + [f"launcher's entry left: {path.name}" for path in (folder / "state" / "running").glob("*")]


def _locks(folder: Path) -> list[str]:
    """Advisory locks on our files that somebody still holds (/proc/locks names them by inode)."""
    ours = {path.stat().st_ino: path for path in folder.rglob("*") if path.is_file()}
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line]
    held = {int(words[5].rpartition(":")[2]) for words in lines if int(words[4]) != os.getpid()}
    return [f"lock held: {ours[inode].relative_to(folder)}" for inode in sorted(held & ours.keys())]
