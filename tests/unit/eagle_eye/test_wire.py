"""Records ↔ bytes: what goes in comes out, and nothing else does."""

import struct
from contextlib import suppress

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye import wire
from eagle_eye.errors import NewerVersion, WireError
from eagle_eye.types import (
    SCHEMA,
    Baseline,
    Batch,
    Block,
    ConfigChange,
    Entity,
    Event,
    Kind,
    Layout,
    Mark,
    RankPlacement,
    Reading,
    Record,
    SchemaRecord,
    StepReading,
)


def reading(rows: int = 2, names: tuple[str, ...] = ("a_watts", "b_percent")) -> Reading:
    matrix = np.arange(rows * len(names), dtype=np.float32).reshape(rows, len(names))
    entities = tuple(f"GPU-{row}" for row in range(rows))
    return Reading(source="gpu", kind=Kind.GPU, entities=entities, names=names, matrix=matrix, time=7.5)


def steps(rows: int = 3, workers: int = 2) -> StepReading:
    return StepReading(
        source="training",
        workers=tuple(f"run/n/{worker}" for worker in range(workers)),
        names=("step_s", "loss"),
        numbers=np.arange(10, 10 + rows, dtype=np.int64),
        epochs=np.full(rows, 1, dtype=np.int64),
        ends=np.arange(rows * workers, dtype=np.float64).reshape(rows, workers),
        values=np.arange(rows * workers * 2, dtype=np.float64).reshape(rows, workers, 2),
    )


def batch(schemas: wire.Schemas, *readings: Reading | StepReading, number: int = 3) -> Batch:
    blocks = tuple(Block(schema_id=schemas.schema_of(each).id, reading=each) for each in readings)
    return Batch(node="n", incarnation="b", job="t/n/r", number=number, time=9.0, blocks=blocks, monotonic_s=4.5)


def same(left: Reading | StepReading, right: Reading | StepReading) -> bool:
    arrays = [name for name in left.__struct_fields__ if isinstance(getattr(left, name), np.ndarray)]
    others = [name for name in left.__struct_fields__ if name not in arrays]
    return all(np.array_equal(getattr(left, name), getattr(right, name), equal_nan=True) for name in arrays) and all(
        getattr(left, name) == getattr(right, name) for name in others
    )


EVENT = Event(
    name="exit",
    job="t/n/r",
    entity=Entity(kind=Kind.WORKER, name="r/n/0"),
    time=1.0,
    node="n",
    incarnation="b",
    number=4,
    attributes={"code": "1"},
    monotonic_s=3.5,
)
LAYOUT = Layout(
    job="t/n/r",
    epoch=2,
    time=1.0,
    coordinator="n",
    launchers={"n": "127.0.0.1:1"},
    placements=(RankPlacement(worker="r/n/0", node="n", rank=0, local_rank=0),),
)


@pytest.mark.parametrize(
    "record",
    [
        EVENT,
        LAYOUT,
        SchemaRecord(id="x", source="gpu", kind=Kind.GPU, names=("a",)),
        Baseline(name="forest", job="t/n/r", digest="d", fitted=1.0, data=b"\x00\x01"),
        ConfigChange(digest="d", text="[engine]"),
        Mark(mark="cut", generation=1, number=5, time=2.0),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_survives_the_wire(record: Record) -> None:
    assert wire.decode(wire.encode(record), wire.Schemas()) == record


def test_a_batch_survives_the_wire() -> None:
    schemas = wire.Schemas()
    blocks = (reading(), steps(), reading(3, ("c_celsius",)), steps(0), steps(2, 0), reading(0))
    decoded = wire.decode(wire.encode(batch(schemas, *blocks)), schemas)
    assert isinstance(decoded, Batch)
    assert (decoded.node, decoded.incarnation, decoded.job, decoded.number, decoded.time, decoded.monotonic_s) == ("n", "b", "t/n/r", 3, 9.0, 4.5)
    expected = (blocks[0], blocks[2], blocks[5], blocks[1], blocks[3], blocks[4])  # readings first, then steps
    assert all(same(one.reading, other) for one, other in zip(decoded.blocks, expected, strict=True))


def test_eight_gpus_with_thirty_metrics_take_little_more_than_their_numbers() -> None:
    schemas = wire.Schemas()
    names = tuple(f"metric_{index}" for index in range(30))
    assert len(wire.encode(batch(schemas, reading(8, names)))) < 8 * 30 * 4 + 150


def test_schema_ids_are_the_same_on_every_machine_and_differ_by_what_they_name() -> None:
    one, other = wire.Schemas(), wire.Schemas()
    assert one.schema_of(reading()) == other.schema_of(reading(5))
    assert one.schema_of(reading()).id != one.schema_of(reading(2, ("x", "y"))).id
    assert one.schema_of(steps()).steps


def test_a_batch_with_an_unknown_schema_names_it() -> None:
    schemas = wire.Schemas()
    payload = wire.encode(batch(schemas, reading()))
    [schema] = schemas
    with pytest.raises(WireError, match=f"schema '{schema.id}' is not known yet"):
        wire.decode(payload, wire.Schemas())


def test_a_schema_that_does_not_fit_its_block_is_refused() -> None:
    schemas, wrong = wire.Schemas(), wire.Schemas()
    payload = wire.encode(batch(schemas, reading()))
    [schema] = schemas
    wrong.add(msgspec.structs.replace(schema, names=("a", "b", "c")))
    with pytest.raises(WireError, match="has 2 columns, but the schema has 3 names"):
        wire.decode(payload, wrong)


def test_schemas_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SCHEMAS_KEPT", 3)
    schemas = wire.Schemas()
    for index in range(10):
        schemas.schema_of(reading(1, (f"name_{index}",)))
    assert [schema.names for schema in schemas] == [("name_7",), ("name_8",), ("name_9",)]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "at least 4 bytes; 0 came"),
        (b"PK\x01\x01rest", "begins with b'EE', this one with b'PK'"),
        (b"EE\x01\x63", "record kind 99 is unknown"),
        (b"EE\x01\x02\xc1", "body of a record of kind 2 cannot be read"),
        (b"EE\x01\x01\x01", "ends before its header"),
        (b"EE\x01\x01" + struct.pack("<I", 1 << 30), "should end at byte"),
        (b"EE\x01\x07" + b"\x91" * 5000, "body of a record of kind 7 cannot be read"),
    ],
)
def test_bytes_that_are_no_record_are_refused_with_a_reason(payload: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        wire.decode(payload, wire.Schemas())


def test_a_record_of_a_newer_version_says_so() -> None:
    payload = bytearray(wire.encode(EVENT))
    payload[2] = SCHEMA + 1
    with pytest.raises(NewerVersion, match=f"schema version {SCHEMA + 1}; this program reads up to {SCHEMA}"):
        wire.decode(bytes(payload), wire.Schemas())


def test_the_version_before_is_read_and_an_unknown_field_ignored() -> None:
    body = msgspec.msgpack.decode(wire.encode(EVENT)[4:])
    body["colour"] = "red"
    del body["message"]
    payload = b"EE" + bytes([SCHEMA - 1, 2]) + msgspec.msgpack.encode(body)
    assert wire.decode(payload, wire.Schemas()) == EVENT


def test_a_truncated_or_longer_batch_is_refused() -> None:
    schemas = wire.Schemas()
    payload = wire.encode(batch(schemas, reading(), steps()))
    with pytest.raises(WireError, match=r"body of a batch should have .* bytes"):
        wire.decode(payload + b"\x00", schemas)
    for length in range(len(payload)):
        with pytest.raises(WireError):
            wire.decode(payload[:length], schemas)


def test_a_time_that_is_no_number_is_refused() -> None:
    schemas = wire.Schemas()
    payload = wire.encode(msgspec.structs.replace(batch(schemas, reading()), time=float("nan")))
    with pytest.raises(WireError, match=r"cannot be read: Expected .float. .* at .\$\[4\]"):
        wire.decode(payload, schemas)


@pytest.mark.parametrize("stamp", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_monotonic_clock_that_cannot_be_is_refused(stamp: float) -> None:
    schemas = wire.Schemas()
    for record in (EVENT, batch(schemas, reading())):
        with pytest.raises(WireError, match=r"cannot be read: Expected .float"):
            wire.decode(wire.encode(msgspec.structs.replace(record, monotonic_s=stamp)), schemas)


def test_records_of_a_writer_that_does_not_tell_its_monotonic_clock_are_read() -> None:
    schemas = wire.Schemas()
    payload = wire.encode(batch(schemas, reading()))
    (length,) = struct.unpack_from("<I", payload, 4)
    header = msgspec.msgpack.encode(msgspec.msgpack.decode(payload[8 : 8 + length])[:8])
    older = wire.decode(payload[:4] + struct.pack("<I", len(header)) + header + payload[8 + length :], schemas)
    assert isinstance(older, Batch)
    assert (older.time, older.monotonic_s) == (9.0, 0.0)
    body = msgspec.msgpack.decode(wire.encode(EVENT)[4:])
    del body["monotonic_s"]
    assert wire.decode(b"EE" + bytes([SCHEMA, 2]) + msgspec.msgpack.encode(body), schemas) == msgspec.structs.replace(EVENT, monotonic_s=0.0)


def test_arrays_that_do_not_fit_are_not_sent() -> None:
    schemas = wire.Schemas()
    wrong = msgspec.structs.replace(reading(), entities=("only one",))
    with pytest.raises(WireError, match=r"matrix of 'gpu' has shape \(2, 2\), not \(1, 2\)"):
        wire.encode(batch(schemas, wrong))
    short = msgspec.structs.replace(steps(), epochs=np.zeros(1, dtype=np.int64))
    with pytest.raises(WireError, match="step array of 'training'"):
        wire.encode(batch(schemas, short))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", b"EE", *(b"EE\x01" + bytes([code]) for code in range(1, 8))]))
def test_garbage_raises_nothing_but_wire_errors(data: bytes, prefix: bytes) -> None:
    with suppress(WireError):
        wire.decode(prefix + data, wire.Schemas())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_batch_is_read_or_refused_but_never_breaks_the_reader(data: st.DataObject) -> None:
    schemas, reader = wire.Schemas(), wire.RecordReader()
    whole = wire.encode(batch(schemas, reading(), steps()))
    payload = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with suppress(WireError):
        sealed = reader.read(bytes(payload))
        if isinstance(sealed, wire.SealedBatch):
            wire.unseal(sealed, schemas)
    after = reader.read(whole)
    assert isinstance(after, wire.SealedBatch)
    assert all(map(same, (block.reading for block in wire.unseal(after, schemas).blocks), (reading(), steps())))


def test_text_that_has_no_encoding_is_written_with_question_marks() -> None:
    """So Python reads the name of a file that is no UTF-8; an exception that names it must not end who tells of it."""
    name = "caf\udce9.bin"
    event = Event(
        name="exception", job="t/n/r", entity=Entity(kind=Kind.WORKER, name=name), time=1.0, node="n", incarnation="b", number=1, message=f"cannot parse {name}",
        attributes={"path": name},
    )  # fmt: skip
    read = wire.decode(wire.encode(event), wire.Schemas())
    assert isinstance(read, Event)
    assert (read.entity.name, read.message, read.attributes) == ("caf?.bin", "cannot parse caf?.bin", {"path": "caf?.bin"})
    schemas, odd = wire.Schemas(), msgspec.structs.replace(reading(rows=1), entities=(name,))
    read = wire.decode(wire.encode(batch(schemas, odd)), schemas)
    assert isinstance(read, Batch)
    assert read.blocks[0].reading.entities == ("caf?.bin",)  # type: ignore[union-attr]
