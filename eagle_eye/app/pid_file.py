"""`pid start-time` of a running process in a file, so that a recycled pid is not taken for it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from eagle_eye.training.ring import start_time_of


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Name this process in the file while the block lasts."""
    path.write_text(f"{os.getpid()} {start_time_of(os.getpid())}\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def living(path: Path) -> int | None:
    """Pid of the process that the file names; None when there is no file, or that process is gone."""
    with contextlib.suppress(OSError, ValueError):
        pid, start_time = (int(word) for word in path.read_text().split())
        if start_time_of(pid) == start_time:
            return pid
    return None
