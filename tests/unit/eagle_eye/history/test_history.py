"""The history: every number once, whatever happens between the stream and the files."""

from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from eagle_eye import wire
from eagle_eye.clock import FakeClock
from eagle_eye.config import HistoryConfig
from eagle_eye.errors import ConfigError, HistoryError
from eagle_eye.history import compaction as tending_module
from eagle_eye.history.compaction import GRACE_S, Compactor
from eagle_eye.history.file_names import HistoryFile, parse, visible
from eagle_eye.history.object_store import ObjectStore
from eagle_eye.history.partition_writer import PartitionWriter
from eagle_eye.history.queries import History, MetricColumn
from eagle_eye.stream import OBSERVATIONS, Message
from eagle_eye.types import Batch, Block, Kind, Reading, StepReading

JOB = "team/gpt/run"
T0 = 1_700_000_100.0
"""Where a window of 30 s begins."""
NAMES = ("power_watts", "temperature_celsius")
ENTITIES = ("GPU-0", "GPU-1")


def values(second: int, node: int = 0) -> np.ndarray:
    """A number for each GPU and metric that no other has."""
    return np.array([[second + node * 1000 + gpu * 100, 40 + gpu] for gpu in range(2)], dtype=np.float32)


class Records:
    """Messages of one partition, one second after the other."""

    def __init__(self, nodes: int = 2) -> None:
        self.messages: list[Message] = []
        self.schemas = wire.Schemas()
        self.nodes = nodes

    def add(self, value: bytes, time: float, key: str = JOB) -> None:
        self.messages.append(Message(OBSERVATIONS, 0, len(self.messages), key, value, time))

    def batch(self, second: int, node: int, *blocks: Reading | StepReading, late: float = 0.0, job: str = JOB) -> None:
        time = T0 + second
        for reading in blocks:
            schema = self.schemas.schema_of(reading)
            if not any(message.value == wire.encode(schema) for message in self.messages):
                self.add(wire.encode(schema), time + late)
        sealed = tuple(Block(schema_id=self.schemas.schema_of(reading).id, reading=reading) for reading in blocks)
        self.add(wire.encode(Batch(node=f"node-{node}", incarnation="b", job=job, number=second, time=time, blocks=sealed)), time + late)

    def run(self, seconds: int, begin: int = 0, *, late: float = 0.0) -> "Records":
        for second in range(begin, begin + seconds):
            for node in range(self.nodes):
                self.batch(second, node, gpus(second, node), late=late)
        return self

    def end(self, second: int) -> "Records":
        """Records that end the windows before, as many as it takes for a jump of hours."""
        for _ in range(8):
            self.add(b"no record", T0 + second)
        return self


def gpus(second: int, node: int = 0, names=NAMES, matrix=None) -> Reading:
    entities = tuple(f"GPU-{node}{entity}" for entity in ENTITIES)
    return Reading(source="gpu", kind=Kind.GPU, entities=entities, names=names, matrix=values(second, node) if matrix is None else matrix, time=T0 + second)


@pytest.fixture
def place(tmp_path) -> ObjectStore:
    return ObjectStore.of(tmp_path / "history")


def written(place: ObjectStore, messages, *, partition: int = 0, chunk_bytes: int = 1 << 20) -> int | None:
    return PartitionWriter(place, partition, file_s=30.0, chunk_bytes=chunk_bytes).take(messages)


def power(place: ObjectStore) -> list[tuple[float, str, float | None]]:
    """(second, entity, power) of all rows that a reader sees, sorted."""
    rows = []
    for file in visible(place.files("gpu/gpu")):
        with place.filesystem.open(place.url(file), "rb") as opened:
            rows += pq.read_table(opened, columns=["time", "entity", "power_watts"]).to_pylist()
    return sorted((row["time"].timestamp() - T0, row["entity"], row["power_watts"]) for row in rows)


def asked(place: ObjectStore, **more) -> list[tuple[float, str, float | None]]:
    """The same, as the history answers it."""
    table = History(place).series("gpu", ["power_watts"], since=T0 - 10_000, until=T0 + 100_000, **more)
    return sorted((row["time"].timestamp() - T0, row["entity"], row["power_watts"]) for row in table.to_pylist())


def expected(seconds, nodes: int = 2) -> list[tuple[float, str, float]]:
    return sorted((float(second), f"GPU-{node}GPU-{gpu}", float(values(second, node)[gpu, 0])) for second in seconds for node in range(nodes) for gpu in range(2))


# --- writing ---------------------------------------------------------------------------------------------------------


def test_every_number_comes_back(place: ObjectStore) -> None:
    done = written(place, Records().run(90).end(90).messages)
    assert power(place) == asked(place) == expected(range(90))
    assert done == 181
    assert len(list(place.files())) == 3
    table = History(place).series("gpu/gpu", NAMES, since=T0 + 5, until=T0 + 6, job=JOB, entities=["GPU-1GPU-1"])
    assert table.column_names == ["time", "job", "node", "entity", *NAMES]
    (row,) = table.to_pylist()
    assert (row["job"], row["node"], row["temperature_celsius"]) == (JOB, "node-1", 41.0)


@pytest.mark.parametrize("chunk_bytes", [500, 5_000, 1 << 20])
def test_what_is_written_piece_by_piece_is_the_same(place: ObjectStore, chunk_bytes: int) -> None:
    written(place, Records().run(60).end(60).messages, chunk_bytes=chunk_bytes)
    assert power(place) == expected(range(60))


def test_what_is_not_over_is_not_there_yet_and_leaves_nothing_behind(place: ObjectStore) -> None:
    writer = PartitionWriter(place, 0, file_s=30.0, chunk_bytes=500)
    assert writer.take(Records().run(20).messages) is None
    assert list(place.files()) == []
    writer.abandon()
    assert list((place.new("x").parent).iterdir()) == []


@pytest.mark.parametrize("cut", [1, 37, 61, 62, 100, 130, 180])
def test_a_restart_in_the_middle_neither_loses_nor_doubles_a_row(place: ObjectStore, cut: int) -> None:
    """Killed after any record; begun again at what was reported as done."""
    messages = Records().run(90).end(90).messages
    done = written(place, messages[:cut]) or 0
    again = PartitionWriter(place, 0, file_s=30.0)
    again.warm(messages[:done])
    again.take(messages[done:])
    assert power(place) == expected(range(90))


def test_a_crash_between_the_file_and_the_commit_writes_the_same_file_again(place: ObjectStore) -> None:
    messages = Records().run(90).end(90).messages
    written(place, messages)
    names = [file.path for file in place.files()]
    written(place, messages)
    assert [file.path for file in place.files()] == names
    assert power(place) == expected(range(90))


def test_two_writers_at_once_write_the_same_files(place: ObjectStore) -> None:
    messages = Records().run(60).end(60).messages
    one, other = PartitionWriter(place, 0, file_s=30.0), PartitionWriter(place, 0, file_s=30.0)
    for message in messages:
        one.take([message])
        other.take([message])
    assert power(place) == expected(range(60))


def test_a_batch_that_comes_twice_is_written_once_also_over_a_restart(place: ObjectStore) -> None:
    records = Records().run(60)
    again = [message._replace(offset=len(records.messages) + index, time=T0 + 60) for index, message in enumerate(records.messages)]
    records.messages += again
    records.end(95)
    written(place, records.messages)
    assert power(place) == expected(range(60))
    writer = PartitionWriter(place, 0, file_s=30.0)
    writer.warm(records.messages[:121])
    writer.take(records.messages[121:])
    assert power(place) == expected(range(60))


def test_a_gap_in_time_makes_no_files(place: ObjectStore) -> None:
    written(place, Records().run(10).run(10, 300).end(330).messages)
    assert power(place) == expected([*range(10), *range(300, 310)])
    assert len(list(place.files())) == 2


def test_what_was_spooled_and_came_late_is_found_by_its_own_time(place: ObjectStore) -> None:
    written(place, Records().run(10, late=7200.0).end(9000).messages)
    assert power(place) == expected(range(10))
    assert History(place).series("gpu", ["power_watts"], since=T0, until=T0 + 5).num_rows == 20


def test_a_number_that_was_not_read_is_null_and_no_average_knows_it(place: ObjectStore) -> None:
    records = Records(nodes=1)
    matrix = np.array([[np.nan, 40.0], [10.0, np.nan]], dtype=np.float32)
    records.batch(0, 0, gpus(0, matrix=matrix))
    records.batch(1, 0, gpus(1, matrix=np.array([[4.0, 40.0], [np.nan, 40.0]], dtype=np.float32)))
    written(place, records.end(30).messages)
    assert [row[2] for row in power(place)] == [None, 10.0, 4.0, None]
    assert [row[2] for row in asked(place, every=10.0)] == [4.0, 10.0]


def test_a_schema_that_changes_in_the_middle_leaves_both_readable(place: ObjectStore) -> None:
    records = Records(nodes=1).run(15)
    for second in range(15, 30):
        matrix = np.full((2, 3), second, dtype=np.float32)
        records.batch(second, 0, gpus(second, names=("power_watts", "fan_percent", "temperature_celsius"), matrix=matrix))
    written(place, records.end(30).messages)
    assert len(list(place.files())) == 2
    table = History(place).series("gpu", ["power_watts", "fan_percent"], since=T0, until=T0 + 30)
    assert table.num_rows == 60
    assert table["fan_percent"].null_count == 30
    assert History(place).metrics("gpu") == tuple(MetricColumn("gpu/gpu", name) for name in ("fan_percent", "power_watts", "temperature_celsius"))


def test_blocks_of_an_unknown_schema_are_counted_not_guessed(place: ObjectStore) -> None:
    messages = Records().run(60).end(60).messages
    writer = PartitionWriter(place, 0, file_s=30.0)
    writer.take(messages[1:])
    assert writer.counts.skipped == 120
    assert list(place.files()) == []


@pytest.mark.parametrize("names", [("a\0b",), ("/../../x",), ("to9999999999",), ("schema-1 of a", "schema-1 of b")], ids=["no name of a file", "climbs out", "as a merged file", "twins"])
def test_a_schema_of_any_name_is_a_file_of_its_own_in_the_history(place: ObjectStore, tmp_path: Path, names: tuple[str, ...]) -> None:
    records = Records()
    for node, name in enumerate(names):
        reading = gpus(1, node)
        records.add(wire.encode(msgspec.structs.replace(records.schemas.schema_of(reading), id=name)), T0 + 1)
        batch = Batch(node=f"node-{node}", incarnation="b", job=JOB, number=1, time=T0 + 1, blocks=(Block(schema_id=name, reading=reading),))
        records.add(wire.encode(batch), T0 + 1)
    written(place, records.run(30, 2).end(40).messages)
    assert power(place) == sorted(expected([1], len(names)) + expected(range(2, 30)))
    assert {path.parts[len(tmp_path.parts)] for path in tmp_path.rglob("*.parquet")} == {"history"}


def test_a_metric_that_is_called_like_a_key_and_a_source_that_is_no_word_do_no_harm(place: ObjectStore) -> None:
    records = Records()
    reading = Reading(source="../../etc", kind=Kind.NODE, entities=("n",), names=("time", 'a"b', "time"), matrix=np.array([[1, 2, 3]], dtype=np.float32), time=T0)
    records.batch(0, 0, reading)
    written(place, records.end(30).messages)
    (file,) = place.files()
    assert ".." not in file.path
    (row,) = History(place).series("node", ["time_", 'a"b', "time__"], since=T0, until=T0 + 1).to_pylist()
    assert (row["time_"], row['a"b'], row["time__"]) == (1.0, 2.0, 3.0)


def test_a_reading_called_step_is_a_metric_as_any_other(place: ObjectStore) -> None:
    """The training collector has one: the step in hand."""
    records = Records()
    for second in range(40):
        reading = Reading(source="training", kind=Kind.WORKER, entities=("w",), names=("step", "epoch"), matrix=np.array([[second / 2, 1]], dtype=np.float32), time=T0 + second)
        records.batch(second, 0, reading)
    written(place, records.end(60).messages)
    tender(place, T0 + 7200)[0].compact(0)
    table = History(place).series("worker", ["step"], since=T0, until=T0 + 30)
    assert table.column_names == ["time", "job", "node", "entity", "step"]
    assert table["step"].to_pylist() == [second / 2 for second in range(30)]


def test_steps_have_a_row_for_each_worker_that_completed_them(place: ObjectStore) -> None:
    records = Records()
    ends = np.array([[T0 + 1, T0 + 1.5], [T0 + 2, np.nan]])
    steps = StepReading(
        source="training", workers=("r/n/0", "r/n/1"), names=("step_s", "loss"), numbers=np.array([7, 8]), epochs=np.array([1, 1]), ends=ends,
        values=np.array([[[0.5, 2.0], [0.6, np.nan]], [[0.7, 1.0], [np.nan, np.nan]]]),
    )  # fmt: skip
    records.batch(2, 0, gpus(2), steps)
    written(place, records.end(30).messages)
    rows = History(place).series("steps", ["step_s", "loss"], since=T0, until=T0 + 30).to_pylist()
    assert [(row["step"], row["epoch"], row["entity"], round(row["step_s"], 3), row["loss"]) for row in rows] == [
        (7, 1, "r/n/0", 0.5, 2.0), (7, 1, "r/n/1", 0.6, None), (8, 1, "r/n/0", 0.7, 1.0),
    ]  # fmt: skip
    assert History(place).tables() == ("gpu/gpu", "steps/training")


def test_a_disk_that_is_full_is_said_and_nothing_is_told_to_be_done(place: ObjectStore) -> None:
    """The place is a file: nothing can be written under it."""
    blocked = ObjectStore.of(place.root + "/file/below")
    (place.new("x").parent.parent / "file").write_text("")
    with pytest.raises(HistoryError, match="cannot be written"):
        written(blocked, Records().run(60).end(60).messages)


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_torn_or_foreign_file_is_not_looked_at(place: ObjectStore, tmp_path) -> None:
    written(place, Records().run(60).end(60).messages)
    folder = next((tmp_path / "history").rglob("*.parquet")).parent
    (folder / "1700000100-p0000-torn.parquet.tmp").write_bytes(b"PAR1 torn")
    (tmp_path / "history/.new/1-p0-0-x.parquet").write_bytes(b"PAR1 torn")
    (tmp_path / "history/notes.txt").write_text("mine")
    assert power(place) == expected(range(60))


def test_names_tell_what_is_inside() -> None:
    file = HistoryFile(table="gpu/gpu", window=1_763_625_600, partition=3, first=12, last=99, earliest=1_763_625_599, latest=1_763_625_630, schema="5f2c81aa")
    assert parse(file.path) == file
    assert file.path.startswith("gpu/gpu/date=2025-11-20/hour=08/")
    assert parse("gpu/gpu/date=2025-11-20/hour=08/.torn.parquet") is None


def test_what_is_covered_by_a_larger_file_is_not_seen_and_what_only_looks_so_is() -> None:
    def file(window: int, first: int, last: int, schema: str = "aa") -> HistoryFile:
        return HistoryFile(table="gpu/gpu", window=window, partition=0, first=first, last=last, earliest=window, latest=window + 30, schema=schema)

    small = [file(0, 0, 9), file(30, 10, 19), file(30, 10, 19, "bb")]
    large = file(0, 0, 19, "to30")
    later = file(60, 20, 29)
    anew = file(90, 0, 9)
    """After a broker that lost its memory: the same offsets, another time."""
    assert visible([*small, large, later, anew]) == [large, later, anew]


# --- compaction and retention ----------------------------------------------------------------------------------------


def tender(place: ObjectStore, now: float, **config) -> tuple[Compactor, FakeClock]:
    clock = FakeClock(now)
    return Compactor(place, HistoryConfig(**{"file_s": 30.0, "compact_s": 3600.0} | config), clock), clock


def test_small_files_become_one_with_every_row_and_go_after_a_while(place: ObjectStore) -> None:
    records = Records().run(120)
    for second in range(120, 150):
        records.batch(second, 0, gpus(second, names=("power_watts", "fan_percent"), matrix=values(second)))
    written(place, records.end(150).messages)
    before = power(place)
    tending, clock = tender(place, T0 + 7200)
    assert tending.compact(0) == 1
    assert len(list(place.files())) == 6
    assert power(place) == before
    assert History(place).series("gpu", ["fan_percent"], since=T0, until=T0 + 200)["fan_percent"].null_count == 480
    clock.advance(GRACE_S + 1)
    assert tending.compact(0) == 0
    (file,) = place.files()
    assert (file.merged, power(place)) == (True, before)
    written(place, records.messages)
    assert power(place) == before, "written once more by somebody who begins again at an old cut"


def test_a_window_that_is_still_filled_is_left_alone_and_so_is_another_partition(place: ObjectStore) -> None:
    written(place, Records().run(120).end(120).messages)
    assert tender(place, T0 + 1800)[0].compact(0) == 0
    assert tender(place, T0 + 7200)[0].compact(1) == 0


def test_files_that_are_large_enough_are_left(place: ObjectStore, monkeypatch) -> None:
    written(place, Records().run(120).end(120).messages)
    monkeypatch.setattr(tending_module, "LARGE_BYTES", sum(file.bytes for file in place.files()) - 1)
    assert tender(place, T0 + 7200)[0].compact(0) == 0
    assert power(place) == expected(range(120))


def test_rows_that_were_written_twice_become_one(place: ObjectStore) -> None:
    messages = Records().run(60).end(60).messages
    written(place, messages)
    written(place, [message._replace(offset=message.offset + 1000, time=message.time + 600) for message in messages])
    assert len(power(place)) == 480
    tender(place, T0 + 7200)[0].compact(0)
    assert power(place) == expected(range(60))


def test_what_is_too_old_goes(place: ObjectStore) -> None:
    written(place, Records().run(30).end(86_390).run(30, 86_400).end(90_000).messages)
    tending, clock = tender(place, T0, retention_s=86_400.0)
    assert tending.retain() == 0
    clock.advance(90_000)
    assert tending.retain() == 1
    assert {row[0] for row in power(place)} == set(map(float, range(86_400, 86_430)))


def test_the_oldest_go_beyond_the_bytes_that_are_allowed(place: ObjectStore) -> None:
    written(place, Records().run(300).end(300).messages)
    files = sorted(place.files(), key=lambda file: file.window)
    allowed = sum(file.bytes for file in files[-3:])
    tender(place, T0 + 400, max_bytes=allowed)[0].retain()
    assert list(place.files()) == files[-3:]


def test_a_question_during_compaction_sees_each_row_once(place: ObjectStore) -> None:
    """Every state of the folder between the first and the last step of it."""
    written(place, Records().run(120).end(120).messages)
    tending, clock = tender(place, T0 + 7200)
    tending.compact(0)
    clock.advance(GRACE_S + 1)
    for file in [each for each in place.files() if not each.merged]:
        assert power(place) == expected(range(120))
        place.remove(file)
    assert power(place) == expected(range(120))


# --- questions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("aggregate", "first"), [("mean", 4.5), ("min", 0.0), ("max", 9.0), ("last", 9.0), ("count", 10)])
def test_intervals(place: ObjectStore, aggregate: str, first: float) -> None:
    written(place, Records(nodes=1).run(30).end(30).messages)
    assert asked(place, every=10.0, aggregate=aggregate, entities=["GPU-0GPU-0"])[0] == (0.0, "GPU-0GPU-0", first)
    assert len(asked(place, every=10.0, aggregate=aggregate)) == 6


def test_entities_and_jobs_are_told_apart(place: ObjectStore) -> None:
    records = Records().run(5)
    records.batch(6, 9, gpus(6, 9), job="team/bert/run")
    written(place, records.end(30).messages)
    history = History(place)
    assert [entity for _, _, entity in history.entities("gpu", since=T0, until=T0 + 5)] == ["GPU-0GPU-0", "GPU-0GPU-1", "GPU-1GPU-0", "GPU-1GPU-1"]
    assert history.entities("gpu", since=T0, until=T0 + 30, job="team/bert/run")[0] == ("team/bert/run", "node-9", "GPU-9GPU-0")
    assert len(asked(place, job="team/bert/run")) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"names": ["powr"]}, "no metric 'powr'.*power_watts"),
        ({"names": []}, "at least one metric"),
        ({"names": ["power_watts"], "until": T0 - 1}, "an end after its beginning"),
        ({"names": ["power_watts"], "aggregate": "sum; DROP"}, "choose one of mean"),
        ({"names": ["power_watts"], "since": T0 - 900, "until": T0 - 800}, "nothing of 'gpu' in that time"),
    ],
)
def test_a_question_that_makes_no_sense_is_told_what_does(place: ObjectStore, arguments, says) -> None:
    written(place, Records().run(30).end(30).messages)
    with pytest.raises(HistoryError, match=says):
        History(place).series("gpu", **({"since": T0, "until": T0 + 30} | arguments))


def test_what_is_asked_for_is_never_text_of_a_query(place: ObjectStore) -> None:
    written(place, Records().run(30).end(30).messages)
    evil = "x' OR 1=1 --"
    assert History(place).series("gpu", ["power_watts"], since=T0, until=T0 + 30, job=evil, entities=[evil]).num_rows == 0
    with pytest.raises(HistoryError, match="no metric"):
        History(place).series("gpu", ['power_watts" FROM x; --'], since=T0, until=T0 + 30)


def test_an_empty_history_says_so(place: ObjectStore) -> None:
    assert History(place).metrics() == ()
    with pytest.raises(HistoryError, match="nothing yet"):
        History(place).series("gpu", ["power_watts"], since=T0, until=T0 + 1)


def test_an_object_store_does_as_well(request) -> None:
    place = ObjectStore.of(f"memory://{request.node.name}")
    written(place, Records().run(90).end(90).messages)
    before = power(place)
    assert before == expected(range(90))
    tending, clock = tender(place, T0 + 7200)
    assert tending.compact(0) == 1
    clock.advance(GRACE_S + 1)
    tending.compact(0)
    assert len(list(place.files())) == 1
    assert power(place) == before
    assert tending.retain() == 0
    clock.advance(10**9)
    assert tending.retain() == 1
    assert list(place.files()) == []


def test_a_place_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"history\.location 'nosuch://x'"):
        ObjectStore.of("nosuch://x")


def test_files_are_compressed_and_wide(place: ObjectStore, tmp_path) -> None:
    written(place, Records().run(60).end(60).messages)
    meta = pq.ParquetFile(next((tmp_path / "history").rglob("*.parquet"))).metadata
    assert meta.row_group(0).column(4).compression == "ZSTD"
    assert meta.num_columns == 4 + len(NAMES)
