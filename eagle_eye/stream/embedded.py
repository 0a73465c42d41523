"""The stream of one machine: no server, a directory that its processes share.

    <directory>/groups.sqlite                 consumer groups, committed offsets, topics
    <directory>/<topic>/<partition>-0.sqlite  the records of a partition (a torn file begins the next number)

Acknowledged means: survives kill -9 of any process. What survives a power cut is what was fsynced:
everything older than `fsync_interval_s`. Make a stream after a fork, never before it.
"""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.errors import StreamError
from eagle_eye.stream import Message, Position
from eagle_eye.stream.committed_offsets import CommittedOffsets
from eagle_eye.stream.partition import Partition, PartitionLimits
from eagle_eye.stream.partitioner import check_size, check_topic, partition_of

POLL_S = 0.002
"""How often a waiting reader looks: 8 µs each time."""
_log = logging.getLogger(__name__)


class EmbeddedStream:
    """A `Stream` on the local disk. One per process is enough; it is safe for threads."""

    def __init__(
        self,
        directory: Path,
        *,
        partitions: int | Mapping[str, int] = 1,
        retention_s: float = 7 * 86_400.0,
        max_bytes: int = 1 << 30,
        fsync_interval_s: float = 1.0,
        busy_s: float = 2.0,
        clock: Clock | None = None,
    ) -> None:
        """Open or make the stream.

        partitions: of a topic that does not exist yet (by name, or for all); an existing one keeps its own.
        max_bytes: of each partition; the oldest records go first, and the newest one stays always.
        fsync_interval_s: 0 = in every append; infinite = leave it to the operating system.
        busy_s: how long an append waits for another process's write lock before it raises StreamUnavailable.
        """
        self._directory = directory
        self._wanted = partitions
        self._interval = fsync_interval_s
        self._clock = clock or SystemClock()
        self._limits = PartitionLimits(retention_s, max_bytes, busy_s, fsync_interval_s == 0)
        self._groups = CommittedOffsets(directory / "groups.sqlite", busy_s, self._clock)
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._open: dict[tuple[str, int], Partition] = {}
        self._stop = threading.Event()
        self._retention_thread: threading.Thread | None = None

    # --- the records -------------------------------------------------------------------------------------------

    def append(self, topic: str, items: Sequence[tuple[str, bytes]]) -> list[Position]:
        """Append (key, value) pairs in order; one transaction per partition that they go to."""
        shares: dict[int, list[tuple[str, bytes]]] = {}
        partitions = []
        for item in items:
            check_size(topic, *item)
            partitions.append(self.partition_of(topic, item[0]))
            shares.setdefault(partitions[-1], []).append(item)
        following = {partition: self._partition(topic, partition).append(share) for partition, share in shares.items()}
        if self._retention_thread is None:
            self._start_retention()
        return _places(partitions, following)

    def read(self, topic: str, partition: int, offset: int, limit: int = 1024) -> list[Message]:
        """Up to `limit` messages from `offset` on; an empty list when there is none yet."""
        return self._partition(topic, partition).read(offset, limit)

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has."""
        count = self._counts.get(topic)
        if count is None:
            check_topic(topic)
            wanted = self._wanted if isinstance(self._wanted, int) else self._wanted.get(topic, 1)
            count = self._counts[topic] = self._groups.partitions(topic, max(1, wanted))
        return count

    def partition_of(self, topic: str, key: str) -> int:
        """The partition that a key goes to: the same in every process and run."""
        return partition_of(key, self.partitions(topic))

    def begin(self, topic: str, partition: int) -> int:
        """Offset of the oldest message kept."""
        return self._partition(topic, partition).begin()

    def end(self, topic: str, partition: int) -> int:
        """Offset that the next message will have at least."""
        return self._partition(topic, partition).end()

    def wait(self, topic: str, partition: int, offset: int, timeout: float) -> bool:
        """Block until a message at or after `offset` is there, at most `timeout` seconds."""
        records = self._partition(topic, partition)
        deadline = self._clock.monotonic() + timeout
        while not records.has(offset):
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(POLL_S)
        return True

    # --- consumer groups ---------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Remember that a group has done everything before `offset`."""
        self._groups.commit(group, topic, partition, offset)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """The group's committed offset, None if it never committed."""
        return self._groups.committed(group, topic, partition)

    # --- keeping house -----------------------------------------------------------------------------------------

    def trim(self) -> int:
        """Remove what is older than the retention or beyond max_bytes, in every topic; returns how many records."""
        return sum(
            self._partition(topic, number).trim()
            for topic, count in self._groups.topics().items()
            for number in range(count)
        )

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the write locks of all partitions of all topics that exist: appends everywhere get StreamUnavailable, reads still answer.

        The outage drill stops the stream with it; the locks end with this process, however it ends.
        """
        with ExitStack() as held:
            for topic, count in self._groups.topics().items():
                for number in range(count):
                    held.enter_context(self._partition(topic, number).hold())
            yield

    def close(self) -> None:
        """Write everything through and release the files."""
        self._stop.set()
        if self._retention_thread is not None:
            self._retention_thread.join()
        with self._lock:
            for records in self._open.values():
                records.sync()
                records.close()
            self._groups.close()

    def __enter__(self) -> "EmbeddedStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_retention(self) -> None:
        with self._lock:
            if self._retention_thread is None and not self._stop.is_set():
                self._retention_thread = threading.Thread(target=self._run_retention, name="stream-retention", daemon=True)
                self._retention_thread.start()

    def _run_retention(self) -> None:
        """fsync and retention for the partitions that this process uses, beside its appends and never in them."""
        sync = 0 < self._interval < float("inf")
        while not self._stop.wait(self._interval if sync else 1.0):
            with self._lock:
                records = list(self._open.values())
            for partition in records:
                try:
                    if sync:
                        partition.sync()
                    partition.trim()
                except (StreamError, OSError) as error:
                    _log.warning("keeping %s/%d in order: %s", partition.topic, partition.number, error)

    def _partition(self, topic: str, number: int) -> Partition:
        records = self._open.get((topic, number))
        return records if records is not None else self._open_partition(topic, number)

    def _open_partition(self, topic: str, number: int) -> Partition:
        if not 0 <= number < self.partitions(topic):
            raise StreamError(f"{topic} has no partition {number}: it has {self.partitions(topic)}, counted from 0")
        with self._lock:
            records = self._open.get((topic, number))
            if records is None:
                if self._stop.is_set():
                    raise StreamError(f"the stream in {self._directory} was closed in this process; make a new one")
                records = Partition(topic, self._directory / topic, number, self._limits, self._clock)
                self._open[topic, number] = records
        error, records.opening_error = records.opening_error, None
        if error is not None:
            raise error
        return records


def _places(partitions: Sequence[int], following: dict[int, int]) -> list[Position]:
    """Where each record lies: `following` holds the offset of the first record of each partition."""
    places = []
    for partition in partitions:
        places.append(Position(partition, following[partition]))
        following[partition] += 1
    return places
