"""Records that the stream has acknowledged, kept until their consumer group has committed them.

A broker that lost its memory acknowledged what nobody has read. Whether it did is seen by reading the newest record
back: is another one there, or none, then everything that is kept goes again. Readers drop what comes twice. It is seen, too, without asking, by
an offset that is not beyond the one before.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import Position, Stream
from .spool_file import SpooledRecord, size_of

MAX_BYTES = 32 << 20
"""An hour and a half of one node's records, if nobody commits."""


class _Kept(NamedTuple):
    record: SpooledRecord
    offset: int


class UncommittedRecords:
    """Kept by a `SpooledWriter`, used by its thread alone."""

    def __init__(self, stream: Stream, groups: Mapping[str, str], max_bytes: int = MAX_BYTES) -> None:
        """groups: topic → consumer group whose commit confirms its records; records of other topics are not kept."""
        self._stream = stream
        self._groups = groups
        self._max_bytes = max_bytes
        self._kept: dict[tuple[str, int], deque[_Kept]] = {}
        self._bytes = 0
        self.lost: list[SpooledRecord] = []
        """Those whose stream has begun anew by what it said of later ones; see `take_lost`."""
        self.unguarded = 0
        """Records that were let go unconfirmed, because too many were kept."""

    def __len__(self) -> int:
        return sum(len(kept) for kept in self._kept.values())

    def keep(self, topic: str, records: Sequence[SpooledRecord], places: Sequence[Position]) -> None:
        """They have been acknowledged."""
        if topic not in self._groups:
            return
        for record, place in zip(records, places, strict=True):
            kept = self._kept.setdefault((topic, place.partition), deque())
            if kept and place.offset <= kept[-1].offset:
                self.lost += [each.record for each in kept]
                self._let_go(kept, None)
            kept.append(_Kept(record, place.offset))
            self._bytes += size_of(record)
        while self._bytes > self._max_bytes:
            self._drop_oldest(max(self._kept.values(), key=len))
            self.unguarded += 1

    def take_lost(self) -> list[SpooledRecord]:
        """What was found lost while it was kept, in order."""
        lost, self.lost = self.lost, []
        return lost

    def check(self) -> list[SpooledRecord]:
        """Forget what is committed; returns what the stream has lost, in order. Raises StreamUnavailable."""
        forgotten: list[SpooledRecord] = []
        for (topic, partition), kept in list(self._kept.items()):
            if kept and not self._is_there(topic, partition, kept[-1]):
                begin = self._stream.begin(topic, partition)
                self._let_go(kept, begin)  # what is older than the stream keeps anything
                forgotten += [each.record for each in kept]
                self._let_go(kept, None)
                continue
            self._let_go(kept, self._stream.committed(self._groups[topic], topic, partition) or 0)
        return forgotten

    def records(self) -> list[SpooledRecord]:
        """Everything that is kept."""
        return [*self.lost, *(each.record for kept in self._kept.values() for each in kept)]

    def _is_there(self, topic: str, partition: int, newest: _Kept) -> bool:
        found = self._stream.read(topic, partition, newest.offset, 1)
        return bool(found) and (found[0].offset, found[0].value) == (newest.offset, newest.record.value)

    def _let_go(self, kept: deque[_Kept], below: int | None) -> None:
        while kept and (below is None or kept[0].offset < below):
            self._drop_oldest(kept)

    def _drop_oldest(self, kept: deque[_Kept]) -> None:
        self._bytes -= size_of(kept.popleft().record)
