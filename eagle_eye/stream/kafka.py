"""The stream of a cluster: topics of Kafka, written by an idempotent producer, read by Fetch requests.

Nothing is connected before the first use, so a process may fork until then. Acknowledged means: by all replicas
that the topic asks for. What a broker forgets nevertheless is sent again by `SpooledWriter` and noticed by `Tailer`.
"""

import logging
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import KafkaConfig
from eagle_eye.errors import StreamError, StreamUnavailable
from eagle_eye.stream import Message, Position
from eagle_eye.stream.partitioner import MAX_RECORD_BYTES, check_size, check_topic, partition_of

from .kafka_connection import EARLIEST, LATEST, KafkaConnection, KafkaConnectionPool
from .kafka_errors import TopicGone
from .kafka_producer import OutgoingRecord, Producer
from .kafka_settings import client_options

BATCH_ROOM = 1 << 20
FETCH_BYTES = 8 << 20
FETCH_BYTES_A_RECORD = 8 << 10
"""Asked for at once, for each record that may be returned: to look at one record is not to read eight MiB."""
LONGEST_WAIT_S = 5.0
"""Of one Fetch; a longer wait asks again."""
TOPIC_READY_S = 5.0
HOLE_PAUSES_S = (0.002, 0.01, 0.05, 0.25)
"""Tansu may show a batch before the one that precedes it: a hole is looked at again before it is believed."""
POLL_S = 0.02
TIMESTAMP_TYPE, APPEND_TIME = "message.timestamp.type", "LogAppendTime"
"""Of a topic: by the broker's clock; a writer's own may be anything."""


class _Ahead(NamedTuple):
    """What the last Fetch brought beyond what was asked for."""

    messages: list[Message]
    offsets: list[int]


class KafkaStream:
    """A `Stream` on a Kafka cluster. One per process is enough; it is safe for threads."""

    def __init__(
        self,
        config: KafkaConfig,
        *,
        partitions: int | Mapping[str, int] = 1,
        retention_s: float = 86_400.0,
        max_bytes: int = 8 << 30,
        clock: Clock | None = None,
    ) -> None:
        """Connects at the first use. Raises ConfigError for what cannot be right.

        partitions: of a topic that does not exist yet (by name, or for all); an existing one keeps its own.
        retention_s, max_bytes: of each partition of a topic that is made.
        """
        _quieten()
        self._config = config
        self._wanted = partitions
        self._settings = {
            "retention.ms": str(int(retention_s * 1000)),
            "retention.bytes": str(max_bytes),
            "max.message.bytes": str(MAX_RECORD_BYTES + BATCH_ROOM),
            "cleanup.policy": "delete",
            TIMESTAMP_TYPE: APPEND_TIME,
        }
        options = client_options(config)
        clock = clock or SystemClock()
        self._clock = clock
        self._connections = KafkaConnectionPool(config, options, clock)
        self._producer = Producer(
            options, config.brokers, compression=config.compression, timeout_s=config.timeout_s,
            largest=MAX_RECORD_BYTES + BATCH_ROOM, clock=clock,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._ahead: dict[tuple[str, int], _Ahead] = {}

    # --- the records -------------------------------------------------------------------------------------------

    def append(self, topic: str, items: Sequence[tuple[str, bytes]]) -> list[Position]:
        """Append (key, value) pairs in order of each key; returns once the brokers have them."""
        for key, value in items:
            check_size(topic, key, value)
        records = [OutgoingRecord(topic, self.partition_of(topic, key), key, value) for key, value in items]
        if not records:
            return []
        self._connections.check_open()
        try:
            offsets = self._producer.append(records)
        except StreamUnavailable as error:
            self._forget(topic)  # the brokers may have forgotten it: the next append looks, and makes it again
            raise self._connections.why(error) from error
        return [Position(record.partition, offset) for record, offset in zip(records, offsets, strict=True)]

    def read(self, topic: str, partition: int, offset: int, limit: int = 1024) -> list[Message]:
        """Up to `limit` messages from `offset` on; an empty list when there is none yet."""
        self._check_partition(topic, partition)
        ahead = self._take_ahead(topic, partition, offset, limit)
        if ahead:
            return ahead
        messages = self._fetch_from(topic, partition, max(0, offset), min(FETCH_BYTES, limit * FETCH_BYTES_A_RECORD))
        if len(messages) > limit:
            with self._lock:
                self._ahead[topic, partition] = _Ahead(messages, [message.offset for message in messages])
        return messages[:limit]

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; it is made if there is none."""
        count = self._counts.get(topic)
        if count is None:
            check_topic(topic)
            with self._connections.borrow() as connection:
                count = connection.partitions(topic) or self._make(connection, topic)
            self._counts[topic] = count
        return count

    def partition_of(self, topic: str, key: str) -> int:
        """The partition that a key goes to: the same in every process and run."""
        return partition_of(key, self.partitions(topic))

    def begin(self, topic: str, partition: int) -> int:
        """Offset of the oldest message kept."""
        self._check_partition(topic, partition)
        with self._borrow(topic) as connection:
            return connection.offset_at(topic, partition, EARLIEST)

    def end(self, topic: str, partition: int) -> int:
        """Offset that the next message will have at least."""
        self._check_partition(topic, partition)
        with self._borrow(topic) as connection:
            return self._end(connection, topic, partition)

    def wait(self, topic: str, partition: int, offset: int, timeout: float) -> bool:
        """Block until a message at or after `offset` is there, at most `timeout` seconds."""
        self._check_partition(topic, partition)
        deadline = self._clock.monotonic() + timeout
        with self._borrow(topic) as connection:
            while True:
                left = max(0.0, min(LONGEST_WAIT_S, deadline - self._clock.monotonic()))
                found = connection.fetch(topic, partition, offset, bytes_=1, wait_s=left)
                if found.data or (found.outside and self._end(connection, topic, partition) > offset):
                    return True
                if self._clock.monotonic() >= deadline:
                    return False
                if found.outside:
                    self._clock.sleep(POLL_S)

    # --- consumer groups ---------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Remember that a group has done everything before `offset`."""
        self._check_partition(topic, partition)
        with self._borrow(topic) as connection:
            connection.commit(group, topic, partition, offset)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """The group's committed offset, None if it never committed."""
        self._check_partition(topic, partition)
        with self._borrow(topic) as connection:
            return connection.committed(group, topic, partition)

    # --- keeping house -----------------------------------------------------------------------------------------

    @property
    def producers_made(self) -> int:
        """How many producers this process has had: one more for each that was stuck or failed."""
        return self._producer.made

    def oldest_append_s(self) -> float:
        """For how long the oldest append has waited for the brokers; 0 if none does."""
        return self._producer.oldest_age_s()

    def close(self) -> None:
        """Release the connections."""
        try:
            self._connections.close()
        finally:
            self._producer.close()

    def __enter__(self) -> "KafkaStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _borrow(self, topic: str) -> Iterator[KafkaConnection]:
        try:
            with self._connections.borrow() as connection:
                yield connection
        except TopicGone:
            self._forget(topic)
            raise

    # --- topics ------------------------------------------------------------------------------------------------

    def _make(self, connection: KafkaConnection, topic: str) -> int:
        wanted = self._wanted if isinstance(self._wanted, int) else self._wanted.get(topic, 1)
        connection.make_topic(topic, max(1, wanted), self._config.replication, self._settings)
        deadline = self._clock.monotonic() + TOPIC_READY_S
        while not (count := connection.partitions(topic)):
            if self._clock.monotonic() >= deadline:
                raise StreamUnavailable(f"topic {topic} was made, but {self._config.brokers} do not show it yet: try again")
            self._clock.sleep(POLL_S)
        return count

    def _check_partition(self, topic: str, number: int) -> None:
        if not 0 <= number < self.partitions(topic):
            raise StreamError(f"{topic} has no partition {number}: it has {self.partitions(topic)}, counted from 0")

    def _forget(self, topic: str) -> None:
        with self._lock:
            self._counts.pop(topic, None)
            for known in (self._ends, self._ahead):
                for key in [key for key in known if key[0] == topic]:
                    known.pop(key)

    # --- reading -----------------------------------------------------------------------------------------------

    def _fetch_from(self, topic: str, partition: int, offset: int, bytes_: int) -> list[Message]:
        """Everything of one Fetch at or after the offset, up to the first hole; from the begin where the offset is older."""
        for pause_s in HOLE_PAUSES_S:
            offset, data = self._fetch_at(topic, partition, offset, bytes_)
            messages, hole = kafka_messages(topic, partition, offset, data, holes=False)
            if messages or not hole:
                return messages
            self._clock.sleep(pause_s)
        return kafka_messages(topic, partition, offset, data, holes=True)[0]

    def _fetch_at(self, topic: str, partition: int, offset: int, bytes_: int) -> tuple[int, bytes]:
        """(where it begins, batches)."""
        with self._borrow(topic) as connection:
            fetched = connection.fetch(topic, partition, offset, bytes_=bytes_)
            if fetched.outside:
                begin = connection.offset_at(topic, partition, EARLIEST)
                if offset >= begin:
                    return offset, b""  # beyond the end
                offset = begin
                fetched = connection.fetch(topic, partition, offset, bytes_=bytes_)
        if not fetched.outside:
            self._ends[topic, partition] = fetched.end
        return offset, fetched.data

    def _end(self, connection: KafkaConnection, topic: str, partition: int) -> int:
        """The end that a Fetch reports: ListOffsets is only asked for a place from which one can be made."""
        known = self._ends.get((topic, partition))
        for offset in (known, None):
            place = connection.offset_at(topic, partition, LATEST) if offset is None else offset
            fetched = connection.fetch(topic, partition, place, bytes_=1)
            if not fetched.outside:
                self._ends[topic, partition] = fetched.end
                return fetched.end
        return place

    def _take_ahead(self, topic: str, partition: int, offset: int, limit: int) -> list[Message]:
        with self._lock:
            ahead = self._ahead.get((topic, partition))
            if ahead is None:
                return []
            at = bisect_left(ahead.offsets, offset)
            if at == len(ahead.offsets) or ahead.offsets[at] != offset or at + 1 == len(ahead.offsets):
                del self._ahead[topic, partition]
                return []
            return ahead.messages[at : at + limit]


def _quieten() -> None:
    """kafka-python logs every attempt of an outage as an error; ours are logged once. A level that was set before is kept."""
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)


def kafka_messages(topic: str, partition: int, offset: int, data: bytes, *, holes: bool) -> tuple[list[Message], bool]:
    """(messages from the offset on, whether they end at a hole); with `holes` they go on behind it.

    What a transaction says about itself is left out.
    """
    from kafka.record import MemoryRecords

    found: list[Message] = []
    following = offset
    for batch in MemoryRecords(data):
        if batch.base_offset > following and not holes:
            return found, True
        following = batch.next_offset
        if batch.is_control_batch:
            continue
        for record in batch:
            if record.offset >= offset:
                key = (record.key or b"").decode("utf-8", "replace")
                value = bytes(record.value or b"")
                found.append(Message(topic, partition, record.offset, key, value, record.timestamp / 1000))
    return found, False
