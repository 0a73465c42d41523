"""A worker's standard streams into its log: where the log takes nothing (a full disk, a quota), what is said is lost, and the script goes on.

To Python's own streams it is an error of whoever prints: a disk of ours that is full would end the training.
"""

import io
import os
import sys
from typing import Any

from .storage_failure import STORAGE_ERRNOS, STORAGE_ERRNOS_OF_A_PATH

_REFUSED = STORAGE_ERRNOS | STORAGE_ERRNOS_OF_A_PATH
_STREAMS = (("stdout", 1), ("stderr", 2))


class LogFile(io.FileIO):
    """A descriptor of the log. How much was lost is said in it, once it takes something again."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._lost = 0
        """Bytes."""
        self._reason = ""

    def write(self, data: Any, /) -> int:
        """All of it, as far as the caller knows. Raises OSError where it is not the log's storage that fails: the script may have put something else there."""
        try:
            if self._lost:
                self._tell()
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            size = memoryview(data).nbytes
            self._lost, self._reason = self._lost + size, os.strerror(error.errno or 0)
            return size

    def _tell(self) -> None:
        note = f"\neagle-eye: {self._lost} bytes that this worker said here are lost: {self._reason}\n".encode()
        super().write(note)
        self._lost = 0


def open_streams() -> None:
    """Put such streams in the place of the interpreter's; each line goes out at once: the last ones before a SIGKILL are evidence."""
    for name, descriptor in _STREAMS:
        before = getattr(sys, name)
        file = LogFile(descriptor)
        file.name = f"<{name}>"
        stream: Any = io.TextIOWrapper(
            io.BufferedWriter(file), encoding=getattr(before, "encoding", None), errors=getattr(before, "errors", None), line_buffering=True
        )
        stream.mode = "w"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
