"""The history of a partition: mutated records of the observations through its writer, into files that are merged and asked again."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from eagle_eye import wire
from eagle_eye.clock import FakeClock
from eagle_eye.config import HistoryConfig
from eagle_eye.errors import WireError
from eagle_eye.history.compaction import Compactor
from eagle_eye.history.object_store import ObjectStore
from eagle_eye.history.partition_writer import PartitionWriter
from eagle_eye.history.queries import History
from eagle_eye.stream import OBSERVATIONS, Message
from eagle_eye.types import Mark, Record

from .mutated_record import MutatedRecords
from .mutation import FLOATS
from .sample_job import JOB, SampleJob
from .target import Fault, Tally, Target

SECOND = 20
"""Mutated records in a second of the stream; each second also has the job's own."""
FILE_S = 10.0
ASKED = 1000
"""Records after which files are merged, removed, and asked for what is in them."""
ODD_TIME = 0.01
"""Share of the records that came with an odd time: a writer sets it, and its clock may be anything."""


class WrittenHistory:
    """One partition's writer over a stream that goes on."""

    def __init__(self, folder: Path) -> None:
        self._clock = FakeClock()
        self._place = ObjectStore.of(folder / "history")
        self._folder = folder / "history"
        self._compactor = Compactor(self._place, HistoryConfig(file_s=FILE_S, compact_s=60.0, retention_s=600.0), self._clock)
        self._history = History(self._place)
        self._writer = PartitionWriter(self._place, 0, file_s=FILE_S)
        self._job, self._samples = SampleJob(), SampleJob(incarnation="another")
        self._records = MutatedRecords(self._samples)
        self._reader = wire.RecordReader()
        self._history.metrics()  # its libraries take seconds to load
        self._offset = self._taken = self._written = 0
        self._refused = 0

    def take(self, random: Random) -> None:
        self._taken += 1
        self._clock.advance(1.0 / SECOND)
        now = self._clock.now()
        record = self._records.draw(random, now, Mark(mark="tick", generation=1, number=self._taken, time=now))
        self._refused += self._is_unreadable(record)
        time = random.choice([value for value in FLOATS if value == value and abs(value) != float("inf")]) if random.random() < ODD_TIME else now
        self._put(record, time)
        if self._taken % SECOND == 0:
            for valid in self._job.second(now, self._taken // SECOND):
                self._put_valid(valid, now)
        if self._taken % ASKED == 0 and self._taken > ASKED:
            self._ask(now)

    def tally(self) -> Tally:
        return Tally(self._refused, self._refused)  # the runner counts them, and keeps them aside

    def close(self) -> None:
        self._writer.abandon()
        self._history.close()

    def _put(self, value: bytes, time: float) -> None:
        self._writer.take([Message(OBSERVATIONS, 0, self._offset, JOB, value, time)])
        self._offset += 1

    def _put_valid(self, record: Record, now: float) -> None:
        self._put(wire.encode(record), now)
        self._written += 1

    def _ask(self, now: float) -> None:
        """What the dashboard asks; the job's own rows of a minute ago must be there, whatever came beside them."""
        self._compactor.compact(0)
        self._compactor.retain()
        self._history.metrics()
        since, until = now - 45.0, now - 15.0
        self._history.entities("node/host", since=since, until=until, job=JOB)
        rows = self._history.series("node/host", ["cpu_percent"], since=since, until=until, job=JOB, entities=("node-a",), every=1.0)
        if rows.num_rows < until - since - 2:
            raise Fault(f"of {until - since:.0f} s of node-a {rows.num_rows} are in the history")

    def _is_unreadable(self, record: bytes) -> bool:
        try:
            self._reader.read(record)
        except WireError:
            return True
        return False


@contextmanager
def written_history(folder: Path) -> Iterator[WrittenHistory]:
    """In the folder."""
    logging.getLogger("eagle_eye.history").setLevel(logging.ERROR)
    subject = WrittenHistory(folder)
    try:
        yield subject
    finally:
        subject.close()
        shutil.rmtree(folder / "history", ignore_errors=True)


TARGET = Target("history", "observations through the history's writer; its files merged and asked", written_history)
