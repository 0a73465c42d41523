"""The part of a state that lies on GPUs. Its copies are queued a little at a time, by a thread, and the rest of them by the optimizer's step that is about to write; its sums are made there, too."""

import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch

from .cuda_sums import CheckedTensor
from .memory_layout import PlacedTensor, is_storage_short
from .row_sums import RowSums


class StateChanged(RuntimeError):
    """A tensor was changed while it was being copied, by something that did not wait."""


class DeviceCopy(Protocol):
    """Copies from a device whose work is queued (cuda_copy.py)."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether it is one of this device."""

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Queue them; the sources may be changed once `release` was called."""

    def check(self, sources: Sequence[torch.Tensor]) -> None:
        """Queue sums of them beside the copies, where the device can make them; likewise."""

    def checked(self) -> Mapping[int, CheckedTensor]:
        """After `wait`: by their place among those that were to be checked."""

    def keep_pace(self) -> None:
        """Until all copies but those of the last call are done."""

    def release(self) -> None:
        """What is queued on the device from now on runs after all that was queued."""

    def wait(self) -> None:
        """Until all is done."""


_Piece = tuple[torch.Tensor, torch.Tensor]
"""Target and source."""
BATCH = 1 << 25
"""Bytes that are queued by one call, and of a piece: 0.6 ms of an H100."""


class DevicePart:
    """Of one save."""

    def __init__(self, tensors: Sequence[PlacedTensor], targets: Sequence[torch.Tensor], device: DeviceCopy) -> None:
        self._tensors, self._targets, self._device = tensors, targets, device
        self._versions = [version_of(placed.tensor) for placed in tensors]
        self._turn = threading.Lock()
        self._guarded = [placed for placed in tensors if placed.guards]
        self._left: deque[_Piece] = deque()
        """What is not queued yet."""
        self._error: Exception | None = None
        self.is_released = False
        """What is queued now may write to all of it."""

    def queue(self) -> None:
        """First what no optimizer guards: nobody would wait before it is changed."""
        free = [(target, placed.tensor) for target, placed in zip(self._targets, self._tensors, strict=True) if not placed.guards]
        if free:
            self._device.copy(*map(list, zip(*free, strict=True)))
            self._device.release()
        self._device.check([placed.tensor for placed in self._guarded])
        for target, placed in zip(self._targets, self._tensors, strict=True):
            if placed.guards:
                self._left.extend(_pieces(target, placed.tensor))

    def copy(self) -> None:
        """In the thread: the rest, a little at a time, since what the training itself fetches from the device comes behind all that is queued."""
        while self._queue(BATCH):
            self._device.keep_pace()

    def _queue(self, most: int) -> bool:
        """The next pieces, of at most so many bytes, or one; False if there were none."""
        with self._turn:
            batch, size = list[_Piece](), 0
            while self._left and (not batch or size + self._left[0][1].nbytes <= most):
                batch.append(self._left.popleft())
                size += batch[-1][1].nbytes
            try:
                if any(is_storage_short(source) for _, source in batch):
                    raise StateChanged(freed_text(next((placed.name for placed in self._guarded if is_storage_short(placed.tensor)), "?")))
                if batch:
                    self._device.copy(*map(list, zip(*batch, strict=True)))
            except Exception as error:
                self._error = error  # what was taken is not copied, whoever was to
                raise
            return bool(batch)

    def release(self) -> None:
        """Before an optimizer's step. Raises StateChanged."""
        self._queue(sys.maxsize)
        self._compare()
        self._device.release()

    def _compare(self) -> None:
        """Once: is all as it was?"""
        with self._turn:
            if self.is_released:
                return
            self.is_released = True
            for placed, version in zip(self._tensors, self._versions, strict=True):
                if placed.guards and is_storage_short(placed.tensor):
                    raise StateChanged(freed_text(placed.name))
                if placed.guards and version_of(placed.tensor) != version:
                    raise StateChanged(changed_text(placed.name))

    def wait(self) -> None:
        """Until nothing that was queued writes to the memory any more. Raises what the device says of an earlier kernel."""
        self._device.wait()

    def finish(self, sums: RowSums) -> Iterator[PlacedTensor]:
        """After `wait`: give the sums that are there; yields what the host has still to look through for values that are not finite. Raises StateChanged."""
        self._compare()
        if self._error is not None:
            raise self._error
        checked = self._device.checked()
        for number, placed in enumerate(self._guarded):
            if number in checked:
                sums.give(placed.offset, checked[number].sums)
            if number not in checked or not checked[number].is_finite:
                yield placed
        yield from (placed for placed in self._tensors if not placed.guards)


def version_of(tensor: torch.Tensor) -> int | None:
    """torch counts the changes of a tensor in place; None: not of this one."""
    return None if tensor.is_inference() else int(tensor._version)


def changed_text(name: str) -> str:
    """For a person."""
    return f"{name!r} was changed while it was being copied, and not by an optimizer that this client was given: call wait() before"


def freed_text(name: str) -> str:
    """For a person."""
    return f"the storage of {name!r} was freed or moved while it was being copied: call wait() before"


def _pieces(target: torch.Tensor, source: torch.Tensor) -> Iterator[_Piece]:
    if source.nbytes <= BATCH or not source.is_contiguous():
        return iter([(target, source)])
    return zip(*(each.view(-1).view(torch.uint8).split(BATCH) for each in (target, source)), strict=True)
