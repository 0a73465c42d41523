"""A few slots of memory that two processes of a node share, for where one may not read the other's.

The memory has no name in any directory (memfd_create(2)); the other process finds it among the first one's open files
in /proc. So nothing has to be cleaned up: it is gone when both have closed it or ended, in whatever way.
"""

import mmap
import os
import secrets
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from torch import Tensor

SLOTS = 4
_HEAD = mmap.PAGESIZE
"""Bytes before the first slot; they begin with what proves that both have the same memory."""
_PROOF_BYTES = 16


class SharedMemory:
    """Slots of equal size. `close` it: a tensor that was made of a slot is worth nothing afterwards."""

    def __init__(self, file: int, slot_bytes: int) -> None:
        self._file, self._slot_bytes = file, slot_bytes
        self._map = mmap.mmap(file, _size(slot_bytes))

    @classmethod
    def make(cls, slot_bytes: int) -> Self:
        """Memory of one's own; pages are taken as they are written to. Raises OSError where there is none."""
        file = os.memfd_create("eagle-eye-state", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, _size(slot_bytes))
            made = cls(file, slot_bytes)
        except OSError:
            os.close(file)
            raise
        made._map[:_PROOF_BYTES] = secrets.token_bytes(_PROOF_BYTES)
        return made

    @classmethod
    def find(cls, path: str, proof: str, slot_bytes: int) -> "SharedMemory | None":
        """The memory of another process; None if it cannot be reached from here, or is not what it should be."""
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            found = cls(file, slot_bytes)
        except (OSError, ValueError):  # another process has that number here, and another file of another size
            os.close(file)
            return None
        if found.proof == proof:
            return found
        found.close()
        return None

    @property
    def path(self) -> str:
        """Where another process of this node finds it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @property
    def proof(self) -> str:
        return self._map[:_PROOF_BYTES].hex()

    def slot(self, number: int, size: int) -> "Tensor":
        """uint8 of shape (size,): the beginning of slot number % SLOTS."""
        import torch

        start = _HEAD + number % SLOTS * self._slot_bytes
        return torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=start)

    def close(self) -> None:
        """Let go of it; a slot's tensor that still lives keeps the memory mapped until it is gone."""
        if self._file < 0:
            return
        os.close(self._file)
        self._file = -1
        try:
            self._map.close()
        except BufferError:
            del self._map


def _size(slot_bytes: int) -> int:
    return _HEAD + SLOTS * slot_bytes
