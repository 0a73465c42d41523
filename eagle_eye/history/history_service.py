"""The history of one partition, as long as this process owns it: a thread that reads, writes, commits and tidies up.

It is a consumer group of its own: the stream remembers how far the files go. While the place cannot be written, the
stream keeps what is missing.
"""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from eagle_eye.clock import Clock
from eagle_eye.config import HistoryConfig
from eagle_eye.errors import EagleEyeError, HistoryError, StreamUnavailable
from eagle_eye.stream import OBSERVATIONS, Stream
from eagle_eye.stream.start_offset import offset_before, resume_at
from eagle_eye.stream.tailer import Tailer
from eagle_eye.types import Notice

from .history_metrics import PartitionHistoryMetrics, WriterCounts

if TYPE_CHECKING:  # pyarrow takes a second to load: that is done in the thread, so that no caller waits for it
    from .compaction import Compactor
    from .object_store import ObjectStore
    from .partition_writer import PartitionWriter

HISTORY_GROUP = "eagle-eye.history"
WARM_S = 600.0
"""Of records before the first that is written: schemas, and batches that may come again."""
READ_LIMIT = 4096
WAIT_S = 0.5
RETRY_S = 5.0
TEND_S = 60.0
RETAIN_S = 600.0
JOIN_S = 3.0
"""Not more: the next owner may write the same files at the same time."""
log = logging.getLogger(__name__)


class HistoryService:
    """Writes the history of one partition. `start` and `stop` once each."""

    def __init__(
        self, stream: Stream, partition: int, place: "Callable[[], ObjectStore]", config: HistoryConfig, *, clock: Clock,
        on_notice: Callable[[Notice], None],
    ) -> None:
        """`place` is asked in the thread. The owner of partition 0 also removes what is too old, of all partitions."""
        self._stream = stream
        self._partition = partition
        self._open = place
        self._config = config
        self._clock = clock
        self._on_notice = on_notice
        self._tend_at = self._retain_at = clock.monotonic() + TEND_S
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"history-{partition}", daemon=True)
        self._before, self._counts = WriterCounts(), WriterCounts()
        """Of the writers before, and of the present one."""
        self._failures = 0
        self._failing = False
        self._behind_s = 0.0

    def start(self) -> None:
        """Begin where the files end."""
        self._thread.start()

    def stop(self) -> None:
        """End; the window that is not over is read again by the next owner."""
        self._stop.set()
        self._thread.join(JOIN_S)

    @property
    def figures(self) -> PartitionHistoryMetrics:
        """So far."""
        counts = self._before + self._counts
        return PartitionHistoryMetrics(
            partition=self._partition, files=counts.files, rows=counts.rows, bytes=counts.bytes, skipped=counts.skipped,
            failures=self._failures, behind_s=self._behind_s,
        )  # fmt: skip

    # --- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._write()
            except StreamUnavailable as error:
                log.info("the history waits for the stream: %s", error)
            except EagleEyeError as error:
                self._failed(error)
            except Exception as error:  # boundary: a history that ends in silence would be missed weeks later
                log.exception("the history of partition %d failed", self._partition)
                self._failed(error)
            self._stop.wait(RETRY_S)

    def _write(self) -> None:
        """Run until it is stopped, or until the stream was reset. Raises EagleEyeError; what is not durable then is read again."""
        from .compaction import Compactor
        from .partition_writer import PartitionWriter

        place = self._open()
        writer = PartitionWriter(place, self._partition, file_s=self._config.file_s)
        self._before, self._counts = self._before + self._counts, writer.counts
        try:
            self._follow(writer, Compactor(place, self._config, self._clock))
        finally:
            writer.abandon()

    def _follow(self, writer: "PartitionWriter", compactor: "Compactor") -> None:
        """From where the files end."""
        offset = resume_at(self._stream, HISTORY_GROUP, OBSERVATIONS, self._partition)
        self._warm(writer, offset)
        follower = Tailer(self._stream, OBSERVATIONS, self._partition, offset)
        while not self._stop.is_set():
            messages = follower.read(READ_LIMIT)
            if messages is None:
                log.warning("the stream of partition %d was reset: the history starts again at its beginning", self._partition)
                self._stream.commit(HISTORY_GROUP, OBSERVATIONS, self._partition, follower.offset)
                return
            done = writer.take(messages)
            if done is not None:
                self._stream.commit(HISTORY_GROUP, OBSERVATIONS, self._partition, done)
                self._behind_s = max(0.0, self._clock.now() - messages[-1].time)
                self._well()
            if not messages:
                follower.wait(WAIT_S)
            self._compact(compactor)

    def _warm(self, writer: "PartitionWriter", offset: int) -> None:
        """What the writer has to know of the records before."""
        begin = offset_before(self._stream, OBSERVATIONS, self._partition, offset, WARM_S)
        while begin < offset and not self._stop.is_set():
            messages = self._stream.read(OBSERVATIONS, self._partition, begin, READ_LIMIT)
            if not messages:
                return
            writer.warm(message for message in messages if message.offset < offset)
            begin = messages[-1].offset + 1

    def _compact(self, compactor: "Compactor") -> None:
        now = self._clock.monotonic()
        if now >= self._tend_at:
            self._tend_at = now + TEND_S
            compactor.compact(self._partition)
        if now >= self._retain_at and self._partition == 0:
            self._retain_at = now + RETAIN_S
            compactor.retain()

    # --- what may go wrong -----------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if not self._failing:
            self._failing = True
            lost = "" if isinstance(error, HistoryError) else f"{type(error).__name__}: "
            self._tell("history.failing", f"partition {self._partition}: {lost}{error}; the stream keeps what is missing")

    def _well(self) -> None:
        if self._failing:
            self._failing = False
            self._tell("history.recovered", f"partition {self._partition} is written again")

    def _tell(self, name: str, message: str) -> None:
        log.warning("%s: %s", name, message)
        self._on_notice(Notice(name=name, time=self._clock.now(), message=message))
