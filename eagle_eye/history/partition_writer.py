"""One partition's records → files, window by window.

Where a file is cut follows from the records alone: a window is over with the first record of a later one. So an owner that
begins again at a cut makes the same files under the same names, and a crash, or two writers at once, neither loses nor
doubles a row. Nothing is reported as done before it is durable.
"""

import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from statistics import median
from typing import NamedTuple

import pyarrow as pa

from eagle_eye import wire
from eagle_eye.deduplication import SeenNumbers
from eagle_eye.errors import HistoryError, WireError
from eagle_eye.record_writer import read_record
from eagle_eye.stream import Message
from eagle_eye.types import SchemaRecord, digest_of
from eagle_eye.types.entity import LATEST

from .file_names import HistoryFile, table_of, window_of
from .history_metrics import WriterCounts
from .object_store import ObjectStore
from .parquet_tables import Blocks, Origin, TableFile

CHUNK_BYTES = 64 << 20
"""Of numbers that are held in memory before they are written into the files of the window."""
INCARNATIONS_KEPT = 8
SENDERS_KEPT = 200_000
ORIGINS_KEPT = 1_000_000
SCHEMAS_KEPT = 4096
CLOCK_RECORDS = 15
"""A jump of the stream's time is believed when most of so many last records have made it."""
CLOCK_JUMP_S = 600.0
"""What is further from most of the last records is a jump."""
log = logging.getLogger(__name__)


class StreamClock:
    """The time of a stream, by its records: a writer's clock may be hours or years off, and must not move it alone.

    Depends on the records alone: whoever has seen the last CLOCK_RECORDS of them reads the same time.
    """

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=CLOCK_RECORDS)

    def see(self, time: float) -> float:
        """The time of the stream with its next record, seconds since 1970."""
        self._times.append(time)
        usual = median(self._times)
        believed = time if abs(time - usual) <= CLOCK_JUMP_S else usual
        return min(max(believed, 0.0), LATEST)


@dataclass(slots=True)
class _Window:
    """What has come in one window."""

    begin: float
    end: float
    first: int
    """Offset of its first record."""
    last: int
    files: dict[str, TableFile] = field(default_factory=dict)


class _Part(NamedTuple):
    """Where one block of a shape goes."""

    blocks: Blocks
    """Of its schema."""
    origin: int
    begin: int
    end: int
    """Of readings: within the body of the batch."""


class _Sender:
    """One node of one job: which of its batches have come, and what its newest shape means."""

    __slots__ = ("_incarnation", "_seen", "_writers", "readings", "shape", "steps")

    def __init__(self) -> None:
        self.shape: wire.Shape | None = None
        self.readings: tuple[_Part, ...] = ()
        self.steps: tuple[_Part, ...] = ()
        self._incarnation = ""
        self._seen = SeenNumbers()
        self._writers: OrderedDict[str, SeenNumbers] = OrderedDict()

    def first_time(self, incarnation: str, number: int) -> bool:
        """At least once becomes once."""
        if incarnation != self._incarnation:
            self._seen = self._writers.setdefault(incarnation, SeenNumbers())
            self._incarnation = incarnation
            if len(self._writers) > INCARNATIONS_KEPT:
                self._writers.popitem(last=False)
        return self._seen.first_time(number)


class PartitionWriter:
    """Writes one partition. Not for several threads."""

    def __init__(self, place: ObjectStore, partition: int, *, file_s: float, chunk_bytes: int = CHUNK_BYTES) -> None:
        """`file_s`: seconds of the stream's time in one file."""
        self.counts = WriterCounts()
        self._place = place
        self._partition = partition
        self._file_s = file_s
        self._chunk_bytes = chunk_bytes
        self._reader = wire.RecordReader()
        self._schemas = wire.Schemas()
        self._senders: dict[tuple[str, str], _Sender] = {}
        self._origins: list[Origin] = []
        self._blocks: dict[tuple[str, int, bool], Blocks] = {}
        """(schema id, number of names, whether of steps) → what is not written yet."""
        self._bytes = 0
        self._clock = StreamClock()
        self._window: _Window | None = None

    def warm(self, messages: Iterable[Message]) -> None:
        """Learn schemas, and which batches were written before, from the records before the first that is taken."""
        for message in messages:
            self._clock.see(message.time)
            record = self._read(message)
            if isinstance(record, SchemaRecord):
                self._learn(record)
            elif record is not None:
                self._sender_of(record.header).first_time(record.header.incarnation, record.header.number)

    def take(self, messages: Sequence[Message]) -> int | None:
        """Take the next records; the offset up to which everything is durable, if that has moved on.

        Raises HistoryError; begin again at the last such offset with a new writer then.
        """
        done = None
        for message in messages:
            window = self._window
            now = self._clock.see(message.time)
            if window is None:
                window = self._window = self._begin(message, now)
            elif now >= window.end:
                self._close(window)
                done = message.offset
                window = self._window = self._begin(message, now)
            window.last = message.offset
            record = self._read(message)
            if isinstance(record, wire.SealedBatch):
                sender = self._sender_of(record.header)
                if sender.first_time(record.header.incarnation, record.header.number):
                    self._add(sender, record)
                    if self._bytes >= self._chunk_bytes:
                        self._flush(window)
            elif record is not None:
                self._learn(record)
        return done

    def abandon(self) -> None:
        """Forget the window that is not over: the next owner of the partition reads it again."""
        window, self._window = self._window, None
        self._forget()
        for file in window.files.values() if window is not None else ():
            self._discard(file)

    # --- records ---------------------------------------------------------------------------------------------------

    def _begin(self, message: Message, now: float) -> _Window:
        begin = window_of(now, self._file_s)
        return _Window(begin, begin + self._file_s, message.offset, message.offset)

    def _read(self, message: Message) -> wire.SealedBatch | SchemaRecord | None:
        """Other records, and what cannot be read, are not for the history: the runner reports them."""
        try:
            record = read_record(self._reader, message)
        except WireError:
            return None
        return record if isinstance(record, wire.SealedBatch | SchemaRecord) else None

    def _learn(self, schema: SchemaRecord) -> None:
        with contextlib.suppress(WireError):  # it stands for something else: the runner reports it
            self._schemas.add(schema)

    def _sender_of(self, header: wire.BatchHeader) -> _Sender:
        key = (header.job, header.node)
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = _Sender()
        return sender

    def _add(self, sender: _Sender, batch: wire.SealedBatch) -> None:
        """Take the numbers out of a batch, as bytes."""
        payload, at = batch.payload, batch.begin
        if batch.shape is not sender.shape:
            self._resolve(sender, batch)
        for (blocks, origin, begin, end), time in zip(sender.readings, batch.header.times):  # noqa: B905 -- the reader has checked it
            blocks.times.append(time)
            blocks.data.append(payload[at + begin : at + end])
            blocks.origins.append(origin)
        if sender.steps:
            for part, (_, rows, data) in zip(sender.steps, batch.step_blocks(), strict=True):
                if rows and len(data):
                    part.blocks.data.append(data)
                    part.blocks.origins.append(part.origin)
                    part.blocks.steps.append(rows)
        self._bytes += len(payload)

    def _resolve(self, sender: _Sender, batch: wire.SealedBatch) -> None:
        """What the blocks of a shape mean. Blocks without entities have no bytes, and stay without rows."""
        header, shape = batch.header, batch.shape
        sender.shape = shape
        sender.readings = tuple(self._part(header, block, begin, end) for block, begin, end in shape.readings)
        sender.steps = tuple(self._part(header, block) for block in shape.steps)

    def _part(self, header: wire.BatchHeader, block: wire.BlockShape, begin: int = 0, end: int = 0) -> _Part:
        self._origins.append(Origin(header.job, header.node, block.entities))
        blocks = self._blocks.setdefault((block.schema_id, block.width, block.steps), Blocks())
        return _Part(blocks, len(self._origins) - 1, begin, end)

    # --- files -----------------------------------------------------------------------------------------------------

    def _flush(self, window: _Window) -> None:
        """What is in memory becomes row groups of the window's files."""
        for (schema_id, width, steps), blocks in sorted(self._blocks.items(), key=itemgetter(0)):
            schema = self._schemas.get(schema_id) if schema_id in self._schemas else None
            if not blocks.data:
                continue
            if schema is None or (len(schema.names), schema.steps) != (width, steps):
                self.counts.skipped += len(blocks.data)
                continue
            file = window.files.get(schema_id)
            if file is None:
                path = self._place.new(f"p{self._partition}-{window.first}-{digest_of(schema_id)}.parquet")
                file = window.files[schema_id] = TableFile(path, schema)
            try:
                file.write(blocks, self._origins)
            except OSError as error:
                raise HistoryError(f"{file.path} cannot be written: {error}") from error
            except Exception:  # boundary: numbers that cannot be written must not keep all others from being written, and again after each start
                log.exception("history: %d blocks of %s cannot be written and are left out", len(blocks.data), schema.source)
                self.counts.skipped += len(blocks.data)
                self._discard(window.files.pop(schema_id))
        self._empty()

    def _discard(self, file: TableFile) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            file.close()
        file.path.unlink(missing_ok=True)

    def _empty(self) -> None:
        """Nothing waits any more; what was learned stays, unless it has become too much."""
        self._bytes = 0
        for blocks in self._blocks.values():
            for values in (blocks.times, blocks.data, blocks.origins, blocks.steps):
                values.clear()
        if len(self._origins) > ORIGINS_KEPT or len(self._blocks) > SCHEMAS_KEPT:
            self._origins, self._blocks = [], {}
            for sender in self._senders.values():
                sender.shape = None
        while len(self._senders) > SENDERS_KEPT:
            del self._senders[next(iter(self._senders))]

    def _forget(self) -> None:
        self._senders, self._origins, self._blocks, self._bytes = {}, [], {}, 0

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
                last=window.last, earliest=max(0, int(table_file.earliest)), latest=max(0, int(table_file.latest)), schema=digest_of(schema_id)[:8],
            )  # fmt: skip
            yield file, table_file
