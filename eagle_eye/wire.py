"""Records on the wire: bytes ↔ the nouns of the topic of observations. The format is described in docs/wire.md.

Every record is a prefix of four bytes (magic, schema version, kind of record) and a body. The body of a batch is a
small msgpack header and raw little-endian blocks, of every other record one msgpack map. Nothing that came over a
wire is evaluated or unpickled; what is no record of ours raises WireError, naming what is wrong with it.

>>> schemas = Schemas()
>>> change = ConfigChange(digest="d1", text="[server]")
>>> decode(encode(change), schemas) == change
True
"""

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from .errors import UNREADABLE, NewerVersion, RecordRefused, WireError
from .stream import refusal
from .types import (
    SCHEMA,
    Baseline,
    Batch,
    Block,
    ConfigChange,
    Event,
    Kind,
    Layout,
    Mark,
    Reading,
    Record,
    SchemaRecord,
    StepReading,
    Time,
    digest_of,
)
from .types.entity import Uptime
from .writable_text import writable

MAGIC = b"EE"
_PREFIX = struct.Struct("<2sBB")
_LENGTH = struct.Struct("<I")
_HEADER_AT = _PREFIX.size + _LENGTH.size

_BATCH = 1
OTHERS: dict[int, type[msgspec.Struct]] = {
    2: Event,
    3: Layout,
    4: SchemaRecord,
    5: Baseline,
    6: ConfigChange,
    7: Mark,
}
"""Fourth byte → what stands behind it, for all that are no batches."""
_CODES = {noun: code for code, noun in OTHERS.items()}
MARK = bytes([_CODES[Mark]])
"""Fourth byte of a mark: a reader may look for marks without decoding the rest."""
_DECODERS: dict[int, Any] = {code: msgspec.msgpack.Decoder(noun) for code, noun in OTHERS.items()}
_ENCODER = msgspec.msgpack.Encoder()
_BATCH_PREFIX = _PREFIX.pack(MAGIC, SCHEMA, _BATCH)
"""Of nearly all records."""

SCHEMAS_KEPT = 16_384
SCHEMA_BYTES_KEPT = 16 << 20
"""Beyond so many schemas, or bytes of their names, the oldest that no batch has used is forgotten: a node that invents names cannot fill the memory."""
SHAPES_KEPT = 65_536
SHAPE_BYTES_KEPT = 64 << 20

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
_Name = Annotated[str, msgspec.Meta(max_length=400)]
_Width = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class BlockShape(msgspec.Struct, array_like=True, frozen=True):
    """What stays the same about a block from batch to batch."""

    schema_id: str
    steps: bool
    width: _Width
    """How many names its schema has."""
    entities: tuple[str, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: an entity's metrics, or a step of all workers (number, epoch, ends, values)."""
        if self.steps:
            return 16 + 8 * len(self.entities) * (1 + self.width)
        return 4 * self.width


class Shape(NamedTuple):
    """The blocks of a batch, readings before steps, and where the readings begin."""

    blocks: tuple[BlockShape, ...]
    readings: tuple[tuple[BlockShape, int, int], ...]
    """(block, begin, end) within the body."""
    steps: tuple[BlockShape, ...]
    steps_at: int
    """Where the step blocks begin: after all readings."""


class BatchHeader(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The header of a batch: what changes every second, and the shape, which hardly ever does."""

    node: _Name
    incarnation: _Name
    job: _Name
    number: _Count
    time: Time
    shape: bytes
    """msgpack of its BlockShapes: compared as bytes, decoded once."""
    times: tuple[Time, ...]
    """Of the readings, in order."""
    rows: tuple[_Count, ...]
    """How many steps each step block has, in order."""
    monotonic_s: Uptime = 0.0
    """The node's monotonic clock at `time`; the last element, which older records do not have."""


class SealedBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch whose header was read and whose lengths were checked; the numbers are still bytes."""

    header: BatchHeader
    shape: Shape
    payload: bytes
    begin: int
    """Where the body begins in the payload."""

    def step_blocks(self) -> Iterator[tuple[BlockShape, int, bytes]]:
        """(block, rows, its bytes) for each step block."""
        begin = self.begin + self.shape.steps_at
        for block, rows in zip(self.shape.steps, self.header.rows, strict=True):
            end = begin + rows * block.row_bytes
            yield block, rows, self.payload[begin:end]
            begin = end


Sealed = SealedBatch | Event | Layout | SchemaRecord | Baseline | ConfigChange | Mark
"""What a reader of the topic works with: batches stay sealed, because nobody wants 2.4 million objects."""


class Schemas:
    """Names of the columns of blocks, by the digest of what they are."""

    def __init__(self) -> None:
        self.replaced = 0
        """How many had come under the id of another: whoever has looked one up looks again when this has risen."""
        self._records: OrderedDict[str, SchemaRecord] = OrderedDict()
        self._known: dict[tuple[str, Kind, tuple[str, ...], bool], SchemaRecord] = {}
        self._used: set[str] = set()
        self._bytes = 0

    def schema_of(self, reading: Reading | StepReading) -> SchemaRecord:
        """The schema of a reading; its id is the same on every machine."""
        steps = isinstance(reading, StepReading)
        kind = Kind.WORKER if isinstance(reading, StepReading) else reading.kind
        key = (reading.source, kind, reading.names, steps)
        record = self._known.get(key)
        if record is None:
            record = SchemaRecord(id=digest_of(*key), source=reading.source, kind=kind, names=reading.names, steps=steps)
            self.add(record)
        return record

    def add(self, record: SchemaRecord) -> bool:
        """Learn a schema; False if it was known.

        Raises WireError for one under the id of another. An id is a digest of what it stands for: who does not have that of its names gives
        way to who does, so that nobody can give others' numbers other names.
        """
        known = self._records.get(record.id)
        if known is not None:
            if known == record:
                return False
            if not _is_own_id(record) or _is_own_id(known):
                raise WireError(f"schema {record.id!r} stands for {len(known.names)} names of {known.source!r}, and not for those of {record.source!r}")
            self._drop(known)
            self.replaced += 1
        self._records[record.id] = record
        self._known[record.source, record.kind, record.names, record.steps] = record
        self._bytes += _size_of(record)
        while len(self._records) > 1 and (len(self._records) > SCHEMAS_KEPT or self._bytes > SCHEMA_BYTES_KEPT):
            self._forget_one()
        return True

    def _forget_one(self) -> None:
        """The oldest that was never asked for; the oldest of all where none is left of these."""
        self._drop(self._records[next((known for known in self._records if known not in self._used), next(iter(self._records)))])

    def _drop(self, record: SchemaRecord) -> None:
        del self._records[record.id]
        self._known.pop((record.source, record.kind, record.names, record.steps), None)
        self._used.discard(record.id)
        self._bytes -= _size_of(record)

    def get(self, schema_id: str) -> SchemaRecord:
        """Raises WireError if the schema has not come yet: it comes with the next bootstrap records of the stream."""
        try:
            found = self._records[schema_id]
        except KeyError:
            raise WireError(
                f"schema {schema_id!r} is not known yet: it comes with the next bootstrap records of the stream"
            ) from None
        self._used.add(schema_id)
        return found

    def __contains__(self, schema_id: str) -> bool:
        return schema_id in self._records

    def __iter__(self) -> Iterator[SchemaRecord]:
        return iter(self._records.values())


def encode(record: Record) -> bytes:
    """Bytes of a record; text that has no encoding is written with question marks.

    Raises WireError if the arrays of a batch do not fit its entities and names.
    """
    try:
        return _encode(record)
    except UnicodeEncodeError:
        return _encode(writable_record(record))


def writable_record(record: _Struct) -> _Struct:
    """The same record with text that can be encoded."""
    return msgspec.structs.replace(record, **{name: _writable(getattr(record, name)) for name in record.__struct_fields__})


def _writable(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return writable_record(value)
    if isinstance(value, tuple):
        return tuple(map(_writable, value))
    return writable(value)


def _encode(record: Record) -> bytes:
    if isinstance(record, Batch):
        return _encode_batch(record)
    return _PREFIX.pack(MAGIC, SCHEMA, _CODES[type(record)]) + _ENCODER.encode(record)


def decode(payload: bytes, schemas: Schemas) -> Record:
    """The record in the bytes, batches with their arrays.

    Raises NewerVersion for a record of a newer schema version, WireError for anything else that is no record of
    ours, and for a batch whose schema `schemas` does not know.
    """
    record = RecordReader().read(payload)
    return unseal(record, schemas) if isinstance(record, SealedBatch) else record


class RecordReader:
    """Reads records and leaves batches sealed; remembers the shapes that it has seen."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, Shape] = {}
        self._shape_bytes = 0

    def read(self, payload: bytes) -> Sealed:
        """Raises NewerVersion or WireError, as `decode` does."""
        code = _BATCH if payload[:4] == _BATCH_PREFIX else _kind_of(payload)
        try:
            if code == _BATCH:
                return self._seal(payload)
            record: Sealed = _DECODERS[code].decode(memoryview(payload)[_PREFIX.size :])
        except UNREADABLE as error:
            raise WireError(f"the body of a record of kind {code} cannot be read: {error}") from error
        return record

    def _seal(self, payload: bytes) -> SealedBatch:
        if len(payload) < _HEADER_AT:
            raise WireError(f"a batch of {len(payload)} bytes ends before its header")
        begin = _HEADER_AT + _LENGTH.unpack_from(payload, _PREFIX.size)[0]
        if begin > len(payload):
            raise WireError(f"the header of a batch should end at byte {begin}, but only {len(payload)} came")
        header = _HEADER_DECODER.decode(memoryview(payload)[_HEADER_AT:begin])
        shape = self._shapes.get(header.shape) or self._learn(header.shape)
        _check(header, shape, len(payload) - begin)
        return SealedBatch(header, shape, payload, begin)

    def _learn(self, data: bytes) -> Shape:
        self._shape_bytes += len(data)
        if len(self._shapes) >= SHAPES_KEPT or self._shape_bytes > SHAPE_BYTES_KEPT:
            self._shapes.clear()
            self._shape_bytes = len(data)
        shape = self._shapes[data] = _shape_of(_SHAPE_DECODER.decode(data))
        return shape


_HEADER_DECODER = msgspec.msgpack.Decoder(BatchHeader)
_SHAPE_DECODER = msgspec.msgpack.Decoder(tuple[BlockShape, ...])


def unseal(batch: SealedBatch, schemas: Schemas) -> Batch:
    """The batch with its arrays. Raises WireError if a schema is unknown or has another number of names."""
    header, shape = batch.header, batch.shape
    blocks = [
        _unseal_reading(batch, block, begin, end, time, schemas)
        for (block, begin, end), time in zip(shape.readings, header.times, strict=True)
    ]
    blocks += [_unseal_steps(block, rows, data, schemas) for block, rows, data in batch.step_blocks()]
    return Batch(
        node=header.node,
        incarnation=header.incarnation,
        job=header.job,
        number=header.number,
        time=header.time,
        blocks=tuple(blocks),
        monotonic_s=header.monotonic_s,
    )


def schema_for(block: BlockShape, schemas: Schemas) -> SchemaRecord:
    """The schema of a block. Raises WireError if it is unknown or does not fit the block."""
    schema = schemas.get(block.schema_id)
    if len(schema.names) != block.width or schema.steps != block.steps:
        raise WireError(
            f"a block of schema {schema.id!r} has {block.width} columns, but the schema has {len(schema.names)} names"
            + ("" if schema.steps == block.steps else ", and one is of steps, the other not")
        )
    return schema


def step_arrays(data: bytes, rows: int, workers: int, width: int, count: int = 1) -> tuple[np.ndarray, ...]:
    """Step blocks of equal extent, one after the other: (numbers, epochs, ends, values), first axis the blocks.

    numbers, epochs: count × rows int64; ends: count × rows × workers, values: count × rows × workers × width float64.
    """
    layout = np.dtype(
        [
            ("numbers", "<i8", (rows,)),
            ("epochs", "<i8", (rows,)),
            ("ends", "<f8", (rows, workers)),
            ("values", "<f8", (rows, workers, width)),
        ]
    )
    blocks = np.frombuffer(data, dtype=layout, count=count)
    return blocks["numbers"], blocks["epochs"], blocks["ends"], blocks["values"]


def _is_own_id(schema: SchemaRecord) -> bool:
    return schema.id == digest_of(schema.source, schema.kind, schema.names, schema.steps)


def _size_of(schema: SchemaRecord) -> int:
    return len(schema.id) + len(schema.source) + sum(map(len, schema.names)) + 64 * len(schema.names)


def _kind_of(payload: bytes) -> int:
    if len(payload) < _PREFIX.size:
        raise WireError(f"a record has at least {_PREFIX.size} bytes; {len(payload)} came")
    magic, version, code = _PREFIX.unpack_from(payload)
    if why := refusal(payload):
        raise RecordRefused(f"the record is refused: {why}")
    if magic != MAGIC:
        raise WireError(f"a record of ours begins with {MAGIC!r}, this one with {bytes(magic)!r}")
    if version > SCHEMA:
        raise NewerVersion(f"the record has schema version {version}; this program reads up to {SCHEMA}: update it")
    if version < SCHEMA - 1:
        raise WireError(f"the record has schema version {version}; this program reads {SCHEMA - 1} and {SCHEMA}")
    if code != _BATCH and code not in OTHERS:
        raise WireError(f"record kind {code} is unknown; this program reads the kinds {_BATCH} to {max(OTHERS)}")
    return int(code)


def _check(header: BatchHeader, shape: Shape, length: int) -> None:
    """Raises WireError unless times, row counts and the body's length are those that the shape asks for."""
    if len(header.times) != len(shape.readings) or len(header.rows) != len(shape.steps):
        raise WireError(
            f"a batch has {len(shape.readings)} readings and {len(shape.steps)} step blocks, "
            f"but {len(header.times)} times and {len(header.rows)} row counts"
        )
    expected = shape.steps_at
    if shape.steps:
        expected += sum(rows * block.row_bytes for block, rows in zip(shape.steps, header.rows, strict=True))
    if expected != length:
        raise WireError(f"the body of a batch should have {expected} bytes, it has {length}")


def _shape_of(blocks: tuple[BlockShape, ...]) -> Shape:
    readings = []
    begin = 0
    for block in blocks:
        if not block.steps:
            end = begin + block.row_bytes * len(block.entities)
            readings.append((block, begin, end))
            begin = end
    steps = tuple(block for block in blocks if block.steps)
    return Shape(blocks, tuple(readings), steps, begin)


def _encode_batch(batch: Batch) -> bytes:
    readings = [(block.schema_id, block.reading) for block in batch.blocks if isinstance(block.reading, Reading)]
    steps = [(block.schema_id, block.reading) for block in batch.blocks if isinstance(block.reading, StepReading)]
    shape = [BlockShape(name, False, len(each.names), each.entities) for name, each in readings]
    shape += [BlockShape(name, True, len(each.names), each.workers) for name, each in steps]
    header = _ENCODER.encode(
        BatchHeader(
            node=batch.node,
            incarnation=batch.incarnation,
            job=batch.job,
            number=batch.number,
            time=batch.time,
            shape=_ENCODER.encode(shape),
            times=tuple(each.time for _, each in readings),
            rows=tuple(len(each.numbers) for _, each in steps),
            monotonic_s=batch.monotonic_s,
        )
    )
    body = [_reading_bytes(each) for _, each in readings] + [_step_bytes(each) for _, each in steps]
    return b"".join((_PREFIX.pack(MAGIC, SCHEMA, _BATCH), _LENGTH.pack(len(header)), header, *body))


def check_shapes(reading: Reading | StepReading) -> None:
    """Raises WireError if its arrays do not fit its entities, or workers, and names."""
    if isinstance(reading, Reading):
        expected: tuple[int, ...] = (len(reading.entities), len(reading.names))
        if reading.matrix.shape != expected or not reading.names:
            raise WireError(f"the matrix of {reading.source!r} has shape {reading.matrix.shape}, not {expected}")
        return
    rows, workers, names = len(reading.numbers), len(reading.workers), len(reading.names)
    parts = ((reading.numbers, (rows,)), (reading.epochs, (rows,)), (reading.ends, (rows, workers)), (reading.values, (rows, workers, names)))
    for array, expected in parts:
        if array.shape != expected or not names:
            raise WireError(f"a step array of {reading.source!r} has shape {array.shape}, not {expected}")


def _reading_bytes(reading: Reading) -> bytes:
    check_shapes(reading)
    return reading.matrix.astype("<f4", copy=False).tobytes()


def _step_bytes(reading: StepReading) -> bytes:
    check_shapes(reading)
    parts = ((reading.numbers, "<i8"), (reading.epochs, "<i8"), (reading.ends, "<f8"), (reading.values, "<f8"))
    return b"".join(array.astype(dtype, copy=False).tobytes() for array, dtype in parts)


def _unseal_reading(
    batch: SealedBatch, block: BlockShape, begin: int, end: int, time: float, schemas: Schemas
) -> Block:
    schema = schema_for(block, schemas)
    matrix = np.frombuffer(batch.payload[batch.begin + begin : batch.begin + end], dtype="<f4")
    reading = Reading(
        source=schema.source,
        kind=schema.kind,
        entities=block.entities,
        names=schema.names,
        matrix=matrix.reshape(len(block.entities), block.width),
        time=time,
    )
    return Block(schema_id=block.schema_id, reading=reading)


def _unseal_steps(block: BlockShape, rows: int, data: bytes, schemas: Schemas) -> Block:
    schema = schema_for(block, schemas)
    numbers, epochs, ends, values = (array[0] for array in step_arrays(data, rows, len(block.entities), block.width))
    reading = StepReading(
        source=schema.source,
        workers=block.entities,
        names=schema.names,
        numbers=numbers,
        epochs=epochs,
        ends=ends,
        values=values,
    )
    return Block(schema_id=block.schema_id, reading=reading)
