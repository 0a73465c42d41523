"""A stream in memory that keeps the newest records alone, as a stream with a retention does: what it holds must not look like a leak."""

from collections import deque
from collections.abc import Sequence

from eagle_eye.clock import Clock
from eagle_eye.errors import StreamError
from eagle_eye.stream import Message, Position
from eagle_eye.stream.partitioner import check_size, check_topic, partition_of

KEPT = 20_000
KEPT_BYTES = 32 << 20


class RollingStream:
    """A `Stream` of one partition a topic. For one thread."""

    def __init__(self, clock: Clock, kept: int = KEPT) -> None:
        """`kept`: records of each topic, at the most."""
        self._clock, self._kept = clock, kept
        self._topics: dict[str, deque[Message]] = {}
        self._bytes: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._committed: dict[tuple[str, str, int], int] = {}

    def append(self, topic: str, items: Sequence[tuple[str, bytes]]) -> list[Position]:
        """As every stream; the oldest records beyond those that are kept are forgotten."""
        for key, value in items:
            check_size(topic, key, value)
        return [self.put(topic, key, value, self._clock.now()) for key, value in items]

    def put(self, topic: str, key: str, value: bytes, time: float) -> Position:
        """Append one record as if it had been written at that time."""
        log, offset = self._log(topic), self._ends[topic]
        log.append(Message(topic, 0, offset, key, value, time))
        self._ends[topic] = offset + 1
        self._bytes[topic] += len(value)
        while len(log) > self._kept or (self._bytes[topic] > KEPT_BYTES and len(log) > 1):
            self._bytes[topic] -= len(log.popleft().value)
        return Position(0, offset)

    def read(self, topic: str, partition: int, offset: int, limit: int = 1024) -> list[Message]:
        """Up to so many from an offset on, as far as they are kept."""
        log = self._log(topic, partition)
        first = max(0, offset - self.begin(topic, partition))
        return [log[place] for place in range(first, min(len(log), first + limit))]

    def partitions(self, topic: str) -> int:
        """One."""
        check_topic(topic)
        return 1

    def partition_of(self, topic: str, key: str) -> int:
        """That one; a key that cannot be sent is no key."""
        return partition_of(key, self.partitions(topic))

    def begin(self, topic: str, partition: int) -> int:
        """Offset of the oldest that is kept."""
        log = self._log(topic, partition)
        return log[0].offset if log else self._ends[topic]

    def end(self, topic: str, partition: int) -> int:
        """Offset of the next one."""
        self._log(topic, partition)
        return self._ends[topic]

    def wait(self, topic: str, partition: int, offset: int, timeout: float) -> bool:
        """Nobody else writes: there is nothing to wait for."""
        return timeout >= 0.0 and self.end(topic, partition) > offset

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Remember an offset."""
        self._committed[group, topic, partition] = offset

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """What was remembered last."""
        return self._committed.get((group, topic, partition))

    def close(self) -> None:
        """Nothing to release."""

    def _log(self, topic: str, partition: int = 0) -> deque[Message]:
        if partition:
            raise StreamError(f"{topic} has no partition {partition}")
        if topic not in self._topics:
            check_topic(topic)
            self._topics[topic], self._bytes[topic], self._ends[topic] = deque(), 0, 0
        return self._topics[topic]
