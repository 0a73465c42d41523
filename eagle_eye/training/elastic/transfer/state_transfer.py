"""State goes from the workers that have it to those that lack it: nearest way first, verified on arrival.

For each pair of a giver and a taker, over the group (notes) and on the way that the taker chooses (ways):

    giver → taker   offer      process, addresses, names and sizes of the layers, what belongs to no layer
    taker → giver   choice     memory, segment or group
    giver → taker   the chunks, unless the taker reads them itself
    giver → taker   digests    by layer
    taker → giver   receipt    which layers are not what they should be: none, or it takes nothing

A giver changes nothing before it has all receipts. A taker is whole again only when every layer was verified; one
that is interrupted has `inventory.whole` False and is fresh. Everybody works off its chunks in one order that is the
same for all (position, giver, taker), several at a time: so no two workers wait for each other.
"""

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from eagle_eye.errors import Broken, StateTorn
from eagle_eye.training.elastic.train_state.layer_chunks import chunks_of
from eagle_eye.training.elastic.train_state.train_state import TrainState

from . import p2p_messages, transports
from .layer_buffers import LayerBuffers
from .transfer_pairs import MemoryProof, RecvPlan, SendPlan, offer_of

if TYPE_CHECKING:
    from torch import Tensor

    from eagle_eye.training.elastic.process_group.process_group import ProcessGroup, Work

_OFFER, _CHOICE, _DIGESTS, _RECEIPT = (1 << 26, (1 << 26) + 2, (1 << 26) + 4, (1 << 26) + 6)
"""Tags of the notes; each uses two."""
IN_FLIGHT = 8
"""Chunks that a worker has under way over the group at a time."""
MOST_THREADS = 4
"""That read another process's memory: two reach what one core after another can copy, more help on large machines."""


class Orders(Protocol):
    """What a transfer needs of a session."""

    def check(self, epoch: int) -> None: ...


@dataclass(frozen=True, slots=True)
class TransferResult:
    """What a worker took."""

    bytes: int = 0
    seconds: float = 0.0
    """Of giving and taking together."""
    sources: Mapping[str, int] = field(default_factory=dict)
    """Bytes by way (memory, segment, group) or, for a checkpoint, by its folder."""
    given: int = 0
    """Bytes that others took from this worker."""


def transfer_state(
    group: "ProcessGroup",
    session: Orders,
    inventory: TrainState,
    moves: Sequence[Sequence[int]],
    rank: int,
    *,
    allowed: Sequence[str] = transports.NAMES,
    threads: int = 0,
) -> TransferResult:
    """Carry out this worker's part of `moves`: (giver's rank, taker's rank, layer). All of the group call it.

    `threads` that read (default: up to MOST_THREADS, one a core). Raises Broken if a peer is gone, Fenced if a newer
    epoch is being formed, StateTorn if something arrived changed, ConfigError if the giver trains another model.
    """
    began = time.monotonic()
    transfer = _Transfer(group, session, inventory, threads or min(MOST_THREADS, len(os.sched_getaffinity(0))))
    with ExitStack() as stack:
        gifts = [SendPlan(taker, layers, stack) for taker, layers in _layers_by_peer(moves, rank, 0).items()]
        takes = [RecvPlan(giver, layers, stack) for giver, layers in _layers_by_peer(moves, rank, 1).items()]
        if gifts or takes:
            transfer.run(gifts, takes, allowed)
    sources: dict[str, int] = {}
    for take in takes:
        sources[take.way] = sources.get(take.way, 0) + sum(inventory.layer(index).bytes for index in take.layers)
    given = sum(inventory.layer(index).bytes for gift in gifts for index in gift.layers)
    return TransferResult(sum(sources.values()), time.monotonic() - began, sources, given)


class _Transfer:
    """One call of transfer_state."""

    def __init__(self, group: "ProcessGroup", session: Orders, inventory: TrainState, threads: int) -> None:
        self._group, self._session, self._inventory, self._threads = group, session, inventory, threads
        self._proof = MemoryProof()
        self._sent: list[tuple[Work, Tensor]] = []

    def run(self, gifts: list[SendPlan], takes: list[RecvPlan], allowed: Sequence[str]) -> None:
        self._agree(gifts, takes, allowed)
        ours = self._inventory
        giving = LayerBuffers({layer: ours.layer(layer) for gift in gifts for layer in gift.layers}, [layer for gift in gifts for layer in gift.layers])
        room = {layer: ours.make_room(layer, take.offer["layers"][str(layer)]["skeleton"]) for take in takes for layer in take.layers}
        taking = LayerBuffers(room, list(room), to_fill=True)
        self._pass_on(gifts, takes, giving, taking)
        for take in takes:
            if take.way == "memory":
                self._read(take, taking)
        for gift in gifts:
            self._tell(gift.peer, _DIGESTS, {str(layer): giving.digest(layer) for layer in gift.layers})
        self._verify(takes, taking)
        self._await_receipts(gifts)
        self._wait_for_notes()
        if takes:
            ours.adopt(takes[0].offer["rest"])
            ours.whole = True

    def _agree(self, gifts: list[SendPlan], takes: list[RecvPlan], allowed: Sequence[str]) -> None:
        """Everybody knows what it gets from whom, and on which way."""
        for gift in gifts:
            self._tell(gift.peer, _OFFER, offer_of(self._inventory, gift, self._proof))
        for take in takes:
            take.offer = p2p_messages.receive(self._group, take.peer, _OFFER)
            self._check_same(takes[0], take)
            take.way = take.choose(allowed)
            self._tell(take.peer, _CHOICE, take.way)
        for gift in gifts:
            gift.way = p2p_messages.receive(self._group, gift.peer, _CHOICE)
        if takes:
            self._inventory.whole = False

    def _pass_on(self, gifts: list[SendPlan], takes: list[RecvPlan], giving: LayerBuffers, taking: LayerBuffers) -> None:
        """The chunks that go over the group or through a segment."""
        queue = sorted([*self._queue(gifts, giving, gives=True), *self._queue(takes, taking, gives=False)], key=lambda chunk: chunk.order)
        under_way: deque[tuple[_Chunk, transports.End]] = deque()
        for chunk in queue:
            waits = chunk.gives and chunk.way.may_wait(chunk.order[0])
            while len(under_way) > (0 if waits else IN_FLIGHT - 1):
                _end(*under_way.popleft())  # nobody waits for me at an earlier chunk while I wait at this one
            self._session.check(self._group.epoch)
            begin = chunk.way.give if chunk.gives else chunk.way.take
            under_way.append((chunk, begin(chunk.order[0], chunk.shelf.content(chunk.layer), chunk.number)))
        while under_way:
            _end(*under_way.popleft())

    def _queue(self, pairs: "Sequence[SendPlan | RecvPlan]", shelf: LayerBuffers, *, gives: bool) -> "Iterator[_Chunk]":
        mine = self._group.rank
        for pair in pairs:
            if pair.way == "memory":
                continue
            sizes = {layer: [entry.bytes for entry in self._inventory.layer(layer).entries] for layer in pair.layers}
            places = [(layer, number, len(chunks)) for layer in pair.layers for chunks in [chunks_of(sizes[layer])] for number in range(len(chunks))]
            way = self._way(pair, len(places))
            giver, taker = (mine, pair.peer) if gives else (pair.peer, mine)
            for position, (layer, number, count) in enumerate(places):
                yield _Chunk((position, giver, taker), way, shelf, layer, number, gives=gives, last=number == count - 1)

    def _way(self, pair: "SendPlan | RecvPlan", chunks: int) -> transports.Transport:
        if pair.way == "segment" and pair.segment is not None:
            return transports.SharedMemoryTransport(self._group, pair.peer, pair.segment, chunks)
        return transports.GroupTransport(self._group, pair.peer)

    def _read(self, take: RecvPlan, shelf: LayerBuffers) -> None:
        try:
            transports.read(take.offer["pid"], take.readings(shelf), self._threads, lambda: self._session.check(self._group.epoch))
        except OSError as error:
            raise _torn(take.peer, take.layers, str(error)) from error
        for layer in take.layers:
            shelf.release(layer)

    def _verify(self, takes: list[RecvPlan], shelf: LayerBuffers) -> None:
        torn: list[tuple[int, list[int]]] = []
        for take in takes:
            theirs = p2p_messages.receive(self._group, take.peer, _DIGESTS)
            wrong = [layer for layer in take.layers if theirs[str(layer)] != shelf.digest(layer)]
            self._tell(take.peer, _RECEIPT, wrong)
            torn += [(take.peer, wrong)] if wrong else []
        if torn:
            self._wait_for_notes()
            raise _torn(*torn[0], "its digest is another one than that of the giver")

    def _await_receipts(self, gifts: list[SendPlan]) -> None:
        for gift in gifts:
            if wrong := p2p_messages.receive(self._group, gift.peer, _RECEIPT):
                raise Broken(f"rank {gift.peer} did not get layers {wrong} of rank {self._group.rank} as they are here: this epoch has no whole state")

    def _wait_for_notes(self) -> None:
        for work, _ in self._sent:
            work.wait()

    def _check_same(self, first: RecvPlan, other: RecvPlan) -> None:
        if first.offer["rest"] != other.offer["rest"]:
            steps = [take.offer["rest"]["step"] for take in (first, other)]
            raise _torn(other.peer, other.layers, f"it gives step {steps[1]} and rank {first.peer} step {steps[0]}, or another learning rate")

    def _tell(self, peer: int, tag: int, value: Any) -> None:
        self._sent += p2p_messages.send(self._group, value, peer, tag)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk that goes over the group or through a segment."""

    order: tuple[int, int, int]
    """Position among its pair's, giver, taker."""
    way: transports.Transport
    shelf: LayerBuffers
    layer: int
    number: int
    gives: bool
    last: bool


def _end(chunk: _Chunk, end: transports.End) -> None:
    end()
    if chunk.last:
        chunk.shelf.release(chunk.layer)


def _layers_by_peer(moves: Sequence[Sequence[int]], rank: int, own: int) -> dict[int, list[int]]:
    """By the other end's rank, the layers of the moves that this rank gives (own 0) or takes (own 1)."""
    found: dict[int, list[int]] = {}
    for move in moves:
        if move[own] == rank:
            found.setdefault(move[1 - own], []).append(move[2])
    return {peer: sorted(layers) for peer, layers in sorted(found.items())}


def _torn(giver: int, layers: list[int], why: str) -> StateTorn:
    named = ", ".join(map(str, layers))
    return StateTorn(
        f"layer {named} of rank {giver} did not arrive as it is there: {why}; nothing of it counts, take it from another worker or a checkpoint",
        giver=giver,
        layers=tuple(layers),
    )
