"""What is left of a deployment that was ended in order: processes, rings, sockets, job files, entries of launchers, locks that are held."""

import os
import time
from pathlib import Path

from benchmarks.processes import naming
from eagle_eye.types import digest_of

SHARED_MEMORY = Path("/dev/shm")  # where launchers put rings
LOOK_S = 0.1


def leftovers(folder: Path, patience_s: float) -> list[str]:
    """Each as a sentence. Processes are given so long to end."""
    deadline = time.monotonic() + patience_s
    while (found := naming(str(folder).encode())) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return [*(f"process left: {pid} {command}" for pid, command in found.items()), *_files(folder), *_locks(folder)]


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
