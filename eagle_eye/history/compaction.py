"""Small files into large ones, old ones away. Readers see each row once all the time, and a process that dies loses nothing.

A large file is put first, and covers the small ones by its name; these are removed a while later, when no question that
was asked before is still being answered.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagle_eye.clock import Clock
from eagle_eye.config import HistoryConfig
from eagle_eye.errors import HistoryError
from eagle_eye.retention_clock import RetentionClock

from .file_names import MERGED, HistoryFile, visible, window_of
from .object_store import ObjectStore
from .parquet_tables import ROW_GROUP, writer_of

GRACE_S = 300.0
"""A file that is covered by another is still there for so long; a window is left alone until it is so old."""
UNFINISHED_S = 86_400.0
LARGE_BYTES = 256 << 20
"""Files that are larger together are large enough each."""
ORDER = [("job", "ascending"), ("entity", "ascending"), ("time", "ascending"), ("node", "ascending")]
"""So that a question about one entity reads few row groups."""
MERGED_ROWS = 1 << 22
"""Rows that are sorted together: as many as fit well into memory."""
log = logging.getLogger(__name__)


class Compactor:
    """Looks after the files of some partitions."""

    def __init__(self, place: ObjectStore, config: HistoryConfig, clock: Clock) -> None:
        self._place = place
        self._config = config
        self._clock = clock
        self._covered: dict[str, float] = {}
        """Path of a file that is covered → since when we know, by the monotonic clock."""
        self._retention = RetentionClock(clock, config.retention_s, self._times, "history")

    def compact(self, partition: int) -> int:
        """Make large files of the small ones of a partition, and remove what is covered; returns how many were made. Raises HistoryError."""
        now, span = self._clock.now(), max(self._config.compact_s, self._config.file_s)
        groups: dict[tuple[str, float], list[HistoryFile]] = defaultdict(list)
        files = [file for file in self._place.files(since=now - 3 * max(span, 86_400.0)) if file.partition == partition]
        for file in visible(files):
            groups[file.table, window_of(file.window, span)].append(file)
        over = [group for (_, begin), group in groups.items() if len(group) > 1 and begin + span + GRACE_S <= now]
        ripe = [group for group in over if sum(file.bytes for file in group) <= LARGE_BYTES]
        self._remove_covered([*files, *(merge(self._place, group) for group in ripe)], self._clock.monotonic())
        return len(ripe)

    def retain(self) -> int:
        """Remove what is too old, and the oldest beyond the bytes that are allowed; returns how many. Of all partitions. Raises HistoryError."""
        now = self._retention.now()
        files = sorted(self._place.files(), key=lambda file: (self._newest(file), file.path))
        total = sum(file.bytes for file in files)
        removed = 0
        for file in files:
            if self._newest(file) >= now - self._config.retention_s and total <= self._config.max_bytes:
                break
            self._place.remove(file)
            total -= file.bytes
            removed += 1
        self._place.delete_unfinished(now - UNFINISHED_S)
        return removed

    def _newest(self, file: HistoryFile) -> float:
        """Time of its newest rows; those of a clock that is ahead are as old as what they came with."""
        return min(file.latest, file.last_window + self._config.file_s + GRACE_S)

    def _times(self) -> Iterator[float]:
        for file in self._place.files():
            yield from (file.window, file.last_window)

    def _remove_covered(self, files: Sequence[HistoryFile], now: float) -> None:
        seen = {file.path for file in visible(files)}
        covered = {file.path: file for file in files if file.path not in seen}
        self._covered = {path: self._covered.get(path, now) for path in covered}
        for path, since in list(self._covered.items()):
            if now - since >= GRACE_S:
                self._place.remove(covered[path])
                del self._covered[path]


def merge(place: ObjectStore, files: Sequence[HistoryFile]) -> HistoryFile:
    """One file with all rows of several, of whatever schemas; a row that is there twice stays once. Raises HistoryError."""
    first = files[0]
    merged = HistoryFile(
        table=first.table, window=min(file.window for file in files), partition=first.partition, first=min(file.first for file in files),
        last=max(file.last for file in files), earliest=min(file.earliest for file in files), latest=max(file.latest for file in files),
        schema=f"{MERGED}{max(file.last_window for file in files)}",
    )  # fmt: skip
    path = place.new(f"p{merged.partition}-{merged.window}-{merged.schema}.parquet")
    try:
        schema = pa.unify_schemas([_schema_of(place, file) for file in files])
        with _SortedFile(path, schema) as sorted_rows:
            for file in files:
                with place.filesystem.open(place.url(file), "rb") as opened:
                    source = pq.ParquetFile(opened)
                    for group in range(source.num_row_groups):
                        sorted_rows.add(source.read_row_group(group))
    except (OSError, pa.ArrowException) as error:
        path.unlink(missing_ok=True)
        raise HistoryError(f"{merged.path} cannot be made: {error}") from error
    place.put(path, merged)
    log.info("history: %d files became %s", len(files), merged.path)
    return merged


def _schema_of(place: ObjectStore, file: HistoryFile) -> Any:
    """Words are plain, so that dictionaries of several files go together."""
    with place.filesystem.open(place.url(file), "rb") as opened:
        schema = pq.read_schema(opened)
    fields = [pa.field(each.name, pa.string()) if pa.types.is_dictionary(each.type) else each for each in schema]
    return pa.schema([pa.field(each.name, each.type) for each in fields])


class _SortedFile:
    """A file whose rows are sorted as far as memory goes."""

    def __init__(self, path: Any, schema: Any) -> None:
        self._path = path
        self._schema = schema
        self._writer: Any = None
        self._tables: list[Any] = []
        self._rows = 0

    def __enter__(self) -> "_SortedFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def add(self, table: Any) -> None:
        missing = [field for field in self._schema if field.name not in table.column_names]
        for field in missing:
            table = table.append_column(field, pa.nulls(len(table), field.type))
        self._tables.append(table.select(self._schema.names).cast(self._schema))
        self._rows += len(table)
        if self._rows >= MERGED_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._tables:
            return
        keys = [*ORDER, *((field.name, "ascending") for field in self._schema if pa.types.is_int64(field.type))]  # step and epoch
        table = _unique(pa.concat_tables(self._tables).sort_by(keys), [name for name, _ in keys])
        self._tables, self._rows = [], 0
        if self._writer is None:
            self._writer = writer_of(self._path, table, [name for name, _ in ORDER])
        self._writer.write_table(table, row_group_size=ROW_GROUP)


def _unique(table: Any, keys: Sequence[str]) -> Any:
    """Of neighbours with the same keys the first."""
    import pyarrow.compute as pc

    if len(table) < 2:
        return table
    differs = None
    for name in keys:
        column = table[name].combine_chunks()
        new = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        differs = new if differs is None else pc.or_(differs, new)
    return table.filter(pa.concat_arrays([pa.array([True]), pc.fill_null(differs, True)]))
