"""A copy on its way to storage: taken out of its slot at the speed of memory, so that its worker has the slot back while the storage takes its time.

It lies in memory without a name, of this process alone: nobody else can open it, and with the process it is gone.
"""

import errno
import os
from collections.abc import Callable

import msgspec

from eagle_eye.training.checkpoint import slot_table
from eagle_eye.training.checkpoint.memory_segment import ROW, SPARE, free_memory, rows_of
from eagle_eye.training.checkpoint.shard_file import TensorContent

from .copy_client import CopyChanged, CopyGone
from .copy_files import CopyFiles, CopyName, changed_row
from .copy_table import CopyTable, PlacedContent

PIECE = 8 * ROW
"""Bytes that are taken at once: they are in the processor's cache when they are summed, and when they are written."""


class StagedCopy:
    """Of one worker. `close` gives its memory back."""

    def __init__(self, files: CopyFiles, name: CopyName) -> None:
        """Take it, each row compared with its sum.

        Raises CopyGone: its worker has written the slot anew. CopyChanged: a sum does not fit. OSError: ENOMEM where the node has no memory for it.
        """
        self.name = name
        content, segment = files.content(name), files.segment(name.file)
        if content is None or segment is None:
            raise CopyGone(f"the copy of step {name.step} is not there any more")
        try:
            self.table = msgspec.convert(slot_table.decode(content.table), type=CopyTable)
        except (ValueError, msgspec.ValidationError) as error:
            raise CopyChanged(f"its table is not understood: {error}") from error
        size = rows_of(content.payload_bytes) * ROW
        free = free_memory()
        if size > free * (1 - SPARE):
            raise OSError(errno.ENOMEM, f"the node, or the cgroup of this process, has {free} bytes of memory free, {size} are needed on the way to storage")
        self._memory = os.memfd_create("eagle-eye-checkpoint", os.MFD_CLOEXEC)
        try:
            with memoryview(bytearray(min(PIECE, size))) as buffer:
                for at in range(0, size, PIECE):
                    piece = buffer[: min(PIECE, size - at)]
                    if os.preadv(segment.content.fileno(), [piece], content.payload_at + at) != len(piece):
                        raise CopyGone("its segment was cut short")
                    self._check(piece, content.sums, at // ROW, files)
                    _write(self._memory, piece, at)
        except BaseException:
            self.close()
            raise

    def _check(self, piece: memoryview, sums: bytes, first: int, files: CopyFiles) -> None:
        row = changed_row(piece, sums, first)
        if row < 0:
            return
        if files.content(self.name) is None:
            raise CopyGone(f"the copy of step {self.name.step} was written anew meanwhile")
        raise CopyChanged(f"bytes {row * ROW} to {(row + 1) * ROW} are not as they were written")

    def content_of(self, placed: PlacedContent, moved: Callable[[], None]) -> TensorContent:
        """For the writer of a shard; `moved` is called with each piece."""

        def part(begin: int, end: int) -> bytes:
            moved()
            return os.pread(self._memory, end - begin, placed.offset + begin)

        return TensorContent(placed.name, placed.dtype, placed.shape, placed.bytes, part)

    def close(self) -> None:
        """Once."""
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1


def _write(file: int, piece: memoryview, at: int) -> None:
    done = 0
    while done < len(piece):
        done += os.pwrite(file, piece[done:], at + done)
