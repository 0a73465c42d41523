"""Which launchers run on this machine, and where each keeps its sockets: a note in the state directory for as long as it lives.

So that a job is found that was started with a run directory of its own, as `eagle-eye run` does.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from collectors.agent.garbage_collector import collect_garbage
from collectors.agent.job_directory import JobDirectory
from collectors.worker.procfs import alive
from eagle_eye.clock import Clock
from eagle_eye.training import atomic_file
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

    @property
    def lives(self) -> bool:
        return alive(self.pid, self.start_time)


@contextlib.contextmanager
def noted(state_dir: Path, job: str, node: str, run_dir: Path) -> Iterator[None]:
    """This process is a launcher while the block lasts."""
    pid = os.getpid()
    note = Note(job=job, node=node, run_dir=str(run_dir.absolute()), pid=pid, start_time=start_time_of(pid))
    path = state_dir / FOLDER / f"{job.rpartition('/')[2]}-{node}-{pid}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.replace(path, msgspec.json.encode(note), lasting=False)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def run_dirs(state_dir: Path) -> list[Path]:
    """Of the launchers that live, each once."""
    return list(dict.fromkeys(Path(note.run_dir) for _, note in _notes(state_dir) if note.lives))


def sweep_after_the_dead(state_dir: Path, run_dir: Path, node: str, clock: Clock) -> None:
    """Take away what launchers that were killed have left: here, and wherever their notes say that they ran."""
    dead = [(path, note) for path, note in _notes(state_dir) if not note.lives]
    for folder, name in dict.fromkeys([(run_dir, node), *((Path(note.run_dir), note.node) for _, note in dead)]):
        collect_garbage(folder, JobDirectory(folder).look(), clock.now(), name)
    for path, _ in dead:
        path.unlink(missing_ok=True)


def _notes(state_dir: Path) -> Iterator[tuple[Path, Note]]:
    for path in sorted((state_dir / FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # gone meanwhile, another user's, or not one of ours
            yield path, msgspec.json.decode(path.read_bytes(), type=Note)
