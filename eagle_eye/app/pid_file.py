"""`pid start-time` of a running process in a file, so that a recycled pid is not taken for it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from eagle_eye.errors import ConfigError
from eagle_eye.training import atomic_file
from eagle_eye.training.ring_buffer import start_time_of


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Name this process in the file while the block lasts. Raises ConfigError when another one that lives is named."""
    other = living(path)
    if other is not None:
        raise ConfigError(f"process {other} runs here already, says {path}: end it first, or choose another --run-dir")
    atomic_file.replace(path, f"{os.getpid()} {start_time_of(os.getpid())}\n".encode(), durable=False)
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
