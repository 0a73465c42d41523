"""One copy of a state into shared memory, beside the training that goes on.

A thread copies piece by piece; who is about to change a tensor waits for what is not copied of it, and copies meanwhile, too. Measured on
2 cores: `ctypes.memmove` and torch's sums give the interpreter lock back, so that training goes on; `Tensor.copy_` does so, too, but takes
torch's own threads, of which there may be many. Sums and checks come behind the copy: whoever waits does not wait for them.

A tensor whose storage is freed or moved meanwhile (resharding, offloading) is seen before each piece is read, and the copy does not count. What is left
is the time of one such read, in which the interpreter lock is given back: 0.1 ms for PIECE, 1 ms for LARGE_PIECE. Storage of the host that another thread frees
just then ends the process; whoever frees storage between two steps of the optimizer calls `wait` before.
"""

import ctypes
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from .device_part import (
    DeviceCopy,
    DevicePart,
    StateChanged,
    changed_text,
    freed_text,
    version_of,
)
from .memory_layout import Guards, PlacedTensor, all_finite, is_storage_short
from .row_sums import RowSums

PIECE = 1 << 20
"""Bytes that are copied by one call: they stay in the cache for the sums ..."""
LARGE_PIECE = 1 << 23
"""... and where somebody waits, who leaves the sums for later."""


class _Piece(NamedTuple):
    source: "_Source"
    at: int
    """Offset within the tensor."""
    bytes: int


@dataclass(slots=True)
class _Source:
    """A tensor that is being copied."""

    placed: PlacedTensor
    version: int | None
    """torch counts the changes of a tensor in place; None: not of this one."""
    address: int
    """Where its values lie."""
    given: int = 0
    """Bytes that somebody copies or has copied."""

    @property
    def is_plain(self) -> bool:
        tensor = self.placed.tensor
        return bool(tensor.device.type == "cpu" and tensor.is_contiguous())

    def require_unchanged(self) -> None:
        """Raises StateChanged."""
        tensor = self.placed.tensor
        if is_storage_short(tensor) or tensor.data_ptr() != self.address:
            raise StateChanged(freed_text(self.placed.name))
        if self.version is not None and version_of(tensor) != self.version:
            raise StateChanged(changed_text(self.placed.name))

    def next_piece(self, most: int) -> _Piece:
        size = min(most, self.placed.bytes - self.given) if self.is_plain else self.placed.bytes
        piece = _Piece(self, self.given, size)
        self.given += size
        return piece


class StateCopy:
    """The tensors of a state, on their way to offset `offset` of `memory`, which begins at `address`."""

    def __init__(self, tensors: Sequence[PlacedTensor], memory: memoryview, address: int, offset: int, payload: int, device: DeviceCopy | None = None) -> None:
        self._memory, self._address, self._offset = memory, address + offset, offset
        self._sums = RowSums(memory, offset, payload)
        self._turn = threading.Condition()
        self._queues: dict[Guards, deque[_Source]] = {}
        self._left: dict[Guards, int] = {}
        """Bytes that are not copied yet."""
        there = []
        for placed in tensors:
            if not placed.bytes:
                continue
            if device is not None and device.holds(placed.tensor):
                there.append(placed)
                continue
            self._queues.setdefault(placed.guards, deque()).append(_Source(placed, version_of(placed.tensor), placed.tensor.data_ptr()))
            self._left[placed.guards] = self._left.get(placed.guards, 0) + placed.bytes
        self._device = DevicePart(there, [self._target(placed) for placed in there], device) if there and device is not None else None
        self._unchecked: list[_Piece] = []
        self._waiting = 0
        """So many threads wait: checks come later."""
        self._suspects: dict[str, PlacedTensor] = {}
        """Of which a piece is not finite, by name: each is looked at as a whole, since it may be a mask."""
        self.failure: Exception | None = None

    @property
    def is_copied(self) -> bool:
        """Nobody needs to wait any more."""
        return self.failure is not None or (self._is_here and (self._device is None or self._device.is_released))

    @property
    def _is_here(self) -> bool:
        """All that is copied by threads of the host."""
        return not any(self._left.values())

    def begin(self) -> None:
        """Queue what lies on a device, and copy what no optimizer guards: nobody would wait before it is changed."""
        if self._device is not None:
            self._device.queue()
        while self._copy_one([frozenset()], check=False):
            pass

    def wait(self, optimizer: int | None, wait_s: float) -> None:
        """Copy, and wait for, what this optimizer may write (None: everything). Gives the copy up if that takes longer than `wait_s` after all is begun."""
        keys = [key for key in self._left if optimizer is None or optimizer in key]
        with self._turn:
            self._waiting += 1
        try:
            while self._copy_one(keys, check=False):
                pass
            with self._turn:
                if not self._turn.wait_for(lambda: self.failure is not None or not any(self._left[key] for key in keys), wait_s):
                    self.fail(TimeoutError(f"a piece was not copied within {wait_s:g} s"))
        finally:
            with self._turn:
                self._waiting -= 1
        if self._device is not None and self.failure is None:
            try:
                self._device.release()
            except StateChanged as error:
                self.fail(error)

    def finish(self) -> tuple[bytes, list[str]]:
        """Copy the rest, then the sums of all rows and the names of the tensors whose values are not finite. Raises what went wrong."""
        if self._device is not None and self.failure is None:
            self._device.copy()
        while self._copy_one(list(self._queues), check=True):
            pass
        with self._turn:
            self._turn.wait_for(lambda: self.failure is not None or self._is_here)
        self.settle()
        if self.failure is not None:
            raise self.failure
        for piece in self._unchecked:
            self._check(piece)
        if self._device is not None:
            for placed in self._device.finish(self._sums):
                self._look_for_infinite(placed, 0, placed.bytes)
        return self._sums.complete(), [name for name, placed in self._suspects.items() if not all_finite(self._target(placed).view(-1))]

    def settle(self) -> None:
        """Until nothing that was queued on a device writes to the memory any more. Raises what the device says of an earlier kernel."""
        if self._device is not None:
            self._device.wait()

    def fail(self, error: Exception) -> None:
        """Give it up: nobody waits for it any more."""
        with self._turn:
            self.failure = self.failure or error
            self._turn.notify_all()

    def _copy_one(self, keys: Sequence[Guards], *, check: bool) -> bool:
        """Copy the next piece of these; False if there is none."""
        piece = self._take(keys)
        if piece is None:
            return False
        try:
            piece.source.require_unchanged()
            self._copy(piece)
            piece.source.require_unchanged()
        except Exception as error:  # noqa: BLE001 - it must not reach the training; `finish` raises it
            self.fail(error)
            return False
        with self._turn:
            self._left[piece.source.placed.guards] -= piece.bytes
            later = not check or self._waiting > 0
            if later:
                self._unchecked.append(piece)
            self._turn.notify_all()
        if not later:
            self._check(piece)
        return True

    def _take(self, keys: Sequence[Guards]) -> _Piece | None:
        with self._turn:
            if self.failure is not None:
                return None
            for key in keys:
                queue = self._queues.get(key)
                if queue:
                    piece = queue[0].next_piece(LARGE_PIECE if self._waiting else PIECE)
                    if queue[0].given >= queue[0].placed.bytes:
                        queue.popleft()
                    return piece
        return None

    def _copy(self, piece: _Piece) -> None:
        placed = piece.source.placed
        if piece.source.is_plain:
            ctypes.memmove(self._address + placed.offset + piece.at, placed.tensor.data_ptr() + piece.at, piece.bytes)
        else:
            self._target(placed).copy_(placed.tensor)

    def _target(self, placed: PlacedTensor) -> torch.Tensor:
        return tensor_at(self._memory, self._offset + placed.offset, placed.tensor.dtype, tuple(placed.tensor.shape))

    def _check(self, piece: _Piece) -> None:
        """Sum a piece, and see whether it is finite."""
        self._sums.add(piece.source.placed.offset + piece.at, piece.bytes)
        self._look_for_infinite(piece.source.placed, piece.at, piece.bytes)

    def _look_for_infinite(self, placed: PlacedTensor, begin: int, size: int) -> None:
        tensor = placed.tensor
        if placed.name not in self._suspects and (tensor.is_floating_point() or tensor.is_complex()):
            at, count = self._offset + placed.offset + begin, size // tensor.element_size()
            if not all_finite(tensor_at(self._memory, at, tensor.dtype, (count,))):
                self._suspects[placed.name] = placed


def tensor_at(memory: memoryview, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor that lies there."""
    count = 1
    for length in shape:
        count *= length
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)
