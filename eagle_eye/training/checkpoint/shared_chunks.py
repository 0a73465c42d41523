"""Chunks of objects that several workers of a node read: one fetches each, the others take it from the node's memory.

The workers of a job load at the same time, and read in the same order, so that none is far ahead of the others. Who comes first locks the chunk's file
and fetches; the others wait for it, and who is the last of the node to read it removes it. A lock ends with its process; who is stopped holds the
others up for WAIT_S, then each fetches for itself. No more than MOST_BYTES stay, the oldest go first: who comes so late, or where each worker
reads a part of its own, fetches for itself. Whatever cannot be shared is fetched, too: nothing here is an error.
"""

import contextlib
import fcntl
import os
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Self

from .memory_segment import SUFFIX, VARIABLE, free_memory, refuse_foreign

CHUNK_SUFFIX = ".chunk"
MOST_BYTES = 512 << 20
"""Of the chunks of all workers of a node; a node with less than four times as much free memory shares none."""
WAIT_S = 20.0
"""For another worker that fetches."""
LOOK_S = 0.01
_READERS = struct.Struct("<q")
"""Behind the content: how many workers have read it. A chunk without it is not whole."""


class SharedChunks:
    """Of one worker, in one folder. Used by several threads."""

    def __init__(self, folder: Path, prefix: str, workers: int) -> None:
        """`workers`: of this node."""
        self._folder, self._prefix, self._workers = folder, prefix, workers

    @classmethod
    def here(cls) -> Self | None:
        """Those of this process's node; None where it is alone there, or has no launcher, or the node has too little memory."""
        path, workers = Path(os.environ.get(VARIABLE, "")), os.environ.get("LOCAL_WORLD_SIZE", "")
        named = re.fullmatch(rf"(.+-)\d+{re.escape(SUFFIX)}", path.name)
        if named is None or not workers.isdecimal() or int(workers) < 2 or free_memory() < 4 * MOST_BYTES:
            return None
        return cls(path.parent, named[1], int(workers))

    def read(self, name: str, begin: int, size: int, fetch: Callable[[], bytes]) -> bytes:
        """`size` bytes of what `name` stands for, from `begin` on; fewer where it ends before. Raises what `fetch` does."""
        path = self._folder / f"{self._prefix}{blake2b(f'{name} {begin} {size}'.encode(), digest_size=16).hexdigest()}{CHUNK_SUFFIX}"
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(_locked(path))
                found = self._found(file, path, size)
            except OSError:
                return fetch()
            if found is None:
                stack.callback(_unlink_unfinished, file, path, size)
                found = fetch()
                if len(found) == size:
                    self._keep(file, found)
        return found

    def _found(self, file: int, path: Path, size: int) -> bytes | None:
        """What another worker has fetched. Raises OSError."""
        if os.fstat(file).st_size != size + _READERS.size:
            return None
        found = os.pread(file, size, 0)
        [readers] = _READERS.unpack(os.pread(file, _READERS.size, size))
        if readers + 1 >= self._workers:
            path.unlink(missing_ok=True)
        os.pwrite(file, _READERS.pack(readers + 1), size)
        return found if len(found) == size else None

    def _keep(self, file: int, content: bytes) -> None:
        with contextlib.suppress(OSError):  # there is no memory for it
            if os.pwrite(file, content, 0) == len(content):
                os.pwrite(file, _READERS.pack(1), len(content))
                self._make_room()

    def _make_room(self) -> None:
        """The oldest chunks go. Raises OSError."""
        found: list[tuple[float, int, Path]] = []
        for path in self._folder.glob(f"{self._prefix}*{CHUNK_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= MOST_BYTES:
                return
            path.unlink(missing_ok=True)
            total -= size


def _unlink_unfinished(file: int, path: Path, size: int) -> None:
    """Nothing stays of a chunk that could not be fetched, or not be written."""
    with contextlib.suppress(OSError):
        if os.fstat(file).st_size != size + _READERS.size:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The file of that name, which is new where there was none; nobody else has it. Raises OSError: also TimeoutError, and EPERM for another user's."""
    deadline = time.monotonic() + WAIT_S
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            refuse_foreign(file, path)
            _lock(file, deadline)
            if os.fstat(file).st_nlink:  # else it was removed meanwhile, and somebody may have begun another one
                yield file
                return
        finally:
            os.close(file)


def _lock(file: int, deadline: float) -> None:
    """Each opened file has a lock of its own, so that threads of one process exclude one another, too."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"another worker has fetched for {WAIT_S:g} s") from None
            threading.Event().wait(LOOK_S)
        else:
            return
