"""Committed offsets and the number of partitions of each topic: one small SQLite file."""

import fcntl
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from eagle_eye.clock import Clock
from eagle_eye.errors import StreamError, StreamUnavailable
from eagle_eye.stream.sqlite_files import TornFile, check_identity, connect, file_id, identify, translated, writing

_CHECKPOINT_PAGES = 64
_log = logging.getLogger(__name__)
_TABLES = """
CREATE TABLE IF NOT EXISTS topics (topic TEXT PRIMARY KEY, partitions INTEGER) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS committed (
    team TEXT, topic TEXT, partition INTEGER, place INTEGER, PRIMARY KEY (team, topic, partition)
) STRICT, WITHOUT ROWID;
"""


class CommittedOffsets:
    """How far each group has read. Safe for threads and processes."""

    def __init__(self, path: Path, busy_s: float, clock: Clock) -> None:
        self._path = path
        self._busy_s = busy_s
        self._clock = clock
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = self._open()
        except TornFile as torn:
            raise self._told(torn) from torn

    def _open(self) -> sqlite3.Connection:
        with self._alone(), translated(self._path):
            connection = connect(self._path, checkpoint=_CHECKPOINT_PAGES)
            try:
                with writing(connection, self._path, self._clock, self._busy_s):
                    new = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
                    if new:
                        identify(connection)
                        for statement in _TABLES.split(";"):
                            connection.execute(statement)
                check_identity(connection, self._path)
                self._id = file_id(self._path)
            except BaseException:
                connection.close()
                raise
        return connection

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time opens the file: SQLite does not wait when two switch a new file to WAL mode at once."""
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _told(self, torn: TornFile) -> StreamError:
        return StreamError(
            f"{torn}: {self._path} is torn. End every Eagle Eye process on this machine and move the file away: the "
            "records are in other files and stay; readers begin again at the oldest record"
        )

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock, translated(self._path):
                self._follow()
                yield self._connection
        except TornFile as torn:
            raise self._told(torn) from torn

    def _follow(self) -> None:
        """Somebody deleted or moved the file while it was in use: what it holds goes over to the one that lies there, or to a new one."""
        try:
            if file_id(self._path) == self._id:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = self._open()
        except OSError as error:
            raise StreamUnavailable(f"{self._path} was deleted or moved while it was in use, and no new one can be made ({error})") from error
        old, self._connection = self._connection, connection
        with closing(old), writing(connection, self._path, self._clock, self._busy_s):
            connection.executemany("INSERT INTO topics VALUES (?, ?) ON CONFLICT DO NOTHING", old.execute("SELECT topic, partitions FROM topics"))
            newer = "INSERT INTO committed VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET place = max(place, excluded.place)"
            connection.executemany(newer, old.execute("SELECT team, topic, partition, place FROM committed"))
        _log.warning("%s was deleted or moved while it was in use: committed offsets went over to a new one", self._path)

    @contextmanager
    def _changed(self) -> Iterator[sqlite3.Connection]:
        with self._used() as connection, writing(connection, self._path, self._clock, self._busy_s):
            yield connection

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def partitions(self, topic: str, wanted: int) -> int:
        """How many partitions the topic has: what its first user wanted."""
        query = "SELECT partitions FROM topics WHERE topic = ?"
        with self._used() as connection:
            row = connection.execute(query, (topic,)).fetchone()
        if row is None:
            with self._changed() as connection:
                connection.execute("INSERT INTO topics VALUES (?, ?) ON CONFLICT DO NOTHING", (topic, wanted))
                row = connection.execute(query, (topic,)).fetchone()
        return int(row[0])

    def topics(self) -> dict[str, int]:
        """Every topic and its number of partitions."""
        with self._used() as connection:
            return dict(connection.execute("SELECT topic, partitions FROM topics").fetchall())

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Remember the offset."""
        with self._changed() as connection:
            connection.execute(
                "INSERT INTO committed VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET place = excluded.place",
                (group, topic, partition, offset),
            )

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """The committed offset, None if there is none."""
        with self._used() as connection:
            row = connection.execute(
                "SELECT place FROM committed WHERE team = ? AND topic = ? AND partition = ?", (group, topic, partition)
            ).fetchone()
        return None if row is None else int(row[0])
