"""`ExactReduction`: the same bits for any number of workers, from the fixed summation tree over micro-batches.

Each segment of the vector is divided into one slice per worker. Every worker sends, of each of its tree-node sums, the
slices to their owners (reduce-scatter); an owner finishes the tree for its slice, divides by the number of micro-batches
and sends the result to all (all-gather). While one segment's tree is finished the slices of the next one are in flight.

With one tree node per worker (aligned shares) as much is sent as in a ring all-reduce, 2 (n - 1) / n of the vector each.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .accumulator import TreeAccumulator
from .summation_tree import TreeNode, combine, nodes_of, slices

if TYPE_CHECKING:
    from eagle_eye.training.elastic.process_group.process_group import ProcessGroup, Work

_AHEAD = 2
"""Segments whose slices are received at once."""


class ExactReduction:
    """Same bits for any number of workers, any assignment of micro-batches, any history of losses and joins."""

    @contextmanager
    def overlap(self, group: "ProcessGroup", gradients: TreeAccumulator) -> Iterator[None]:  # noqa: ARG002 - the signature of Reduction
        """Context of the worker's last micro-batch: this reduction starts only after it."""
        yield

    def reduce(
        self, group: "ProcessGroup", gradients: TreeAccumulator, current: Sequence[Sequence[int]], reduced: list[Tensor | None]
    ) -> None:
        """Fill `reduced` with the segments of the mean over all micro-batches, each once it is whole.

        `current`: the micro-batches that each rank contributes. The accumulated sums are only read. Raises Broken after
        it has aborted the group, so that nothing is sent in this epoch any more, even if the sums change.
        """
        gradients.require(current[group.rank])
        nodes = [nodes_of(each, gradients.total) for each in current]
        _check(nodes, gradients.total)
        reduced[:] = [None] * len(gradients.segments)
        lent = gradients.lend_spare()
        try:
            exchange = _Exchange(group, gradients, nodes, gradients.open_output(), lent)
            for index in exchange.run():
                reduced[index] = exchange.output[gradients.segments[index]]
        except BaseException:
            group.abort()
            raise
        gradients.close_output()
        gradients.return_spare()


@dataclass(slots=True)
class _Segment:
    """One segment in flight. `arriving`: by rank, a row per tree node of that rank."""

    index: int
    arriving: dict[int, list[Tensor]]
    works: "list[Work]" = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Term:
    """A sum over some tree nodes. `ours`: it may be overwritten."""

    tensor: Tensor
    ours: bool


class _Exchange:
    """One reduction."""

    def __init__(
        self, group: "ProcessGroup", gradients: TreeAccumulator, nodes: Sequence[Sequence[TreeNode]], output: Tensor, room: Tensor | None
    ) -> None:
        self.output = output
        self._group, self._vector, self._nodes, self._room = group, gradients.vector, nodes, room
        self._segments, self._sums = gradients.segments, gradients.sums
        self._others = [rank for rank in range(group.world) if rank != group.rank]

    def run(self) -> Iterator[int]:
        """The numbers of the segments, each when it is whole."""
        scattered: list[_Segment] = []
        gathered: list[_Segment] = []
        for index in range(len(self._segments)):
            scattered.append(self._scatter(index))
            if len(scattered) == _AHEAD:
                gathered.append(self._gather(scattered.pop(0)))
            if len(gathered) == _AHEAD:
                yield self._complete(gathered.pop(0))
        gathered.extend(map(self._gather, scattered))
        for segment in gathered:
            yield self._complete(segment)

    def _scatter(self, index: int) -> _Segment:
        """Start to receive the other workers' sums of our slice, and to send our sums of their slices."""
        segment = _Segment(index, self._rows(index))
        for peer in self._others:
            self._swap(segment, peer, 2 * index, self._outgoing(index, peer), segment.arriving[peer])
        return segment

    def _gather(self, segment: _Segment) -> _Segment:
        """Finish the tree of our slice; start to send it, and to receive the other slices."""
        _wait(segment.works)
        segment.works.clear()
        ours = self._slice(segment.index, self._group.rank)
        if ours.start < ours.stop:
            total = combine(self._terms(segment, ours), self._vector.total, _add)
            self._vector.mean(total.tensor, self.output[ours], ours.start)
        segment.arriving.clear()
        for peer in self._others:
            theirs = self._slice(segment.index, peer)
            self._swap(segment, peer, 2 * segment.index + 1, [self.output[ours]], [self.output[theirs]])
        return segment

    def _complete(self, segment: _Segment) -> int:
        _wait(segment.works)
        return segment.index

    def _swap(
        self, segment: _Segment, peer: int, tag: int, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]
    ) -> None:
        """Of two members the lower sends first: over NCCL their operations queue up in order."""
        sends = [(self._group.send, each) for each in outgoing]
        receives = [(self._group.receive, each) for each in incoming]
        for start, tensor in (*sends, *receives) if self._group.rank < peer else (*receives, *sends):
            if tensor.numel():
                segment.works.append(start(tensor, peer, tag))

    def _outgoing(self, index: int, peer: int) -> list[Tensor]:
        """Our sums of a peer's slice, without a copy."""
        return [self._sums[node][self._slice(index, peer)] for node in self._nodes[self._group.rank]]

    def _rows(self, index: int) -> dict[int, list[Tensor]]:
        """Memory for what arrives for our slice: by rank, one row per tree node."""
        span = self._slice(index, self._group.rank)
        length = span.stop - span.start
        counts = [len(self._nodes[peer]) for peer in self._others]
        rows = iter(self._room_for(index, length * sum(counts)).view(-1, length) if length else ())
        return {peer: list(islice(rows, count)) for peer, count in zip(self._others, counts, strict=True)}

    def _room_for(self, index: int, elements: int) -> Tensor:
        """A part of the vector that was lent, used in turns, if it is large enough."""
        part = 0 if self._room is None else self._room.numel() // _AHEAD
        if self._room is None or elements > part:
            return torch.empty(elements, dtype=self.output.dtype, device=self.output.device)
        first = index % _AHEAD * part
        return self._room[first : first + elements]

    def _terms(self, segment: _Segment, ours: slice) -> dict[TreeNode, _Term]:
        terms = {node: _Term(self._sums[node][ours], False) for node in self._nodes[self._group.rank]}
        for peer, rows in segment.arriving.items():
            terms.update((node, _Term(row, True)) for node, row in zip(self._nodes[peer], rows, strict=True))
        return terms

    def _slice(self, index: int, rank: int) -> slice:
        """A worker's part of a segment, as positions in the vector."""
        segment = self._segments[index]
        part = slices(segment.stop - segment.start, self._group.world)[rank]
        return slice(segment.start + part.start, segment.start + part.stop)


def _add(left: _Term, right: _Term) -> _Term:
    """In place where a term may be overwritten. Addition commutes bit by bit."""
    if left.ours:
        return _Term(left.tensor.add_(right.tensor), True)
    if right.ours:
        return _Term(right.tensor.add_(left.tensor), True)
    return _Term(left.tensor + right.tensor, True)


def _wait(works: "Iterable[Work]") -> None:
    for work in works:
        work.wait()


def _check(nodes: Sequence[Sequence[TreeNode]], total: int) -> None:
    """Raises ValueError unless every micro-batch is contributed once."""
    contributed = sorted(each for of_rank in nodes for node in of_rank for each in range(*node))
    if contributed != list(range(total)):
        raise ValueError(f"the workers contribute the micro-batches {contributed}, not each of 0 to {total - 1} once")
