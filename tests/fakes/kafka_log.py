"""What a fake broker remembers: topics, batches, committed offsets, and who produced which sequence."""

import struct
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

NO_ERROR, OUT_OF_RANGE, UNKNOWN_TOPIC, OUT_OF_ORDER, UNKNOWN_PRODUCER, TOPIC_EXISTS = 0, 1, 3, 45, 59, 36
_LAST_DELTA, _PRODUCER, _SEQUENCE, _COUNT = 23, 43, 53, 57
"""Where these stand in a batch of format 2 (Kafka's protocol guide, "Record Batch")."""
_INT32, _INT64 = struct.Struct(">i"), struct.Struct(">q")


class Stored(NamedTuple):
    """One batch as it was produced."""

    first: int
    last: int
    data: bytes


@dataclass
class FakePartition:
    """The log of one partition."""

    batches: list[Stored] = field(default_factory=list)
    producers: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Producer → sequence of its last batch, the next one's, offset of the last one."""
    begin: int = 0
    unseen: set[int] = field(default_factory=set)
    """First offsets of batches that a reader is not shown yet, though later ones are."""

    @property
    def end(self) -> int:
        return self.batches[-1].last + 1 if self.batches else self.begin

    def append(self, data: bytes) -> tuple[int, int]:
        """(error code, offset of the first record); a batch that comes twice is kept once, as an idempotent producer expects."""
        producer, sequence = _INT64.unpack_from(data, _PRODUCER)[0], _INT32.unpack_from(data, _SEQUENCE)[0]
        known = self.producers.get(producer)
        if producer >= 0:
            if known is None and sequence != 0:
                return UNKNOWN_PRODUCER, -1
            if known is not None and sequence == known[0]:
                return NO_ERROR, known[2]
            if known is not None and sequence != known[1]:
                return OUT_OF_ORDER, -1
        first = self.end
        last = first + _INT32.unpack_from(data, _LAST_DELTA)[0]
        self.batches.append(Stored(first, last, _INT64.pack(first) + data[_INT64.size :]))
        self.producers[producer] = (sequence, sequence + _INT32.unpack_from(data, _COUNT)[0], first)
        return NO_ERROR, first

    def read(self, offset: int, limit: int) -> bytes:
        """Whole batches from the one that holds `offset` on, one at least."""
        at = bisect_left(self.batches, offset, key=lambda batch: batch.last)
        found = bytearray()
        for batch in self.batches[at:]:
            if batch.first in self.unseen:
                continue
            if found and len(found) + len(batch.data) > limit:
                break
            found += batch.data
        return bytes(found)


@dataclass
class FakeMemory:
    """Everything that is lost when the broker loses its memory."""

    topics: dict[str, list[FakePartition]] = field(default_factory=dict)
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each topic."""
    denied: dict[str, set[int]] = field(default_factory=dict)
    """Topic → operations that nobody may carry out on it."""
    rules: dict[str, list[str]] | None = None
    """Topic → who may write to it by the access rules; None: there are no rules."""
    next_producer: int = field(default_factory=lambda: time.monotonic_ns() // 1000)

    def partition(self, topic: str, number: int) -> FakePartition | None:
        partitions = self.topics.get(topic, [])
        return partitions[number] if 0 <= number < len(partitions) else None

    def make(self, topic: str, partitions: int) -> int:
        """Error code."""
        if topic in self.topics:
            return TOPIC_EXISTS
        self.topics[topic] = [FakePartition() for _ in range(max(1, partitions))]
        return NO_ERROR
