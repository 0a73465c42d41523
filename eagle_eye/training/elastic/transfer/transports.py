"""Transports: how the chunks of a layer get from one worker's memory into another's, for one sender and one receiver.

remote_memory     the receiver reads the sender's memory itself; nothing goes over the group
shared_memory     the sender fills slots of memory that both share, and sends one byte over the group for each
group             over the process group, where the two processes have no memory in common

`send` and `receive` start the transfer of a chunk and return a function that waits for its end, so that several chunks
can be in flight at once.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eagle_eye.errors import Broken

from . import remote_memory
from .layer_buffers import LayerBytes
from .p2p_messages import device_of
from .shared_memory import SLOTS, SharedMemory

if TYPE_CHECKING:
    from torch import Tensor

    from eagle_eye.training.elastic.process_group.process_group import ProcessGroup, Work

NAMES = ("remote_memory", "shared_memory", "group")
"""Fastest first."""
_DATA, _FREE = 1 << 24, 1 << 25
"""First tags; the position of a chunk among those of its pair is added."""

Completion = Callable[[], None]


class Transport(Protocol):
    """Carries the chunks between this worker and one other, in the order of their positions 0, 1, ..."""

    def may_wait(self, position: int) -> bool:
        """Whether `send` of this chunk may block until the receiver has emptied a slot."""

    def send(self, position: int, content: LayerBytes, number: int) -> Completion:
        """Start to send chunk `number` of a layer. The returned function raises Broken if the peer is gone."""

    def receive(self, position: int, content: LayerBytes, number: int) -> Completion:
        """Start to receive chunk `number` of a layer; it is there once the returned function returns. That one raises Broken."""


class GroupTransport:
    """Each chunk is one message of the process group."""

    def __init__(self, group: "ProcessGroup", peer: int) -> None:
        self._group, self._peer, self._device = group, peer, device_of(group)

    def may_wait(self, position: int) -> bool:  # noqa: ARG002 - the group takes any number of messages
        return False

    def send(self, position: int, content: LayerBytes, number: int) -> Completion:
        import torch

        parts = content.parts(number)
        data = (parts[0] if len(parts) == 1 else torch.cat(parts)).to(self._device)
        work = self._group.send(data, self._peer, _DATA + position)
        content.hash_chunk(number)

        def end(_kept: "Tensor" = data) -> None:
            work.wait()

        return end

    def receive(self, position: int, content: LayerBytes, number: int) -> Completion:
        import torch

        parts = content.parts(number)
        in_place = len(parts) == 1 and self._device == "cpu"
        data = parts[0] if in_place else torch.empty(sum(part.numel() for part in parts), dtype=torch.uint8, device=self._device)
        work = self._group.receive(data, self._peer, _DATA + position)

        def end() -> None:
            work.wait()
            if not in_place:
                _copy(data, parts)
            content.hash_chunk(number)

        return end


class SharedMemoryTransport:
    """Each chunk goes into the next slot; one byte goes over the group when the slot is filled and one when it is free."""

    def __init__(self, group: "ProcessGroup", peer: int, shared_memory: SharedMemory, chunks: int) -> None:
        self._group, self._peer, self._memory, self._chunks = group, peer, shared_memory, chunks
        self._sent: list[tuple[Work, Tensor]] = []

    def may_wait(self, position: int) -> bool:
        return position >= SLOTS

    def send(self, position: int, content: LayerBytes, number: int) -> Completion:
        import torch

        if self.may_wait(position):
            self._receive_byte(_FREE + position - SLOTS).wait()
        parts = content.parts(number)
        torch.cat(parts, out=self._memory.slot(position, sum(part.numel() for part in parts)))
        content.hash_chunk(number)
        work, byte = self._send_byte(_DATA + position)

        def end(_kept: "Tensor" = byte) -> None:
            work.wait()

        return end

    def receive(self, position: int, content: LayerBytes, number: int) -> Completion:
        filled = self._receive_byte(_DATA + position)

        def end() -> None:
            filled.wait()
            parts = content.parts(number)
            _copy(self._memory.slot(position, sum(part.numel() for part in parts)), parts)
            content.hash_chunk(number)
            if position + SLOTS < self._chunks:
                self._sent.append(self._send_byte(_FREE + position))

        return end

    def _send_byte(self, tag: int) -> "tuple[Work, Tensor]":
        import torch

        byte = torch.ones(1, dtype=torch.uint8, device=device_of(self._group))
        return self._group.send(byte, self._peer, tag), byte

    def _receive_byte(self, tag: int) -> "Work":
        import torch

        return self._group.receive(torch.empty(1, dtype=torch.uint8, device=device_of(self._group)), self._peer, tag)


@dataclass(frozen=True, slots=True)
class RemoteRead:
    """A chunk to be read, and the addresses of its pieces in the sender's memory."""

    content: LayerBytes
    number: int
    addresses: list[int]


def read_remote(pid: int, reads: Iterator[RemoteRead], threads: int, check: Callable[[], None]) -> None:
    """Read chunks out of another process with some threads; `check` may raise between any two of them.

    Raises Broken if the process has ended, OSError where its memory is no longer there.
    """
    lock, over = threading.Lock(), threading.Event()

    def next_read() -> RemoteRead | None:
        with lock:
            return None if over.is_set() else next(reads, None)

    def work() -> None:
        try:
            while (read := next_read()) is not None:
                check()
                remote_memory.read(pid, read.addresses, read.content.parts(read.number))
                read.content.hash_chunk(read.number)
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
