"""The part of a state that lies on GPUs. Its copies are queued at once, by the training thread; its sums are made there, too, while nobody may write to it.

On an H100 a thread of the host took eight times as long for the sums of a copy as the copy took.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch

from .memory_layout import PlacedTensor
from .row_sums import RowSums


class StateChanged(RuntimeError):
    """A tensor was changed while it was being copied, by something that did not wait."""


class DeviceCheck(NamedTuple):
    """What is computed of a tensor where it lies; None: nothing is."""

    sums: torch.Tensor | None
    """Of its whole rows, as RowSums makes them."""
    largest: torch.Tensor | None
    """The largest magnitude; NaN or infinite if one of its values is."""


class DeviceCopy(Protocol):
    """Copies from a device whose work is queued (cuda_copy.py)."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether it is one of this device."""

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Queue them; the sources may be changed once `release` was called."""

    def check(self, source: torch.Tensor) -> DeviceCheck:
        """Queue that beside the copies; likewise."""

    def fetch(self, checks: Sequence[DeviceCheck]) -> Sequence[DeviceCheck]:
        """To the host, after `wait`."""

    def release(self) -> None:
        """What is queued on the device from now on runs after all that was queued."""

    def wait(self) -> None:
        """Until all is done."""


class DevicePart:
    """Of one save."""

    def __init__(self, tensors: Sequence[PlacedTensor], targets: Sequence[torch.Tensor], device: DeviceCopy) -> None:
        self._tensors, self._targets, self._device = tensors, targets, device
        self._versions = [version_of(placed.tensor) for placed in tensors]
        self._turn = threading.Lock()
        self._checks: dict[int, DeviceCheck] = {}
        self._is_wanted = False
        """Somebody is about to write: he waits for one check at the most, and not for the thread that begins the next."""
        self.is_released = False
        """What is queued now may write to all of it."""

    def queue(self) -> None:
        """First what no optimizer guards: nobody would wait before it is changed."""
        for guarded in (False, True):
            chosen = [number for number, placed in enumerate(self._tensors) if bool(placed.guards) is guarded]
            if chosen:
                self._device.copy([self._targets[number] for number in chosen], [self._tensors[number].tensor for number in chosen])
            if chosen and not guarded:
                self._device.release()

    def check(self) -> None:
        """As far as there is time for it: what is released before is left to the host."""
        for number, placed in enumerate(self._tensors):
            if self._is_wanted:
                return
            if placed.guards:
                with self._turn:
                    if not self._is_wanted:
                        self._checks[number] = self._device.check(placed.tensor)

    def release(self) -> None:
        """Before an optimizer's step. Raises StateChanged."""
        self._release()
        self._device.release()

    def _release(self) -> None:
        self._is_wanted = True
        with self._turn:
            if self.is_released:
                return
            self.is_released = True
            for placed, version in zip(self._tensors, self._versions, strict=True):
                if placed.guards and version_of(placed.tensor) != version:
                    raise StateChanged(changed_text(placed.name))

    def wait(self) -> None:
        """Until nothing that was queued writes to the memory any more. Raises what the device says of an earlier kernel."""
        self._device.wait()

    def finish(self, sums: RowSums) -> Iterator[PlacedTensor]:
        """After `wait`: give the sums that are there; yields what the host has still to look through for values that are not finite. Raises StateChanged."""
        self._release()
        checks = dict(zip(self._checks, self._device.fetch(list(self._checks.values())), strict=True))
        for number, placed in enumerate(self._tensors):
            check = checks.get(number, DeviceCheck(None, None))
            if check.sums is not None:
                sums.give(placed.offset, check.sums)
            if check.largest is None or not math.isfinite(float(check.largest)):
                yield placed


def version_of(tensor: torch.Tensor) -> int | None:
    """torch counts the changes of a tensor in place; None: not of this one."""
    return None if tensor.is_inference() else int(tensor._version)


def changed_text(name: str) -> str:
    """For a person."""
    return f"{name!r} was changed while it was being copied, and not by an optimizer that this client was given: call wait() before"
