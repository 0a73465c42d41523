"""Questions to the history: which metrics and entities there are, and their numbers over a window of time.

    history = History(ObjectStore.of("/var/lib/eagle-eye/history"))
    history.series("gpu", ["power_watts"], since=0.0, until=3600.0, entities=["GPU-…"], every=10.0)

Each question looks at the files that are there when it is asked; what is written or made larger meanwhile does not
disturb it. Names and values go to DuckDB as parameters or as quoted names, never as text of a query.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from eagle_eye.errors import HistoryError

from .file_names import HistoryFile, visible
from .object_store import ObjectStore
from .parquet_tables import KEYS, STEP_KEYS

AGGREGATES = {"mean": "avg", "min": "min", "max": "max", "last": "arg_max", "count": "count"}
"""How the numbers of one interval become one."""
OFFLINE = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
"""DuckDB fetches no extensions: all that is needed is built in."""
RETRIES = 3
RUN = 2
"""Slashes of tenant/name/run; with fewer, all runs of a job are meant."""
ROWS = "read_parquet($files, union_by_name = true, hive_partitioning = false) AS history"
SAMPLED = 50
"""Files whose columns are looked at for a list of metrics: the newest of each table."""


@dataclass(frozen=True, slots=True, order=True)
class MetricColumn:
    """One column of one table."""

    table: str
    """kind/source, or steps/source."""
    name: str


class History:
    """Reads a place. Thread-safe; every method may raise HistoryError."""

    def __init__(self, place: ObjectStore) -> None:
        self._place = place
        self._database: Any = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Release the database in memory that answers the questions; the next question makes another."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def tables(self) -> tuple[str, ...]:
        """kind/source of readings, steps/source of steps."""
        return tuple(self._place.tables())

    def metrics(self, table: str = "") -> tuple[MetricColumn, ...]:
        """All that the newest files hold; `table` may also be a kind alone."""
        found = set()
        for name in self._tables_of(table, missing=not table):
            for file in visible(self._place.files(name))[-SAMPLED:]:
                found |= {MetricColumn(name, column) for column in self._columns(file) if column not in _keys_of(name)}
        return tuple(sorted(found))

    def entities(self, table: str, *, since: float, until: float, job: str = "") -> tuple[tuple[str, str, str], ...]:
        """(job, node, entity) of whatever has a row in that time, sorted."""
        question = f"SELECT DISTINCT job, node, entity FROM {ROWS} WHERE {_where(job, ())} ORDER BY ALL"  # noqa: S608 -- keys and placeholders alone
        rows = self._ask(table, question, {"job": job} if job else {}, since, until).to_pylist()
        return tuple((row["job"], row["node"], row["entity"]) for row in rows)

    def series(
        self, table: str, names: Sequence[str], *, since: float, until: float, job: str = "", entities: Sequence[str] = (),
        every: float = 0.0, aggregate: str = "mean",
    ) -> Any:
        """An Arrow table: time, job, node, entity (of steps also step and epoch), and a float column for each name.

        From `since` on and before `until`, seconds since 1970; entities: () = all. every: seconds of one interval, 0 = each
        row as it came; with an interval, `aggregate` says which of AGGREGATES, and `time` is its beginning. What was not read is
        null. Raises HistoryError for a name that no file of that time has.
        """  # fmt: skip
        if aggregate not in AGGREGATES:
            raise HistoryError(f"{aggregate!r} is no aggregate of an interval; choose one of {', '.join(AGGREGATES)}")
        if not names or not until > since or every < 0:
            raise HistoryError("a series needs at least one metric, an end after its beginning, and an interval of at least 0 s")
        columns = self._check(table, names, since, until)
        where = _where(job, entities)
        given = {"job": job, "entities": list(entities), "every": every}
        if every:
            question = _aggregated(names, where, aggregate)
        else:
            keys = [key for key in _keys_of(table) if key in columns]
            chosen = ", ".join([*keys, *(_quoted(name) for name in names)])
            question = f"SELECT {chosen} FROM {ROWS} WHERE {where} ORDER BY {', '.join(keys)}"  # noqa: S608 -- quoted
        return self._ask(table, question, {name: value for name, value in given.items() if value}, since, until)

    def ask(self, table: str, question: str, given: dict[str, Any] | None = None, *, since: float, until: float) -> Any | None:
        """An Arrow table: the answer to a question in SQL, in which {rows} stands for the rows of that time, and $name for a value of `given`.

        None where the history holds nothing of that time. For those who aggregate: `series` and `entities` ask the rest.
        """
        if not self._files(table, since, until):
            return None
        return self._ask(table, question.replace("{rows}", f"(SELECT * FROM {ROWS} WHERE {_where('', ())})"), given or {}, since, until)  # noqa: S608 -- the condition is ours

    def files(self, table: str, *, since: float, until: float) -> tuple[HistoryFile, ...]:
        """That hold rows of that time, of one table or of all of a kind; what is in a file never changes, but it may become a part of another."""
        return tuple(self._files(table, since, until))

    def ask_file(self, file: HistoryFile, question: str) -> Any | None:
        """As `ask`, of all that one file holds; None if it is gone since it was listed."""
        import duckdb

        try:
            return self._run(question.replace("{rows}", f"(SELECT * FROM {ROWS})"), [file], {})  # noqa: S608 -- a constant
        except (duckdb.Error, FileNotFoundError) as error:
            if file not in self._files(file.table, file.earliest, file.latest + 1):
                return None
            raise HistoryError(f"{file.path} cannot be read: {error}") from error

    def ask_rows(self, rows: Any, question: str, given: dict[str, Any] | None = None) -> Any:
        """As `ask`, of the rows of an Arrow table."""
        import duckdb

        with self._cursor() as cursor:
            try:
                return cursor.register("given_rows", rows).sql(question.replace("{rows}", "given_rows"), params=given or {}).to_arrow_table()
            except duckdb.Error as error:
                raise HistoryError(f"a question to {rows.num_rows} rows has no answer: {error}") from error

    # --- DuckDB ----------------------------------------------------------------------------------------------------

    def _ask(self, table: str, question: str, given: dict[str, Any], since: float, until: float) -> Any:
        """An Arrow table. A file that is gone since it was listed has become a part of another: ask again."""
        import duckdb

        for attempt in range(RETRIES):
            files = self._files(table, since, until)
            if not files:
                raise HistoryError(f"the history holds nothing of {table!r} in that time; it has {', '.join(self.tables()) or 'nothing yet'}")
            try:
                return self._run(question, files, {**given, **_times(since, until)})
            except (duckdb.IOException, FileNotFoundError) as error:
                if attempt == RETRIES - 1:
                    raise HistoryError(f"{self._place.name} cannot be read: {error}") from error
            except duckdb.Error as error:
                raise HistoryError(f"{self._place.name} cannot be read: {error}") from error
        raise AssertionError("unreachable")

    def _run(self, question: str, files: Sequence[HistoryFile], given: dict[str, Any]) -> Any:
        paths = [self._prefix + self._place.url(file) for file in files]
        with self._cursor() as cursor:
            cursor.execute("SET TimeZone = 'UTC'")
            return cursor.sql(question, params={**given, "files": paths}).to_arrow_table()

    def _cursor(self) -> Any:
        """Of a database in memory, which holds nothing; each thread has one of its own."""
        import duckdb

        with self._lock:
            if self._database is None:
                self._database = duckdb.connect(config=OFFLINE)
                if not self._place.local:
                    self._database.register_filesystem(self._place.filesystem)
            return self._database.cursor()

    @property
    def _prefix(self) -> str:
        """Before a path, so that DuckDB asks the right file system."""
        protocol = self._place.filesystem.protocol
        return "" if self._place.local else f"{protocol if isinstance(protocol, str) else protocol[0]}://"

    # --- files -----------------------------------------------------------------------------------------------------

    def _files(self, table: str, since: float, until: float) -> list[HistoryFile]:
        found = [file for name in self._tables_of(table) for file in visible(self._place.files(name, since))]
        return [file for file in found if file.overlaps(since, until)]

    def _tables_of(self, table: str, *, missing: bool = True) -> list[str]:
        """Those that are meant: one, or all of a kind."""
        known = self._place.tables()
        found = [name for name in known if table in ("", name, name.partition("/")[0])]
        if not found and not missing:
            raise HistoryError(f"there is no table {table!r} in the history; it has {', '.join(known) or 'nothing yet'}")
        return found

    def _columns(self, file: HistoryFile) -> tuple[str, ...]:
        try:
            with self._place.filesystem.open(self._place.url(file), "rb") as opened:
                return tuple(pq.read_schema(opened).names)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as error:  # Arrow's error of a torn file is a ValueError
            raise HistoryError(f"{file.path} cannot be read: {error}") from error

    def _check(self, table: str, names: Sequence[str], since: float, until: float) -> set[str]:
        """The columns of that time. Raises HistoryError naming what is not among them."""
        seen: dict[tuple[str, str], HistoryFile] = {(file.table, file.schema): file for file in self._files(table, since, until)}
        columns = {name for file in seen.values() for name in self._columns(file)}
        unknown = [name for name in names if name not in columns]
        if unknown and seen:
            raise HistoryError(f"{table} has no metric {', '.join(map(repr, unknown))} in that time; it has {', '.join(sorted(columns - set(STEP_KEYS)))}")
        return columns


def _times(since: float, until: float) -> dict[str, int]:
    return {"since": int(since * 1e6), "until": int(until * 1e6)}


def _where(job: str, entities: Sequence[str]) -> str:
    condition = "history.time >= make_timestamptz($since) AND history.time < make_timestamptz($until)"
    which = "job = $job" if job.count("/") == RUN else "(job = $job OR starts_with(job, $job || '/'))"
    return condition + (f" AND {which}" if job else "") + (" AND list_contains($entities, entity)" if entities else "")


def _aggregated(names: Sequence[str], where: str, aggregate: str) -> str:
    function, more = AGGREGATES[aggregate], ", history.time" if aggregate == "last" else ""
    numbers = ", ".join(f"{function}({_quoted(name)}{more}) AS {_quoted(name)}" for name in names)
    begin = "make_timestamptz((floor(epoch(history.time) / $every) * $every * 1e6)::BIGINT)"
    return f"SELECT {begin} AS time, job, node, entity, {numbers} FROM {ROWS} WHERE {where} GROUP BY ALL ORDER BY 1, 2, 3, 4"  # noqa: S608 -- quoted


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _keys_of(table: str) -> tuple[str, ...]:
    return STEP_KEYS if table.startswith("steps") else KEYS
