"""Registry of the launchers on this machine: a file in the state directory for each, with the run directory of its sockets.

It lets `eagle-eye drill` find jobs with a run directory of their own, such as those of `eagle-eye run`, and lets the next
launcher remove what a killed one has left.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from collectors.agent.garbage_collector import collect_garbage
from collectors.agent.job_directory import LARGEST, JobDirectory, trusted
from collectors.worker.procfs import alive as process_alive
from eagle_eye.clock import Clock
from eagle_eye.errors import UNREADABLE
from eagle_eye.regular_file import read_owned
from eagle_eye.training import atomic_file
from eagle_eye.training.ring_buffer import start_time_of
from eagle_eye.writable_text import writable

log = logging.getLogger(__name__)

FOLDER = "running"
"""In the state directory."""


class LauncherEntry(msgspec.Struct, frozen=True, kw_only=True):
    """File of one launcher."""

    job: str
    """tenant/name/run"""
    node: str
    run_dir: str
    pid: int
    start_time: int
    """Field 22 of /proc/PID/stat: a recycled pid is not taken for it."""

    @property
    def alive(self) -> bool:
        return process_alive(self.pid, self.start_time)


@contextlib.contextmanager
def registered(state_dir: Path, job: str, node: str, run_dir: Path) -> Iterator[None]:
    """Register this process as a launcher while the block runs."""
    pid = os.getpid()
    entry = LauncherEntry(job=job, node=node, run_dir=str(run_dir.absolute()), pid=pid, start_time=start_time_of(pid))
    path = state_dir / FOLDER / f"{job.rpartition('/')[2]}-{node}-{pid}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.replace(path, msgspec.json.encode(writable(msgspec.to_builtins(entry))), durable=False)
    except OSError as error:  # other commands find the run directory by it; the job does not need it
        log.warning("%s cannot be written, so that `eagle-eye stacks` and `drill` do not find this job by themselves: %s", path, error)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def run_dirs(state_dir: Path) -> list[Path]:
    """Run directories of the running launchers, each once."""
    return list(dict.fromkeys(Path(entry.run_dir) for _, entry in _entries(state_dir) if entry.alive))


def remove_leftovers(state_dir: Path, run_dir: Path, node: str, clock: Clock) -> None:
    """Remove job files and sockets that killed launchers have left: in `run_dir`, and in the run directories of their entries."""
    dead = [(path, entry) for path, entry in _entries(state_dir) if not entry.alive]
    for folder, name in dict.fromkeys([(run_dir, node), *((Path(entry.run_dir), entry.node) for _, entry in dead)]):
        collect_garbage(folder, JobDirectory(folder).read(), clock.now(), name)
    for path, _ in dead:
        path.unlink(missing_ok=True)


def _entries(state_dir: Path) -> Iterator[tuple[Path, LauncherEntry]]:
    for path in sorted((state_dir / FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, *UNREADABLE):  # removed meanwhile, or of another format
            content, user = read_owned(path, LARGEST)
            if trusted(user):  # another user's must not make us look through, and tidy, a directory
                yield path, msgspec.json.decode(content, type=LauncherEntry)
