"""Garbage collection of rings, sockets, checkpoints in memory and job files whose process and launcher are dead.

A launcher removes its own files; this is for one that was killed. Called by the training collector every 30 s, and by the
next launcher of the run directory when it starts.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from collectors.worker.procfs import alive
from eagle_eye.errors import RingError
from eagle_eye.training import group_progress, live_flight_recorder
from eagle_eye.training.checkpoint.memory_segment import SUFFIX, UNFINISHED, segment_of
from eagle_eye.training.checkpoint.shared_chunks import CHUNK_SUFFIX
from eagle_eye.training.ring_buffer import RingReader
from eagle_eye.types import digest_of

from .failure_boundary import FailureBoundary
from .job_directory import LocalJob, may_name

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where launchers may put rings
BESIDE = (live_flight_recorder.path_beside, group_progress.path_beside)
"""What else a worker has made where its socket is."""
YOUNG_S = 60.0
"""Files younger than this are kept: their owner may not be registered yet."""
MEMORY_KEPT_S = 900.0
"""Checkpoints in memory are kept so long after the last one: a launcher that was killed may be started again, and its workers load them."""
FORGOTTEN_S = 3600.0
"""The file of a job without launcher and workers is removed after so long."""


def collect_garbage(
    run_dir: Path, jobs: tuple[LocalJob, ...], now: float, node: str = "", shared: Path = SHARED_MEMORY
) -> list[Path]:
    """Remove files of dead processes on this node; returns their paths. `now`: wall time. Never raises for a file."""
    launched = {job.run: job.launched for job in jobs}
    places = (run_dir, shared)
    boundary = FailureBoundary("training, which removes what is left of dead processes")
    garbage: list[Path] = []
    for job in jobs:
        with boundary.around(f"job file {job.file}"):
            garbage += [] if launched[job.run] else list(_files_of_dead(job, run_dir, places, now))
    found = _orphans(run_dir, shared, launched, node, now)
    garbage += [path for path, is_orphan in found if _is_certain(path, is_orphan, boundary)]
    garbage += [Path(beside(str(path))) for path in garbage if path.suffix == ".sock" for beside in BESIDE]
    return [path for path in dict.fromkeys(garbage) if _remove(path)]


def _orphans(run_dir: Path, shared: Path, launched: dict[str, bool], node: str, now: float) -> Iterator[tuple[Path, Callable[[Path], bool]]]:
    """Files that may be left of dead processes, and how each is found to be."""
    home = digest_of(str(run_dir.absolute()))[:8]  # in shared memory the names say of which run directory they are
    for folder, names in ((run_dir, "*.ring"), (shared, f"eagle-eye-*-{home}-*.ring")):
        yield from ((path, lambda ring: _is_orphaned_ring(ring, launched, node, now)) for path in folder.glob(names))
    for ending in ("", f".*{UNFINISHED}"):
        yield from ((path, lambda segment: _is_orphaned_segment(segment, launched, node, now)) for path in shared.glob(f"eagle-eye-*-{home}-*{SUFFIX}{ending}"))
    yield from ((path, lambda chunk: _age_s(chunk, now) > YOUNG_S and _may_remove(chunk)) for path in shared.glob(f"eagle-eye-*-{home}-*{CHUNK_SUFFIX}"))
    yield from ((path, lambda listening: _is_orphaned_socket(listening, launched, now)) for path in run_dir.glob("*.sock"))


def _is_certain(path: Path, is_orphan: Callable[[Path], bool], boundary: FailureBoundary) -> bool:
    """False for a file that cannot be asked."""
    with boundary.around(str(path)):
        return is_orphan(path)
    return False


def _files_of_dead(job: LocalJob, run_dir: Path, places: tuple[Path, ...], now: float) -> Iterator[Path]:
    """Files of a job's dead workers, and its job file once it is older than FORGOTTEN_S."""
    dead = [worker for worker in job.workers if not alive(worker.pid, worker.start_time)]
    for name in (name for worker in dead for name in (worker.ring, worker.socket)):
        path = Path(name)
        if name and path.parent in places and may_name(job.user, path):  # a job file must not make us remove anything else
            yield path
    own = (run_dir / f"{job.run}-{what}.sock" for what in ("launcher", "elastic"))
    yield from (path for path in own if may_name(job.user, path) and _has_no_listener(path))
    listing = run_dir / "jobs" / job.file
    if len(dead) == len(job.workers) and _age_s(listing, now) > FORGOTTEN_S:
        yield listing


def _is_orphaned_ring(ring: Path, launched: dict[str, bool], node: str, now: float) -> bool:
    """A ring of this node (a machine may have several) whose process and launcher are dead."""
    if _age_s(ring, now) < YOUNG_S:
        return False
    try:
        with RingReader.open(ring) as reader:
            run, _, place = reader.header.worker.partition("/")
            ours = place.rpartition("/")[0] == node
            return ours and not reader.alive() and not launched.get(run, False)
    except RingError:
        return False  # not ours, or of another version: not ours to remove


def _is_orphaned_segment(path: Path, launched: dict[str, bool], node: str, now: float) -> bool:
    """Checkpoints in memory of a worker of this node whose process and launcher are dead, for MEMORY_KEPT_S."""
    if _age_s(path, now) < MEMORY_KEPT_S:
        return False
    try:
        segment = segment_of(path)
    except OSError:
        return False  # another user's, or not ours to remove
    run, _, place = segment.worker.partition("/")
    return place.rpartition("/")[0] == node and not alive(segment.pid, segment.start_time) and not launched.get(run, False)


def _is_orphaned_socket(path: Path, launched: dict[str, bool], now: float) -> bool:
    """A socket without a listener, of a run whose launcher is dead."""
    if _age_s(path, now) < YOUNG_S or any(lives and path.name.startswith(f"{run}-") for run, lives in launched.items()):
        return False
    return _has_no_listener(path)


def _has_no_listener(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.setblocking(False)
            caller.connect(str(path))
    except ConnectionRefusedError:
        return True
    except OSError:  # busy, no socket at all, gone meanwhile, another user's, or no descriptor is left
        return False
    return False


def _may_remove(path: Path) -> bool:
    """It is ours, or everything is."""
    try:
        return os.geteuid() in (0, path.lstat().st_uid)
    except OSError:
        return False


def _age_s(path: Path, now: float) -> float:
    try:
        return now - path.stat().st_mtime
    except OSError:
        return 0.0


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except (FileNotFoundError, ValueError):  # gone meanwhile; nor is there a file whose name holds a NUL
        return False
    except OSError as error:
        log.warning("%s belongs to a dead process and cannot be removed: %s", path, error)
        return False
    log.info("removed %s: its process and its launcher are dead", path)
    return True
