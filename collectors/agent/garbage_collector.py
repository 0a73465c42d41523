"""Takes away rings and sockets that nobody will use again: their owners are dead, and so is whoever launched them.

A launcher cleans up after itself; this is for the one that was killed. The agent does it every now and then, and the next
launcher of the run directory when it starts.
"""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

from collectors.worker.procfs import alive
from eagle_eye.digests import digest_of
from eagle_eye.errors import RingError
from eagle_eye.training.ring import RingReader

from .job_directory import LocalJob

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where launchers may put rings
YOUNG_S = 60.0
"""Files changed less than this ago are left alone: their owner may not have written itself down yet."""
FORGOTTEN_S = 3600.0
"""A job without launcher and workers for so long is struck off the list."""


def collect_garbage(
    run_dir: Path, jobs: tuple[LocalJob, ...], now: float, node: str = "", shared: Path = SHARED_MEMORY
) -> list[Path]:
    """Remove what dead owners on this node have left; returns what was removed. `now` is wall time."""
    launched = {job.run: job.launched for job in jobs}
    places = (run_dir, shared)
    doomed = [path for job in jobs if not launched[job.run] for path in _left_by(job, run_dir, places, now)]
    home = digest_of(str(run_dir.absolute()))[:8]  # in shared memory the names say of which run directory they are
    rings = [path for place, names in zip(places, ("*.ring", f"eagle-eye-*-{home}-*.ring"), strict=True) for path in place.glob(names)]
    doomed += [path for path in rings if _is_stray(path, launched, node, now)]
    doomed += [path for path in run_dir.glob("*.sock") if _is_deaf(path, launched, now)]
    return [path for path in dict.fromkeys(doomed) if _remove(path)]


def _left_by(job: LocalJob, run_dir: Path, places: tuple[Path, ...], now: float) -> Iterator[Path]:
    """Files of a job's dead workers, and the job itself once it has been dead for long."""
    dead = [worker for worker in job.workers if not alive(worker.pid, worker.start_time)]
    for name in (name for worker in dead for name in (worker.ring, worker.socket)):
        path = Path(name)
        if name and path.parent in places:  # a listing must not make us remove anything else
            yield path
    own = (run_dir / f"{job.run}-{what}.sock" for what in ("launcher", "elastic"))
    yield from (path for path in own if _nobody_listens(path))
    listing = run_dir / "jobs" / f"{job.run}.json"
    if len(dead) == len(job.workers) and _age_s(listing, now) > FORGOTTEN_S:
        yield listing


def _is_stray(ring: Path, launched: dict[str, bool], node: str, now: float) -> bool:
    """A ring of this node's (a machine may have several) whose process is dead, under no living launcher."""
    if _age_s(ring, now) < YOUNG_S:
        return False
    try:
        with RingReader.open(ring) as reader:
            run, _, place = reader.header.worker.partition("/")
            ours = place.rpartition("/")[0] == node
            return ours and not reader.alive() and not launched.get(run, False)
    except RingError:
        return False  # not ours, or of another version: not ours to remove


def _is_deaf(path: Path, launched: dict[str, bool], now: float) -> bool:
    """A socket that nobody listens on any more, of no run whose launcher lives."""
    if _age_s(path, now) < YOUNG_S or any(lives and path.name.startswith(f"{run}-") for run, lives in launched.items()):
        return False
    return _nobody_listens(path)


def _nobody_listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:  # busy, no socket at all, gone meanwhile, or another user's
            return False
    return False


def _age_s(path: Path, now: float) -> float:
    try:
        return now - path.stat().st_mtime
    except OSError:
        return 0.0


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("%s is left of a dead process and cannot be removed: %s", path, error)
        return False
    log.info("removed %s: its process and its launcher are dead", path)
    return True
