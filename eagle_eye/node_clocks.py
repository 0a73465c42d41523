"""How far the clocks of a job's nodes are from the clock of the marks, by what their batches say: times of two machines are compared on one clock.

Pure: the same batches and marks give the same answers. A batch is written each second and read within one; whose newest batch
comes from the future, or is always as old as the one before it although they come one by one, has a clock that is off. Batches
that were kept while the stream was away are older, too, but come many at once.

An event that is written between a jump of its node's clock and the next batch has a time that no batch explains yet. The monotonic
clocks of its record and of the node's newest batch say how far the two are apart, whatever was set in between.
"""

from typing import NamedTuple

from .types import Event
from .wire import BatchHeader

AHEAD_S = 1.0
"""A clock that is ahead by less is used as it is; no time is later than the mark."""
BEHIND_S = 5.0
"""The same for one that is behind: on a busy machine a batch may be as old as that."""
STEADY = 2
"""Batches in succession that were each as old as the one before it: such a clock is behind."""
ALIKE_S = 1.2
"""By how much the ages of two newest batches may differ that were not kept anywhere."""
TRANSIT_S = 0.5
"""Age of the newest batch at a mark where all is well, on average."""
NEAR_S = 60.0
"""Monotonic clocks count between an event and a batch that are no further apart: one that was kept for longer has its own time."""


class _NewestBatch(NamedTuple):
    """The newest batch of a node at a mark."""

    mark: float
    age: float
    """At the mark, by the node's own clock."""
    header: BatchHeader
    steady: int = 0
    """So many in succession were as old as the one before."""


class _Reference(NamedTuple):
    """The newest batch of a node whose age is explained, and what both clocks said then."""

    time: float
    """On the marks' clock."""
    monotonic_s: float

    @property
    def booted(self) -> float:
        """When the machine was started, at the latest (it may have slept since), on the marks' clock."""
        return self.time - self.monotonic_s

    def distance_s(self, monotonic_s: float) -> float:
        return abs(monotonic_s - self.monotonic_s)

    def time_at(self, monotonic_s: float) -> float:
        """What the marks' clock showed, or will show, when the node's monotonic clock shows this."""
        return self.time + monotonic_s - self.monotonic_s


class NodeClocks:
    """One job's nodes."""

    def __init__(self) -> None:
        self._offsets: dict[str, float] = {}
        self._told: dict[str, _NewestBatch] = {}
        self._references: dict[str, _Reference] = {}

    def offset(self, node: str) -> float:
        """Seconds to add to a time of this node; 0 where its clock is right as far as is known."""
        return self._offsets.get(node, 0.0)

    def ahead(self) -> dict[str, float]:
        """Node whose clock is off → seconds that it is ahead of the marks' clock; less than 0 where it is behind."""
        return {node: -offset for node, offset in self._offsets.items()}

    def time_of(self, event: Event, mark: float, newest: BatchHeader | None = None) -> float:
        """When an event happened, on the marks' clock: never later than the mark behind it.

        newest: the node's newest batch that no tick has observed yet, which counts where none has been.
        """
        told, reference = event.time + self.offset(event.node), self._references.get(event.node)
        if reference is None and newest is not None and newest.monotonic_s:
            reference = _Reference(newest.time, newest.monotonic_s)
        if event.monotonic_s and reference is not None and reference.distance_s(event.monotonic_s) <= NEAR_S:
            measured = reference.time_at(event.monotonic_s)
            if _was_set_back(told, measured, mark, reference) or _was_set_forward(told, measured, mark):
                told = measured
        return min(told, mark)

    def observe(self, mark: float, header: BatchHeader) -> None:
        """The newest batch that came from a node before a tick at `mark`."""
        age, before = mark - header.time, self._told.get(header.node)
        told = self._told[header.node] = _NewestBatch(mark, age, header, before.steady + 1 if before is not None and _comes_steadily(before, mark, age, header) else 0)
        if -AHEAD_S <= age <= BEHIND_S:
            self._offsets.pop(header.node, None)
        elif age < 0 or told.steady >= STEADY or (before is not None and _went_back(before, header)):
            self._offsets[header.node] = age - TRANSIT_S
        else:  # late for an unknown reason: what was known before still holds
            return
        if header.monotonic_s:
            self._references[header.node] = _Reference(header.time + self.offset(header.node), header.monotonic_s)


def _was_set_back(told: float, measured: float, mark: float, reference: _Reference) -> bool:
    """The time that is told is too early. One from before the boot is no proof: monotonic clocks began anew since. Late batches put what was measured behind the mark."""
    return measured - told > AHEAD_S and measured <= mark + BEHIND_S and told >= reference.booted


def _was_set_forward(told: float, measured: float, mark: float) -> bool:
    """The time that is told has not come yet. One that may be is kept: after a reboot the monotonic clock alone says that it was long ago."""
    return told - mark > AHEAD_S and told - measured > AHEAD_S and mark - measured <= NEAR_S


def _went_back(before: _NewestBatch, header: BatchHeader) -> bool:
    """A later batch with an earlier time: its clock was set back."""
    same = header.incarnation == before.header.incarnation
    return same and header.number > before.header.number and header.time < before.header.time


def _comes_steadily(before: _NewestBatch, mark: float, age: float, header: BatchHeader) -> bool:
    """One batch a second, each as old as the one before: nobody has kept them."""
    same = header.incarnation == before.header.incarnation
    few = header.number - before.header.number <= mark - before.mark + 1.5
    return same and few and abs(age - before.age) <= ALIKE_S
