"""State transfer: layers go from the workers that have them to those that lack them, by the fastest transport, and are verified on arrival.

For each pair of a sender and a receiver, in messages over the process group (p2p_messages) and by the transport that the
receiver chooses (transports):

    sender → receiver   offer      process, addresses, names and sizes of the layers, the state that belongs to no layer
    receiver → sender   choice     remote_memory, shared_memory or group
    sender → receiver   the chunks, unless the receiver reads them itself
    sender → receiver   digests    by layer
    receiver → sender   receipt    the layers that arrived changed: empty, or the receiver keeps none of them

A sender changes nothing before it has all receipts. A receiver's state is complete again only when every layer was
verified; one that is interrupted has `train_state.is_complete` False and is fresh. All workers process their chunks in the
same order (position, sender, receiver), several at a time: so no two workers wait for each other.
"""

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eagle_eye.errors import Broken, StateCorrupted
from eagle_eye.training.elastic.epoch_protocol import FenceCheck
from eagle_eye.training.elastic.train_state.train_state import TrainState

from . import p2p_messages, transports
from .layer_buffers import LayerBuffers, chunks_of
from .transfer_plans import MemoryProof, RecvPlan, SendPlan, offer_of

if TYPE_CHECKING:
    from torch import Tensor

    from eagle_eye.training.elastic.process_group.process_group import ProcessGroup, Work

_OFFER, _CHOICE, _DIGESTS, _RECEIPT = (1 << 26, (1 << 26) + 2, (1 << 26) + 4, (1 << 26) + 6)
"""Tags of the messages; each uses two."""
IN_FLIGHT = 8
"""Chunks of a worker that are in flight over the group at a time."""
MOST_THREADS = 4
"""Threads that read another process's memory: two reach the copy rate of one core, more help on large machines."""


@dataclass(frozen=True, slots=True)
class TransferResult:
    """What one worker received and sent, or loaded from a checkpoint."""

    bytes: int = 0
    """Received."""
    seconds: float = 0.0
    """Of sending and receiving together."""
    sources: Mapping[str, int] = field(default_factory=dict)
    """Bytes by transport (one of transports.NAMES) or, for a checkpoint, by its folder."""
    sent: int = 0
    """Bytes that others received from this worker."""


def transfer_state(
    group: "ProcessGroup",
    session: FenceCheck,
    train_state: TrainState,
    moves: Sequence[Sequence[int]],
    rank: int,
    *,
    allowed: Sequence[str] = transports.NAMES,
    threads: int = 0,
) -> TransferResult:
    """Carry out this worker's part of `moves`: (sender's rank, receiver's rank, layer). Every rank of the group calls it.

    `allowed`: the transports that a receiver may choose. `threads`: how many read (default: up to MOST_THREADS, one a
    core). Raises Broken if a peer is gone, Fenced if a newer epoch is being formed, StateCorrupted if a layer arrived changed,
    ConfigError if the sender trains another model.
    """
    began = time.monotonic()
    transfer = _Transfer(group, session, train_state, threads or min(MOST_THREADS, len(os.sched_getaffinity(0))))
    with ExitStack() as stack:
        sends = [SendPlan(receiver, layers, stack) for receiver, layers in _layers_by_peer(moves, rank, 0).items()]
        receives = [RecvPlan(sender, layers, stack) for sender, layers in _layers_by_peer(moves, rank, 1).items()]
        if sends or receives:
            transfer.run(sends, receives, allowed)
    sources: dict[str, int] = {}
    for recv_plan in receives:
        sources[recv_plan.transport] = sources.get(recv_plan.transport, 0) + sum(train_state.layer(index).bytes for index in recv_plan.layers)
    sent = sum(train_state.layer(index).bytes for send_plan in sends for index in send_plan.layers)
    return TransferResult(sum(sources.values()), time.monotonic() - began, sources, sent)


class _Transfer:
    """One call of transfer_state."""

    def __init__(self, group: "ProcessGroup", session: FenceCheck, train_state: TrainState, threads: int) -> None:
        self._group, self._session, self._train_state, self._threads = group, session, train_state, threads
        self._proof = MemoryProof()
        self._sent: list[tuple[Work, Tensor]] = []

    def run(self, sends: list[SendPlan], receives: list[RecvPlan], allowed: Sequence[str]) -> None:
        self._negotiate(sends, receives, allowed)
        ours = self._train_state
        sent = [layer for send_plan in sends for layer in send_plan.layers]
        outgoing = LayerBuffers({layer: ours.layer(layer) for layer in sent}, sent)
        room = {layer: ours.allocate(layer, recv_plan.offer["layers"][str(layer)]["schema"]) for recv_plan in receives for layer in recv_plan.layers}
        incoming = LayerBuffers(room, list(room), receiving=True)
        self._exchange(sends, receives, outgoing, incoming)
        for recv_plan in receives:
            if recv_plan.transport == "remote_memory":
                self._read_remote(recv_plan, incoming)
        for send_plan in sends:
            self._send(send_plan.peer, _DIGESTS, {str(layer): outgoing.digest(layer) for layer in send_plan.layers})
        self._verify(receives, incoming)
        self._check_receipts(sends)
        self._wait_for_messages()
        if receives:
            ours.load_global_state(receives[0].offer["global_state"])
            ours.is_complete = True

    def _negotiate(self, sends: list[SendPlan], receives: list[RecvPlan], allowed: Sequence[str]) -> None:
        """Exchange offers and choices: afterwards both ends know what goes from whom to whom, and by which transport."""
        for send_plan in sends:
            self._send(send_plan.peer, _OFFER, offer_of(self._train_state, send_plan, self._proof))
        for recv_plan in receives:
            recv_plan.offer = p2p_messages.receive(self._group, recv_plan.peer, _OFFER)
            self._check_same(receives[0], recv_plan)
            recv_plan.transport = recv_plan.choose(allowed)
            self._send(recv_plan.peer, _CHOICE, recv_plan.transport)
        for send_plan in sends:
            send_plan.transport = p2p_messages.receive(self._group, send_plan.peer, _CHOICE)
        if receives:
            self._train_state.is_complete = False

    def _exchange(self, sends: list[SendPlan], receives: list[RecvPlan], outgoing: LayerBuffers, incoming: LayerBuffers) -> None:
        """Send and receive the chunks that go over the group or through shared memory."""
        queue = sorted([*self._queue(sends, outgoing, sending=True), *self._queue(receives, incoming, sending=False)], key=lambda chunk: chunk.order)
        in_flight: deque[tuple[_Chunk, transports.Completion]] = deque()
        for chunk in queue:
            waits = chunk.sending and chunk.transport.may_wait(chunk.order[0])
            while len(in_flight) > (0 if waits else IN_FLIGHT - 1):
                _end(*in_flight.popleft())  # no other worker waits for an earlier chunk of this one while it waits here
            self._session.check(self._group.epoch)
            begin = chunk.transport.send if chunk.sending else chunk.transport.receive
            in_flight.append((chunk, begin(chunk.order[0], chunk.buffers.layer_bytes(chunk.layer), chunk.number)))
        while in_flight:
            _end(*in_flight.popleft())

    def _queue(self, pairs: "Sequence[SendPlan | RecvPlan]", buffers: LayerBuffers, *, sending: bool) -> "Iterator[_Chunk]":
        mine = self._group.rank
        for pair in pairs:
            if pair.transport == "remote_memory":
                continue
            sizes = {layer: [entry.bytes for entry in self._train_state.layer(layer).entries] for layer in pair.layers}
            pieces = [(layer, number, len(chunks)) for layer in pair.layers for chunks in [chunks_of(sizes[layer])] for number in range(len(chunks))]
            transport = self._transport(pair, len(pieces))
            sender, receiver = (mine, pair.peer) if sending else (pair.peer, mine)
            for position, (layer, number, count) in enumerate(pieces):
                yield _Chunk((position, sender, receiver), transport, buffers, layer, number, sending=sending, last=number == count - 1)

    def _transport(self, pair: "SendPlan | RecvPlan", chunks: int) -> transports.Transport:
        if pair.transport == "shared_memory" and pair.shared_memory is not None:
            return transports.SharedMemoryTransport(self._group, pair.peer, pair.shared_memory, chunks)
        return transports.GroupTransport(self._group, pair.peer)

    def _read_remote(self, recv_plan: RecvPlan, buffers: LayerBuffers) -> None:
        try:
            transports.read_remote(recv_plan.offer["pid"], recv_plan.remote_reads(buffers), self._threads, lambda: self._session.check(self._group.epoch))
        except OSError as error:
            raise _corrupted(recv_plan.peer, recv_plan.layers, str(error)) from error
        for layer in recv_plan.layers:
            buffers.release(layer)

    def _verify(self, receives: list[RecvPlan], buffers: LayerBuffers) -> None:
        corrupted: list[tuple[int, list[int]]] = []
        for recv_plan in receives:
            theirs = p2p_messages.receive(self._group, recv_plan.peer, _DIGESTS)
            wrong = [layer for layer in recv_plan.layers if theirs[str(layer)] != buffers.digest(layer)]
            self._send(recv_plan.peer, _RECEIPT, wrong)
            corrupted += [(recv_plan.peer, wrong)] if wrong else []
        if corrupted:
            self._wait_for_messages()
            raise _corrupted(*corrupted[0], "its digest is another one than that of the sender")

    def _check_receipts(self, sends: list[SendPlan]) -> None:
        for send_plan in sends:
            if wrong := p2p_messages.receive(self._group, send_plan.peer, _RECEIPT):
                raise Broken(f"rank {send_plan.peer} did not get layers {wrong} of rank {self._group.rank} as they are here: this epoch has no complete state")

    def _wait_for_messages(self) -> None:
        for work, _ in self._sent:
            work.wait()

    def _check_same(self, first: RecvPlan, other: RecvPlan) -> None:
        if first.offer["global_state"] != other.offer["global_state"]:
            steps = [recv_plan.offer["global_state"]["step"] for recv_plan in (first, other)]
            raise _corrupted(other.peer, other.layers, f"it sends step {steps[1]} and rank {first.peer} step {steps[0]}, or another learning rate")

    def _send(self, peer: int, tag: int, value: Any) -> None:
        self._sent += p2p_messages.send(self._group, value, peer, tag)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk that goes over the group or through shared memory."""

    order: tuple[int, int, int]
    """Position among the chunks of its pair, rank of the sender, rank of the receiver."""
    transport: transports.Transport
    buffers: LayerBuffers
    layer: int
    number: int
    sending: bool
    last: bool


def _end(chunk: _Chunk, end: transports.Completion) -> None:
    end()
    if chunk.last:
        chunk.buffers.release(chunk.layer)


def _layers_by_peer(moves: Sequence[Sequence[int]], rank: int, own: int) -> dict[int, list[int]]:
    """By the other end's rank, the layers of the moves that this rank sends (own 0) or receives (own 1)."""
    found: dict[int, list[int]] = {}
    for move in moves:
        if move[own] == rank:
            found.setdefault(move[1 - own], []).append(move[2])
    return {peer: sorted(layers) for peer, layers in sorted(found.items())}


def _corrupted(sender: int, layers: list[int], why: str) -> StateCorrupted:
    named = ", ".join(map(str, layers))
    return StateCorrupted(
        f"layer {named} of rank {sender} did not arrive as it is there: {why}; nothing of it counts, take it from another worker or a checkpoint",
        sender=sender,
        layers=tuple(layers),
    )
