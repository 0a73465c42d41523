"""Records that are kept to be read again: dead letters as the command lists them, and files of records as a replay takes them."""

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from rich.console import Console

from detectors.diagnosis import Diagnosis
from detectors.runtime.incident_recorder import MAGIC, read_records, write_records
from detectors.runtime.replay import replay
from eagle_eye import wire
from eagle_eye.app import plugin_wiring
from eagle_eye.app.printing import TableColumn, local_time, print_table
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config
from eagle_eye.dead_letters import dead_letter, dead_letters
from eagle_eye.errors import WireError
from eagle_eye.stream import DEAD_LETTERS, FINDINGS, INCIDENTS, OBSERVATIONS, Message
from eagle_eye.types import Mark

from .mutated_record import MutatedRecords
from .mutation import Mutation
from .rolling_stream import RollingStream
from .sample_findings import SampleFindings, tree_of
from .sample_job import JOB, SampleJob
from .target import Fault, Tally, Target

LISTED = 200
"""Records after which the dead letters are listed."""
REPLAYED = 400
"""Records after which all that was kept is judged again."""
COLUMNS = (TableColumn("time"), TableColumn("key", name=True), TableColumn("topic", drop=1), TableColumn("offset"), TableColumn("why", prose=True))


class DeadLetters:
    """The topic of dead letters, as the command reads it."""

    def __init__(self) -> None:
        self._clock = FakeClock()
        self._taken = self._passed_over = 0
        self._stream = RollingStream(self._clock)

    def take(self, random: Random) -> None:
        self._taken += 1
        mutation = Mutation(random)
        key, value = dead_letter(Message(OBSERVATIONS, 0, self._taken, JOB, random.randbytes(40), 1.7e9), "a record of ours begins with b'EE'")
        mutated = mutation.encoded(msgspec.json.decode(value), "json")
        self._stream.put(DEAD_LETTERS, random.choice((key, mutation.text())), mutated, random.choice((self._clock.now(), mutation.number())))
        if self._taken % LISTED == 0:
            self._list()

    def tally(self) -> Tally:
        return Tally(self._passed_over, self._passed_over)  # nobody of ours has written them

    def _list(self) -> None:
        rows = [
            (local_time(time), key, f"{letter.topic}/{letter.partition}", str(letter.offset), letter.reason) for time, key, letter in dead_letters(self._stream)
        ]
        self._passed_over += LISTED - len(rows)
        print_table(Console(file=io.StringIO(), width=100), COLUMNS, rows[-20:], wide=False)
        self._stream = RollingStream(self._clock)


class RecordFiles:
    """Files of records around incidents: written by the recorder, mutated, read, and judged again."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "i1.records"
        self._job = SampleJob()
        self._records = MutatedRecords(SampleJob(incarnation="another"))
        self._findings = SampleFindings(SampleJob())
        self._detectors = plugin_wiring.detectors(Config())
        self._now, self._taken = 1.7e9, 0
        self._refused = 0
        self._kept: list[Message] = []

    def take(self, random: Random) -> None:
        self._taken += 1
        self._now += 0.05
        self._kept += [self._message(random)]
        if self._taken % 20 == 0:
            self._kept += [self._put(wire.encode(record)) for record in [*self._job.second(self._now, self._taken // 20), self._mark()]]
        write_records(self._path, self._kept[-8:])
        self._path.write_bytes(self._mutated(self._path.read_bytes(), Mutation(random)))
        try:
            if len(list(read_records(self._path))) > 2 * 8:  # a part that is repeated may hold whole ones
                raise Fault("more records were read than had been written")
        except WireError:
            self._refused += 1
        if self._taken % REPLAYED == 0:
            self._judge_again()

    def tally(self) -> Tally:
        return Tally(self._refused, self._refused)  # the command says so

    def _judge_again(self) -> None:
        result = replay(self._kept, self._detectors, Diagnosis(), from_start=True)
        if not result.summary:
            raise Fault("a replay without a result")
        self._kept.clear()
        self._job = SampleJob()

    def _message(self, random: Random) -> Message:
        if random.random() < 0.7:
            return self._put(self._records.draw(random, self._now, self._mark()))
        topic, noun = (FINDINGS, self._findings.finding(random, self._now)) if random.random() < 0.5 else (INCIDENTS, self._findings.incident(random, self._now))
        tree: Any = tree_of(noun)
        return Message(topic, 0, self._taken, JOB, Mutation(random).encoded(tree, "json"), self._now)

    def _put(self, value: bytes) -> Message:
        return Message(OBSERVATIONS, 0, self._taken, JOB, value, self._now)

    def _mark(self) -> Mark:
        return Mark(mark="tick", generation=1, number=self._taken, time=self._now)

    @staticmethod
    def _mutated(data: bytes, mutation: Mutation) -> bytes:
        random = mutation.random
        what = random.random()
        if what < 0.2:
            return mutation.data(data)
        if what < 0.4:
            return MAGIC + struct.pack("<I", random.choice((0, 1, 2**31, 2**32 - 1))) + data[len(MAGIC) + 4 :]
        if what < 0.8:
            size = struct.unpack_from("<I", data, len(MAGIC))[0]
            begin = len(MAGIC) + 4
            record = mutation.encoded(msgspec.msgpack.decode(data[begin : begin + size]), "msgpack")
            return MAGIC + struct.pack("<I", len(record)) + record + data[begin + size :]
        return data


@contextmanager
def letters(_: Path) -> Iterator[DeadLetters]:
    """In the memory of this process."""
    yield DeadLetters()


@contextmanager
def record_files(folder: Path) -> Iterator[RecordFiles]:
    """In the folder."""
    yield RecordFiles(folder)


TARGETS = (
    Target("dead-letters", "dead letters, listed as the command does", letters),
    Target("records", "files of records around incidents, read and judged again", record_files),
)
