"""A stream in the memory of one process: for tests, and for replays, which may leave nothing behind.

Several `MemoryStream`s over one `MemoryLog` are what several openings of one directory are to the embedded stream.
"""

import threading
from collections.abc import Sequence

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.errors import StreamError, StreamUnavailable
from eagle_eye.stream import Message, Position
from eagle_eye.stream.partitioner import check_size, check_topic, partition_of


class MemoryLog:
    """The records and commits that its streams share."""

    def __init__(self, partitions: int = 1, clock: Clock | None = None) -> None:
        self.partitions = partitions
        self.clock = clock or SystemClock()
        self.changed = threading.Condition()
        self.topics: dict[str, list[list[Message]]] = {}
        self.committed: dict[tuple[str, str, int], int] = {}


class MemoryStream:
    """A `Stream`. Set `away` and it answers with StreamUnavailable, as a broker does that cannot be reached."""

    def __init__(self, log: MemoryLog | None = None, *, partitions: int = 1, clock: Clock | None = None) -> None:
        self._log = log or MemoryLog(partitions, clock)
        self._closed = False
        self.away = False

    # --- the records -------------------------------------------------------------------------------------------

    def append(self, topic: str, items: Sequence[tuple[str, bytes]]) -> list[Position]:
        """Append (key, value) pairs in order."""
        places = []
        for key, value in items:
            check_size(topic, key, value)
        with self._log.changed:
            logs = self._topic(topic)
            for key, value in items:
                number = self.partition_of(topic, key)
                message = Message(topic, number, len(logs[number]), key, bytes(value), self._log.clock.now())
                logs[number].append(message)
                places.append(Position(number, message.offset))
            self._log.changed.notify_all()
        return places

    def read(self, topic: str, partition: int, offset: int, limit: int = 1024) -> list[Message]:
        """Up to `limit` messages from `offset` on; an empty list when there is none yet."""
        with self._log.changed:
            return self._partition(topic, partition)[max(0, offset) : max(0, offset) + limit]

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has."""
        with self._log.changed:
            return len(self._topic(topic))

    def partition_of(self, topic: str, key: str) -> int:
        """The partition that a key goes to."""
        return partition_of(key, self.partitions(topic))

    def begin(self, topic: str, partition: int) -> int:
        """Offset of the oldest message: nothing is ever removed."""
        self.end(topic, partition)
        return 0

    def end(self, topic: str, partition: int) -> int:
        """Offset that the next message will have."""
        with self._log.changed:
            return len(self._partition(topic, partition))

    def wait(self, topic: str, partition: int, offset: int, timeout: float) -> bool:
        """Block until a message at or after `offset` is there, at most `timeout` seconds."""
        with self._log.changed:
            return self._log.changed.wait_for(lambda: len(self._partition(topic, partition)) > offset, timeout)

    # --- consumer groups ---------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Remember that a group has done everything before `offset`."""
        with self._log.changed:
            self._answering()
            self._log.committed[group, topic, partition] = offset

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """The group's committed offset, None if it never committed."""
        with self._log.changed:
            self._answering()
            return self._log.committed.get((group, topic, partition))

    def close(self) -> None:
        """No more of this one; the log stays for the others."""
        self._closed = True

    # --- inside, with the lock held ----------------------------------------------------------------------------

    def _answering(self) -> None:
        if self._closed:
            raise StreamError("the stream was closed; make a new one")
        if self.away:
            raise StreamUnavailable("the stream does not answer")

    def _topic(self, topic: str) -> list[list[Message]]:
        self._answering()
        if topic not in self._log.topics:
            check_topic(topic)
            self._log.topics[topic] = [[] for _ in range(self._log.partitions)]
        return self._log.topics[topic]

    def _partition(self, topic: str, number: int) -> list[Message]:
        logs = self._topic(topic)
        if not 0 <= number < len(logs):
            raise StreamError(f"{topic} has no partition {number}: it has {len(logs)}, counted from 0")
        return logs[number]
