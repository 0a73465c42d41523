"""Which step all nodes of a job copy to a second node next, and which one all have there: the first node of the layout is told by all, and says it to all.

Copies go in rounds. All copy the first checkpoint at or behind a step that none of them has reached when the round begins; when the last one has told that its copy is
there, that is the step that all can go on from whichever node is lost, and the next round begins.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from eagle_eye.errors import PermanentError

from .backup_ring import BackupRing

ANSWER_S, NODES_PER_S = 3.0, 200.0
"""Who asks is answered when the next round begins, and after so long in any case, longer in a job of very many nodes: then it asks again."""
ROUND_S = 30.0
"""Who has told is not kept waiting for longer: a node that has nothing to copy, or whose copy nobody can keep, must not keep the others from copying, and from
saving. It is waited for again when it has told something."""
MOST_DOUBLINGS = 6
"""Of the steps between two rounds, where nodes do not save the same steps."""


StepNumber = Annotated[int, msgspec.Meta(ge=-1, le=1 << 53)]


class RoundEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What a node tells when it has come to the end of its round."""

    node: str
    epoch: int
    number: Annotated[int, msgspec.Meta(ge=0)]
    """Of the round."""
    step: StepNumber
    """Of the copy that is on a second node now."""
    newest: StepNumber
    """Step that it has whole in its own memory."""
    every: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
    """Steps that are to be between two copies, for what they cost there."""
    wait_s: Annotated[float, msgspec.Meta(ge=0.0, le=600.0)]
    """It waits so long for an answer."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What all are to do."""

    number: int = 0
    target: int = 0
    """Copied is the first checkpoint at or behind this step; 0: the newest that there is, at the beginning of an epoch."""
    agreed: int = -1
    """The newest step that all have on a second node; -1: there is none in this epoch."""


def told_of(question: Mapping[str, Any]) -> RoundEnd:
    """What another launcher has sent. Raises PermanentError for what is none."""
    try:
        return msgspec.convert(question, RoundEnd)
    except msgspec.ValidationError as error:
        raise PermanentError(f"what a node tells of its round of copies is not understood: {error}") from error


def wait_of(nodes: int) -> float:
    """Seconds for which each of so many nodes waits for an answer.

    >>> wait_of(8), wait_of(10_000)
    (3.0, 50.0)
    """
    return max(ANSWER_S, nodes / NODES_PER_S)


class RoundLeader:
    """On the node that is asked. In the launcher's loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._epoch = 0
        self._round = Round()
        self._told: dict[str, RoundEnd] = {}
        self._first_at = 0.0
        """When the first one told the end of this round."""
        self._late: set[str] = set()
        """Nodes that were waited for in vain."""
        self._misses = 0
        """Rounds in a row in which not all have copied the same step: the next begins later."""
        self._news = asyncio.Condition()

    async def answer(self, told: RoundEnd, ring: BackupRing) -> Round:
        """The round that comes after the one whose end is told; the same one where that is not over within so long. An older epoch is told nothing."""
        async with self._news:
            if told.epoch > self._epoch:
                self._epoch, self._round, self._misses = told.epoch, Round(), 0
                self._told.clear()
                self._late.clear()
                self._news.notify_all()
            if told.epoch < self._epoch or told.node not in ring:
                return Round()
            self._late.discard(told.node)
            if told.number == self._round.number:
                self._hear(told, ring)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(told.wait_s):
                    await self._news.wait_for(lambda: told.epoch != self._epoch or told.number != self._round.number)
            return self._round if told.epoch == self._epoch else Round()

    def _hear(self, told: RoundEnd, ring: BackupRing) -> None:
        now = self._clock()
        if not self._told:
            self._first_at = now
        self._told[told.node] = told
        if len(self._told) + len(self._late) >= len(ring):
            self._begin_next()
        elif now - self._first_at >= ROUND_S:
            self._late = {node for node in ring if node not in self._told}
            self._begin_next()

    def _begin_next(self) -> None:
        steps = {told.step for told in self._told.values()}
        self._misses = 0 if len(steps) == 1 else min(self._misses + 1, MOST_DOUBLINGS)
        every = max(told.every for told in self._told.values()) << self._misses
        newest = max(told.newest for told in self._told.values())
        agreed = max(steps) if len(steps) == 1 else self._round.agreed
        self._round = Round(number=self._round.number + 1, target=(newest // every + 1) * every, agreed=agreed)
        self._told.clear()
        self._news.notify_all()
