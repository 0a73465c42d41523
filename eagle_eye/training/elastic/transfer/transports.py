"""The ways from a worker's memory into another's, for one giver and one taker.

memory     the taker reads the giver's memory itself; nothing goes over the group
segment    the giver fills slots of memory that both share, and says over the group when
group      over the group, where the two have no memory in common

A chunk's way has two halves: what `give` and `take` begin is ended by the function they return. So several chunks
can be under way at once.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eagle_eye.errors import Broken
from eagle_eye.training.elastic.train_state.layer_chunks import LayerBytes

from . import remote_memory
from .p2p_messages import device_of
from .shared_memory import SLOTS, SharedMemory

if TYPE_CHECKING:
    from torch import Tensor

    from eagle_eye.training.elastic.process_group.process_group import ProcessGroup, Work

NAMES = ("memory", "segment", "group")
"""Nearest first."""
_DATA, _FREE = 1 << 24, 1 << 25
"""First tags; a chunk's position among the pair's is added."""

End = Callable[[], None]


class Transport(Protocol):
    """For the chunks between this worker and one other, in the order of their positions 0, 1, ..."""

    def may_wait(self, position: int) -> bool:
        """Whether to begin to give this chunk may have to wait for the taker."""

    def give(self, position: int, content: LayerBytes, number: int) -> End: ...

    def take(self, position: int, content: LayerBytes, number: int) -> End: ...


class GroupTransport:
    """Each chunk is a message."""

    def __init__(self, group: "ProcessGroup", peer: int) -> None:
        self._group, self._peer, self._device = group, peer, device_of(group)

    def may_wait(self, position: int) -> bool:  # noqa: ARG002 - the group takes any number of messages
        return False

    def give(self, position: int, content: LayerBytes, number: int) -> End:
        import torch

        parts = content.parts(number)
        data = (parts[0] if len(parts) == 1 else torch.cat(parts)).to(self._device)
        work = self._group.send(data, self._peer, _DATA + position)
        content.check(number)

        def end(_kept: "Tensor" = data) -> None:
            work.wait()

        return end

    def take(self, position: int, content: LayerBytes, number: int) -> End:
        import torch

        parts = content.parts(number)
        in_place = len(parts) == 1 and self._device == "cpu"
        data = parts[0] if in_place else torch.empty(sum(part.numel() for part in parts), dtype=torch.uint8, device=self._device)
        work = self._group.receive(data, self._peer, _DATA + position)

        def end() -> None:
            work.wait()
            if not in_place:
                _copy(data, parts)
            content.check(number)

        return end


class SharedMemoryTransport:
    """Each chunk goes into the next slot; over the group goes one byte when it is filled and one when it is free."""

    def __init__(self, group: "ProcessGroup", peer: int, segment: SharedMemory, chunks: int) -> None:
        self._group, self._peer, self._segment, self._chunks = group, peer, segment, chunks
        self._told: list[tuple[Work, Tensor]] = []

    def may_wait(self, position: int) -> bool:
        return position >= SLOTS

    def give(self, position: int, content: LayerBytes, number: int) -> End:
        import torch

        if self.may_wait(position):
            self._hear(_FREE + position - SLOTS).wait()
        parts = content.parts(number)
        torch.cat(parts, out=self._segment.slot(position, sum(part.numel() for part in parts)))
        content.check(number)
        work, byte = self._tell(_DATA + position)

        def end(_kept: "Tensor" = byte) -> None:
            work.wait()

        return end

    def take(self, position: int, content: LayerBytes, number: int) -> End:
        heard = self._hear(_DATA + position)

        def end() -> None:
            heard.wait()
            parts = content.parts(number)
            _copy(self._segment.slot(position, sum(part.numel() for part in parts)), parts)
            content.check(number)
            if position + SLOTS < self._chunks:
                self._told.append(self._tell(_FREE + position))

        return end

    def _tell(self, tag: int) -> "tuple[Work, Tensor]":
        import torch

        byte = torch.ones(1, dtype=torch.uint8, device=device_of(self._group))
        return self._group.send(byte, self._peer, tag), byte

    def _hear(self, tag: int) -> "Work":
        import torch

        return self._group.receive(torch.empty(1, dtype=torch.uint8, device=device_of(self._group)), self._peer, tag)


@dataclass(frozen=True, slots=True)
class RemoteRead:
    """A chunk to be read, and where its pieces lie in the giver's memory."""

    content: LayerBytes
    number: int
    addresses: list[int]


def read(pid: int, readings: Iterator[RemoteRead], threads: int, check: Callable[[], None]) -> None:
    """Read chunks out of another process with some threads; `check` may raise between any two of them.

    Raises Broken if the process has ended, OSError where its memory is no longer there.
    """
    lock, over = threading.Lock(), threading.Event()

    def following() -> RemoteRead | None:
        with lock:
            return None if over.is_set() else next(readings, None)

    def work() -> None:
        try:
            while (reading := following()) is not None:
                check()
                remote_memory.read(pid, reading.addresses, reading.content.parts(reading.number))
                reading.content.check(reading.number)
        except BaseException:
            over.set()  # the others stop after the chunk they are at
            raise

    with ThreadPoolExecutor(threads, thread_name_prefix="eagle-eye-state") as pool:
        works = [pool.submit(work) for _ in range(threads)]
    try:
        for each in works:
            each.result()
    except (ProcessLookupError, PermissionError) as error:
        raise Broken(f"process {pid} ended while its state was read: {error}") from error


def _copy(data: "Tensor", parts: "Sequence[Tensor]") -> None:
    for part, chunk in zip(parts, data.split([part.numel() for part in parts]), strict=True):
        part.copy_(chunk)
