"""Which launchers run on this machine, and where each keeps its sockets: a note in the state directory for as long as it lives.

So that a job is found that was started with a run directory of its own, as `eagle-eye run` does.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from eagle_eye.training import whole_file
from eagle_eye.training.ring import start_time_of

FOLDER = "running"
"""In the state directory."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One launcher."""

    job: str
    """tenant/name/run"""
    node: str
    run_dir: str
    pid: int
    start_time: int
    """Field 22 of /proc/PID/stat: a recycled pid is not taken for it."""


@contextlib.contextmanager
def noted(state_dir: Path, job: str, node: str, run_dir: Path) -> Iterator[None]:
    """This process is a launcher while the block lasts."""
    pid = os.getpid()
    note = Note(job=job, node=node, run_dir=str(run_dir.absolute()), pid=pid, start_time=start_time_of(pid))
    path = state_dir / FOLDER / f"{job.rpartition('/')[2]}-{node}-{pid}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    whole_file.replace(path, msgspec.json.encode(note), lasting=False)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def run_dirs(state_dir: Path) -> list[Path]:
    """Of the launchers that live, each once. The notes of those that were killed are taken away."""
    found: dict[Path, None] = {}
    for path in sorted((state_dir / FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # gone meanwhile, another user's, or not one of ours
            note = msgspec.json.decode(path.read_bytes(), type=Note)
            if start_time_of(note.pid) == note.start_time:
                found[Path(note.run_dir)] = None
            else:
                path.unlink(missing_ok=True)
    return list(found)
