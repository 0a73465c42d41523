"""Atomic replacement of files: a reader sees the old content or the new one, never a part."""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

UNFINISHED = ".new"
"""Suffix of a file that is being written; before it comes the pid of the writer."""


def replace(path: Path, data: bytes | Iterable[bytes | memoryview], *, durable: bool = True, mode: int | None = None) -> None:
    """Put `data`, in one piece or in several, in the place of a file. Raises OSError, and then the old content is there, or the new one: all of it, but who knows for how long.

    durable: it is on disk when this returns, under its name, whatever happens to the machine. mode: its permissions; None: as the umask leaves them.
    """
    with replacement(path, durable=durable, mode=mode) as file:
        file.writelines([data] if isinstance(data, bytes) else data)


@contextmanager
def replacement(path: Path, *, durable: bool = True, mode: int | None = None) -> Iterator[BinaryIO]:
    """As `replace`, for who writes to the file in the block: it has the name at its end.

    Where the directory cannot be synced after the renaming (a disk that fails, a server that is gone), the file has its new content, and OSError is raised: whoever
    takes back what belongs to the new content looks first which one is there.
    """
    unfinished = path.with_name(f".{path.name}.{threading.get_ident()}.{os.getpid()}{UNFINISHED}")
    try:
        with unfinished.open("wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if durable:
        _fsync_directory(path.parent)


def is_abandoned(unfinished: Path) -> bool:
    """Whether the writer of a file that is still named as unfinished was killed half way."""
    return not Path(f"/proc/{unfinished.name.split('.')[-2]}").exists()


def _fsync_directory(directory: Path) -> None:
    """Make the new name durable."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
