"""Blocks of batches → columns of a Parquet file: a row is a time and an entity, a column is a metric.

Rows come job by job, node by node, second by second. What a node sent is moved as one piece of bytes; no number is
touched one by one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle_eye.types import SchemaRecord
from eagle_eye.types.entity import LATEST
from eagle_eye.wire import step_arrays

ROW_GROUP = 1 << 17
"""Rows: what DuckDB reads as one piece, and skips as one."""
SAMPLE = 4096
PIECE = 512
DISTINCT = 0.4
"""Columns with a greater share of distinct values in a sample are no dictionaries."""
KEYS = ("time", "job", "node", "entity")
STEP_KEYS = (*KEYS, "step", "epoch")
BOUNDS = ("time", "job")
"""The rows of a new file are in the order of nodes: bounds of others would exclude nothing."""
LEVEL = 1
"""Of zstd: higher ones cost more time than they save space."""


class Origin(NamedTuple):
    """Who sent blocks of one shape."""

    job: str
    node: str
    entities: tuple[str, ...]


@dataclass(slots=True)
class Blocks:
    """Blocks of one schema as they came. Lists side by side: an object for each block would keep the garbage collector busy."""

    times: list[float] = field(default_factory=list)
    """Of readings; those of steps are in the data."""
    data: list[bytes] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    """Number of the origin."""
    steps: list[int] = field(default_factory=list)
    """Of blocks of steps alone: how many there are."""

    def portions(self, origins: Sequence[Origin], rows: int) -> Iterator["Portion"]:
        """All of them, sorted by origin and then as they came, in pieces of about so many rows."""
        numbers = np.array(self.origins)
        order = np.argsort(numbers, kind="stable")
        steps = np.array(self.steps or [1])[order if self.steps else np.zeros(len(order), np.intp)]
        entities = np.array([len(origin.entities) for origin in origins])[numbers[order]]
        cuts = np.flatnonzero(np.diff(np.cumsum(entities * steps) // rows)) + 1
        times = np.array(self.times)
        for piece in np.split(np.arange(len(order)), cuts):
            chosen = order[piece]
            data = [self.data[place] for place in chosen.tolist()]
            yield Portion(times[chosen] if times.size else times, data, numbers[chosen], steps[piece], origins)


class Portion(NamedTuple):
    """Some blocks of one schema, those of one origin together."""

    times: Any
    data: list[bytes]
    numbers: Any
    """Of each block's origin."""
    steps: Any
    origins: Sequence[Origin]
    """By number."""


class TableFile:
    """One file that is being written, row group by row group."""

    def __init__(self, path: Path, schema: SchemaRecord) -> None:
        self.path = path
        self.schema = schema
        self.rows = 0
        self.earliest, self.latest = float("inf"), float("-inf")
        self._names = column_names(schema)
        self._writer: Any = None

    def write(self, blocks: Blocks, origins: Sequence[Origin]) -> None:
        """Add these blocks as row groups; `origins` by their number."""
        for portion in blocks.portions(origins, ROW_GROUP):
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
            self._writer = writer_of(self.path, arrow, BOUNDS)
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


def writer_of(path: Path, first: Any, bounds: Sequence[str]) -> Any:
    """A Parquet writer whose encodings suit the first columns that are written; `bounds`: whose least and greatest are worth knowing."""
    floats = [field.name for field in first.schema if pa.types.is_float32(field.type)]
    numbers = [field.name for field in first.schema if pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type)]
    noise = [name for name in floats if _is_noise(first[name])]
    return pq.ParquetWriter(
        path, first.schema, compression="zstd", compression_level=LEVEL, write_statistics=list(bounds), store_schema=False,
        use_dictionary=[name for name in first.column_names if name not in (*noise, *numbers)],
        use_byte_stream_split=noise, column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
    )  # fmt: skip


def _is_noise(column: Any) -> bool:
    sample = column.slice(0, SAMPLE).combine_chunks()
    return len(sample) > SAMPLE // 4 and len(sample.unique()) > DISTINCT * len(sample)


def _of_readings(portion: Portion, names: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """(times, columns)"""
    runs = _Runs.of(portion)
    counts = runs.counts[runs.of_block]
    values = np.frombuffer(b"".join(portion.data), dtype="<f4").reshape(-1, len(names))
    times = np.repeat(portion.times, counts)
    within = np.arange(len(times)) - np.repeat(np.cumsum(counts) - counts, counts)
    keys = runs.columns(times, np.repeat(runs.of_block, counts), within)
    return times, keys | dict(zip(names, map(_floats, _turned(values)), strict=True))


def _of_steps(portion: Portion, names: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """(times, columns); a row for each step and worker that has completed it."""
    runs = _Runs.of(portion)
    parts = []
    for data, rows, run in zip(portion.data, portion.steps.tolist(), runs.of_block.tolist(), strict=True):
        workers = int(runs.counts[run])
        numbers, epochs, ends, values = (each[0] for each in step_arrays(data, rows, workers, len(names)))
        within = np.tile(np.arange(workers), rows)
        flat = (np.repeat(numbers, workers), np.repeat(epochs, workers), ends.reshape(-1), values.reshape(-1, len(names)))
        parts.append((*flat, np.full(len(within), run), within))
    steps, epochs, ends, values, of_run, within = (np.concatenate(each) for each in zip(*parts, strict=True))
    done = np.abs(ends) <= LATEST  # neither NaN nor what no calendar has
    with np.errstate(over="ignore"):
        metrics = _turned(values[done].astype(np.float32))
    keys = runs.columns(ends[done], of_run[done], within[done]) | {"step": pa.array(steps[done]), "epoch": pa.array(epochs[done])}
    return ends[done], keys | dict(zip(names, map(_floats, metrics), strict=True))


class _Runs(NamedTuple):
    """Neighbouring blocks of one origin are one run: its names stand once in the dictionaries of a row group."""

    origins: list[Origin]
    counts: Any
    """Of its entities."""
    of_block: Any
    """Block → its run."""

    @classmethod
    def of(cls, portion: Portion) -> "_Runs":
        present, of_block = np.unique(portion.numbers, return_inverse=True)
        origins = [portion.origins[number] for number in present.tolist()]
        return cls(origins, np.array([len(origin.entities) for origin in origins]), of_block)

    def columns(self, times: Any, of_run: Any, within: Any) -> dict[str, Any]:
        """The keys of the rows. of_run: row → its run; within: row → its entity within the run."""
        return {
            "time": pa.array((times * 1e6).astype(np.int64)).view(pa.timestamp("us", "UTC")),
            "job": _dictionary(of_run, [origin.job for origin in self.origins]),
            "node": _dictionary(of_run, [origin.node for origin in self.origins]),
            "entity": _dictionary((np.cumsum(self.counts) - self.counts)[of_run] + within, list(chain.from_iterable(origin.entities for origin in self.origins))),
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
