"""Names of files: which rows of which partition are in them.

    gpu/gpu/date=2025-11-20/hour=08/1763625600-p0003-000000001200-000000001499-1763625599-1763625630-5f2c81aa.parquet
    table                            window     part. first         last        earliest   latest     schema

The window is the time (of the stream) at which the file begins; first and last are offsets of the partition; earliest
and latest bound the times of the rows, which may be much older than the window where an agent had to spool. A file that
was made of several has the window of the first, the offsets of all, and `to` with the last window instead of a schema.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from eagle_eye.types import SchemaRecord, digest_of

MERGED = "to"
HOUR_S = 3600
_SOURCE = re.compile(r"[a-z0-9_]{1,40}")
_TABLE = r"(?P<table>[a-z]+/[a-z0-9_]+)"
_NAME = r"(?P<window>\d+)-p(?P<partition>\d+)-(?P<first>\d+)-(?P<last>\d+)-(?P<earliest>\d+)-(?P<latest>\d+)-(?P<schema>\w+)\.parquet"
_PATH = re.compile(rf"(?:.*/)?{_TABLE}/date=[\d-]{{10}}/hour=\d\d/{_NAME}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFile:
    """One file; times in whole seconds since 1970."""

    table: str
    """kind/source of readings, steps/source of steps."""
    window: int
    partition: int
    first: int
    last: int
    earliest: int
    latest: int
    schema: str
    bytes: int = 0

    @property
    def path(self) -> str:
        """Within the place."""
        return (
            f"{hour_folder(self.table, self.window)}/{self.window}-p{self.partition:04}-{self.first:012}-{self.last:012}-"
            f"{self.earliest}-{self.latest}-{self.schema}.parquet"
        )

    @property
    def merged(self) -> bool:
        """Whether it was made of several."""
        return self.schema.startswith(MERGED)

    @property
    def last_window(self) -> int:
        """Of the files that it was made of; its own otherwise."""
        return int(self.schema.removeprefix(MERGED)) if self.merged else self.window

    def covers(self, other: "HistoryFile") -> bool:
        """Whether everything of the other is in this one, which was made of several."""
        mine, theirs = ((each.table, each.partition) for each in (self, other))
        within = self.window <= other.window and other.last_window <= self.last_window
        return self.merged and self != other and mine == theirs and within and self.first <= other.first and other.last <= self.last

    def overlaps(self, since: float, until: float) -> bool:
        """Whether it may hold rows of a time from `since` on and before `until`."""
        return self.earliest < until and self.latest + 1 >= since


def parse(path: str, size: int = 0) -> HistoryFile | None:
    """None for what is no file of ours, e.g. one that is still being written."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    words = found.groupdict()
    numbers = {name: int(words[name]) for name in ("window", "partition", "first", "last", "earliest", "latest")}
    return HistoryFile(table=words["table"], schema=words["schema"], bytes=size, **numbers)


def table_of(schema: SchemaRecord) -> str:
    """Where rows of a schema go. A source came over the wire: what is no plain word is replaced by its digest."""
    source = schema.source if _SOURCE.fullmatch(schema.source) else f"x{digest_of(schema.source)[:12]}"
    return f"{'steps' if schema.steps else schema.kind.value}/{source}"


def hour_folder(table: str, time: float) -> str:
    """The folder of a table for the hour of a time."""
    return f"{table}/{datetime.fromtimestamp(time, UTC):date=%Y-%m-%d/hour=%H}"


def window_of(time: float, seconds: float) -> float:
    """When the window began that a time lies in."""
    return math.floor(time / seconds) * seconds


def visible(files: Iterable[HistoryFile]) -> list[HistoryFile]:
    """Those that a reader looks at: none whose rows are in another one, each of what was written twice once; oldest first."""
    groups: dict[tuple[str, int], list[HistoryFile]] = defaultdict(list)
    for file in files:
        groups[file.table, file.partition].append(file)
    kept = [file for group in groups.values() for file in _of_group(group)]
    return sorted(kept, key=lambda file: (file.window, file.partition, file.first))


def _of_group(files: list[HistoryFile]) -> Iterator[HistoryFile]:
    merged = [file for file in files if file.merged]
    seen = set()
    for file in sorted(files, key=lambda file: (file.window, file.first, file.earliest, file.latest)):
        key = (file.window, file.first, file.last, file.schema)
        if key not in seen and not any(other.covers(file) for other in merged):
            seen.add(key)
            yield file
