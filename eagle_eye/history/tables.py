"""Blocks of batches → columns of a Parquet file: a row is a time and an entity, a column is a metric.

Rows come job by job, node by node, second by second. What a node sent is moved as one piece of bytes; no number is
touched one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, compress, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle_eye.types import SchemaRecord
from eagle_eye.wire import step_arrays

ROW_GROUP = 1 << 17
"""Rows: what DuckDB reads as one piece, and skips as one."""
SAMPLE = 4096
PIECE = 512
DISTINCT = 0.4
"""Columns with a greater share of distinct values in a sample are no dictionaries."""
KEYS = ("time", "job", "node", "entity")
STEP_KEYS = (*KEYS, "step", "epoch")
LEVEL = 1
"""Of zstd: higher ones cost more time than they save space."""


class Origin(NamedTuple):
    """Who sent blocks of one shape."""

    job: str
    node: str
    entities: tuple[str, ...]


@dataclass(slots=True)
class Blocks:
    """Blocks of one schema. Lists side by side: an object for each block would keep the garbage collector busy."""

    times: list[float] = field(default_factory=list)
    """Of readings; those of steps are in the data."""
    data: list[bytes] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """How many steps; 0 = readings."""

    def add(self, origin: Origin, times: list[float], data: list[bytes], steps: int = 0) -> None:
        """Some more of one origin."""
        self.times += times
        self.data += data
        self.origins += [origin] * len(data)
        self.steps += [steps] * len(data)

    def portions(self, rows: int) -> Iterator["Blocks"]:
        """The same in pieces of about so many rows."""
        counts = np.array([len(origin.entities) for origin in self.origins]) * np.maximum(self.steps, 1)
        cuts = np.flatnonzero(np.diff(np.cumsum(counts) // rows)) + 1
        for begin, end in pairwise([0, *cuts.tolist(), len(self.data)]):
            piece = slice(begin, end)
            yield Blocks(self.times[piece], self.data[piece], self.origins[piece], self.steps[piece])


class TableFile:
    """One file that is being written, row group by row group."""

    def __init__(self, path: Path, schema: SchemaRecord) -> None:
        self.path = path
        self.schema = schema
        self.rows = 0
        self.earliest, self.latest = float("inf"), float("-inf")
        self._names = column_names(schema)
        self._writer: Any = None

    def write(self, blocks: Blocks) -> None:
        """Add these blocks, in this order, as row groups; those of one origin should stand together."""
        for portion in blocks.portions(ROW_GROUP):
            times, columns = (_of_steps if self.schema.steps else _of_readings)(portion, self._names)
            if times.size:
                self.rows += times.size
                self.earliest, self.latest = min(self.earliest, times.min()), max(self.latest, times.max())
                self._write(columns)

    def close(self) -> None:
        """Finish the file; without rows there is none."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, columns: dict[str, Any]) -> None:
        arrow = pa.table(columns)
        if self._writer is None:
            self._writer = writer_of(self.path, arrow)
        self._writer.write_table(arrow, row_group_size=len(arrow))


def column_names(schema: SchemaRecord) -> tuple[str, ...]:
    """Of the metrics; one that is called like a key gets another name, as does one that is there twice."""
    taken = set(STEP_KEYS if schema.steps else KEYS)
    names = []
    for name in schema.names:
        unique = name
        while unique in taken:
            unique = f"{unique}_"
        taken.add(unique)
        names.append(unique)
    return tuple(names)


def writer_of(path: Path, first: Any) -> Any:
    """A Parquet writer whose encodings suit the first columns that are written."""
    floats = [field.name for field in first.schema if pa.types.is_float32(field.type)]
    numbers = [field.name for field in first.schema if pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type)]
    noise = [name for name in floats if _is_noise(first[name])]
    words = [name for name in first.column_names if name not in (*floats, *numbers)]
    return pq.ParquetWriter(
        path, first.schema, compression="zstd", compression_level=LEVEL, write_statistics=[*numbers, *words], store_schema=False,
        use_dictionary=[name for name in first.column_names if name not in (*noise, *numbers)],
        use_byte_stream_split=noise, column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
    )  # fmt: skip


def _is_noise(column: Any) -> bool:
    sample = column.slice(0, SAMPLE).combine_chunks()
    return len(sample) > SAMPLE // 4 and len(sample.unique()) > DISTINCT * len(sample)


def _of_readings(blocks: Blocks, names: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """(times, columns)"""
    runs = _Runs.of(blocks)
    counts = np.array([len(origin.entities) for origin in blocks.origins])
    values = np.frombuffer(b"".join(blocks.data), dtype="<f4").reshape(-1, len(names))
    times = np.repeat(np.array(blocks.times), counts)
    within = np.arange(len(times)) - np.repeat(np.cumsum(counts) - counts, counts)
    keys = runs.columns(times, np.repeat(runs.of_block, counts), within)
    return times, keys | dict(zip(names, map(_floats, _turned(values)), strict=True))


def _of_steps(blocks: Blocks, names: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """(times, columns); a row for each step and worker that has completed it."""
    runs = _Runs.of(blocks)
    parts = []
    for data, origin, rows, run in zip(blocks.data, blocks.origins, blocks.steps, runs.of_block, strict=True):
        workers = len(origin.entities)
        numbers, epochs, ends, values = (each[0] for each in step_arrays(data, rows, workers, len(names)))
        within = np.tile(np.arange(workers), rows)
        flat = (np.repeat(numbers, workers), np.repeat(epochs, workers), ends.reshape(-1), values.reshape(-1, len(names)))
        parts.append((*flat, np.full(len(within), run), within))
    steps, epochs, ends, values, of_run, within = (np.concatenate(each) for each in zip(*parts, strict=True))
    done = np.isfinite(ends)
    with np.errstate(over="ignore"):
        metrics = _turned(values[done].astype(np.float32))
    keys = runs.columns(ends[done], of_run[done], within[done]) | {"step": pa.array(steps[done]), "epoch": pa.array(epochs[done])}
    return ends[done], keys | dict(zip(names, map(_floats, metrics), strict=True))


class _Runs(NamedTuple):
    """Neighbouring blocks of one origin are one run: its names stand once in the dictionaries of a row group."""

    origins: list[Origin]
    begins: Any
    """Of its entities in the dictionary."""
    of_block: Any

    @classmethod
    def of(cls, blocks: Blocks) -> "_Runs":
        changes = [True, *(one is not other for one, other in pairwise(blocks.origins))]
        origins = list(compress(blocks.origins, changes))
        ends = np.cumsum([len(origin.entities) for origin in origins])
        return cls(origins, ends - [len(origin.entities) for origin in origins], np.cumsum(changes) - 1)

    def columns(self, times: Any, of_run: Any, within: Any) -> dict[str, Any]:
        """The keys of the rows. of_run: row → its run; within: row → its entity within the run."""
        return {
            "time": pa.array((times * 1e6).astype(np.int64), pa.timestamp("us", "UTC")),
            "job": _dictionary(of_run, [origin.job for origin in self.origins]),
            "node": _dictionary(of_run, [origin.node for origin in self.origins]),
            "entity": _dictionary(self.begins[of_run] + within, list(chain.from_iterable(origin.entities for origin in self.origins))),
        }


def _dictionary(codes: Any, words: list[str]) -> Any:
    """Each word once, as a dictionary is to be."""
    unique = dict.fromkeys(words)
    if len(unique) < len(words):
        place = {word: index for index, word in enumerate(unique)}
        codes = np.array([place[word] for word in words])[codes]
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(list(unique), pa.string()))


def _floats(values: Any) -> Any:
    """NaN is no reading: null, so that averages leave it out."""
    missing = np.isnan(values)
    return pa.array(values, mask=missing) if missing.any() else pa.array(values)


def _turned(values: Any) -> Any:
    """Rows × columns → columns × rows, piece by piece, as a whole would leave the processor's cache."""
    turned = np.empty(values.shape[::-1], values.dtype)
    for begin in range(0, len(values), PIECE):
        turned[:, begin : begin + PIECE] = values[begin : begin + PIECE].T
    return turned
