"""One partition's records → files, window by window.

Where a file is cut follows from the records alone: a window is over with the first record of a later one. So whoever
begins again at a cut makes the same files under the same names, and a crash, or two writers at once, neither loses nor
doubles a row. Nothing is said to be done before it is durable.
"""

import contextlib
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa

from eagle_eye import wire
from eagle_eye.digests import digest_of
from eagle_eye.errors import HistoryError, WireError
from eagle_eye.identity import Seen
from eagle_eye.stream import Message
from eagle_eye.types import SchemaRecord

from .counts import WriterCounts
from .files import HistoryFile, table_of, window_of
from .place import Place
from .tables import Blocks, Origin, TableFile

CHUNK_BYTES = 64 << 20
"""Of numbers that are held in memory before they are written into the files of the window."""
BOOTS_KEPT = 8
SENDERS_KEPT = 200_000


@dataclass(slots=True)
class _Window:
    """What has come in one window."""

    begin: float
    end: float
    first: int
    """Offset of its first record."""
    last: int
    files: dict[str, TableFile] = field(default_factory=dict)


class _Sender:
    """One node of one job: which of its batches have come, and those that are not written yet."""

    __slots__ = ("_boot", "_seen", "_writers", "batches", "job", "node")

    def __init__(self, job: str, node: str) -> None:
        self.job = job
        self.node = node
        self.batches: list[wire.SealedBatch] = []
        self._boot = ""
        self._seen = Seen()
        self._writers: OrderedDict[str, Seen] = OrderedDict()

    def first_time(self, boot: str, number: int) -> bool:
        """At least once becomes once."""
        if boot != self._boot:
            self._seen = self._writers.setdefault(boot, Seen())
            self._boot = boot
            if len(self._writers) > BOOTS_KEPT:
                self._writers.popitem(last=False)
        return self._seen.first_time(number)

    def take(self) -> Iterator[tuple[wire.Shape, list[wire.SealedBatch]]]:
        """Its batches, neighbours of one shape together; they are no longer here then."""
        batches, self.batches = self.batches, []
        for _, run in groupby(batches, key=_identity_of_shape):
            alike = list(run)
            yield alike[0].shape, alike


class PartitionWriter:
    """Writes one partition. Not for several threads."""

    def __init__(self, place: Place, partition: int, *, file_s: float, chunk_bytes: int = CHUNK_BYTES) -> None:
        """`file_s`: seconds of the stream's time in one file."""
        self.counts = WriterCounts()
        self._place = place
        self._partition = partition
        self._file_s = file_s
        self._chunk_bytes = chunk_bytes
        self._reader = wire.Reader()
        self._schemas = wire.Schemas()
        self._senders: dict[tuple[str, str], _Sender] = {}
        self._bytes = 0
        self._window: _Window | None = None

    def warm(self, messages: Iterable[Message]) -> None:
        """Learn schemas, and which batches were written before, from the records before the first that is taken."""
        for message in messages:
            record = self._read(message)
            if isinstance(record, SchemaRecord):
                self._schemas.add(record)
            elif record is not None:
                self._sender_of(record.header).first_time(record.header.boot, record.header.number)

    def take(self, messages: Sequence[Message]) -> int | None:
        """Take the next records; the offset up to which everything is durable, if that has moved on.

        Raises HistoryError; begin again at the last such offset with a new writer then.
        """
        done = None
        for message in messages:
            window = self._window
            if window is None:
                window = self._window = self._begin(message)
            elif message.time >= window.end:
                self._close(window)
                done = message.offset
                window = self._window = self._begin(message)
            window.last = message.offset
            record = self._read(message)
            if isinstance(record, wire.SealedBatch):
                sender = self._sender_of(record.header)
                if sender.first_time(record.header.boot, record.header.number):
                    sender.batches.append(record)
                    self._bytes += len(record.payload)
                    if self._bytes >= self._chunk_bytes:
                        self._flush(window)
            elif record is not None:
                self._schemas.add(record)
        return done

    def abandon(self) -> None:
        """Forget the window that is not over: whoever comes next reads it again."""
        window, self._window = self._window, None
        self._senders.clear()
        self._bytes = 0
        for file in window.files.values() if window is not None else ():
            with contextlib.suppress(OSError, pa.ArrowException):
                file.close()
            file.path.unlink(missing_ok=True)

    # --- records ---------------------------------------------------------------------------------------------------

    def _begin(self, message: Message) -> _Window:
        begin = window_of(message.time, self._file_s)
        return _Window(begin, begin + self._file_s, message.offset, message.offset)

    def _read(self, message: Message) -> wire.SealedBatch | SchemaRecord | None:
        """Other records, and what cannot be read, are not for the history: the runner tells of them."""
        try:
            record = self._reader.read(message.value)
        except WireError:
            return None
        return record if isinstance(record, wire.SealedBatch | SchemaRecord) else None

    def _sender_of(self, header: wire.BatchHeader) -> _Sender:
        key = (header.job, header.node)
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = _Sender(*key)
        return sender

    # --- files -----------------------------------------------------------------------------------------------------

    def _flush(self, window: _Window) -> None:
        """Batches in memory become row groups of the window's files."""
        self._bytes = 0
        for schema_id, blocks in sorted(self._by_schema().items()):
            file = window.files.get(schema_id)
            if file is None:
                path = self._place.new(f"p{self._partition}-{window.first}-{digest_of(schema_id)}.parquet")
                file = window.files[schema_id] = TableFile(path, self._schemas.get(schema_id))
            try:
                file.write(blocks)
            except (OSError, pa.ArrowException) as error:
                raise HistoryError(f"{file.path} cannot be written: {error}") from error

    def _by_schema(self) -> dict[str, Blocks]:
        """Schema id → the blocks that wait, job by job and node by node."""
        found: dict[str, Blocks] = defaultdict(Blocks)
        while len(self._senders) > SENDERS_KEPT:
            del self._senders[next(key for key, sender in self._senders.items() if not sender.batches)]
        for sender in sorted((each for each in self._senders.values() if each.batches), key=_job_and_node):
            for shape, batches in sender.take():
                for place, (block, begin, end) in enumerate(shape.readings):
                    if self._known(block, len(batches)):
                        origin = Origin(sender.job, sender.node, block.entities)
                        times = [batch.header.times[place] for batch in batches]
                        data = [batch.payload[batch.begin + begin : batch.begin + end] for batch in batches]
                        found[block.schema_id].add(origin, times, data)
                if shape.steps:
                    self._add_steps(sender, batches, found)
        return found

    def _add_steps(self, sender: _Sender, batches: list[wire.SealedBatch], found: dict[str, Blocks]) -> None:
        for batch in batches:
            for block, rows, data in batch.step_blocks():
                if rows and self._known(block, 1):
                    found[block.schema_id].add(Origin(sender.job, sender.node, block.entities), [0.0], [data], rows)

    def _known(self, block: wire.BlockShape, count: int) -> bool:
        """False, and counted, where nobody knows the schema (its record was lost with the stream's beginning), or it does not fit."""
        try:
            wire.schema_for(block, self._schemas)
        except WireError:
            self.counts.skipped += count
            return False
        return bool(block.entities)

    def _close(self, window: _Window) -> None:
        """Finish the files of a window and put them where readers find them."""
        self._flush(window)
        for file, table_file in self._finished(window):
            self.counts.bytes += self._place.put(table_file.path, file)
            self.counts.rows += table_file.rows
            self.counts.files += 1

    def _finished(self, window: _Window) -> Iterator[tuple[HistoryFile, TableFile]]:
        for schema_id, table_file in sorted(window.files.items()):
            try:
                table_file.close()
            except (OSError, pa.ArrowException) as error:
                raise HistoryError(f"{table_file.path} cannot be written: {error}") from error
            if not table_file.rows:
                continue
            file = HistoryFile(
                table=table_of(table_file.schema), window=int(window.begin), partition=self._partition, first=window.first,
                last=window.last, earliest=max(0, int(table_file.earliest)), latest=max(0, int(table_file.latest)), schema=schema_id[:8],
            )  # fmt: skip
            yield file, table_file


def _job_and_node(sender: _Sender) -> tuple[str, str]:
    return sender.job, sender.node


def _identity_of_shape(batch: wire.SealedBatch) -> int:
    return id(batch.shape)
