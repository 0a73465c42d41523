"""The runner of a partition, with every detector, the diagnosis and the metrics: what mutated records of the observations come to."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgspec

from detectors.diagnosis import Diagnosis
from detectors.runtime.runner import Runner
from eagle_eye import wire
from eagle_eye.app import plugin_wiring
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config
from eagle_eye.dead_letters import DeadLetter
from eagle_eye.errors import WireError
from eagle_eye.metrics.event_metrics import EventMetrics
from eagle_eye.metrics.job_metrics import JobMetrics
from eagle_eye.stream import DEAD_LETTERS, OBSERVATIONS
from eagle_eye.types import JobSnapshot, Mark, Notice, Record

from .mutated_record import MutatedRecords
from .rolling_stream import RollingStream
from .sample_forest import forest
from .sample_job import EVENTS, JOB, SampleJob
from .target import Fault, Tally, Target

SECOND = 20
"""Mutated records in a second of the stream; each second also has the job's own."""
LIFE = 9_000
"""Records after which another owner takes the partition over, and reads again what is there."""
CATCH_UP_STEPS = 100
RECORDS_BYTES = 64 << 20
"""Around incidents, of which mutated records make hundreds."""
CONTAINED = ("detector.failing", "detector.muted", "diagnosis.failing", "evaluation.failing", "learning.failed")
"""Notices that say that a record has harmed more than itself."""


class Logged(logging.Handler):
    """Keeps the traceback of what a boundary of the product caught."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """gRPC answers what is no message of ours by itself, and logs it."""
        if record.exc_info and not record.name.startswith("grpc"):
            self.faults.append(self.format(record))


class Detection:
    """One partition over a stream that goes on."""

    def __init__(self, folder: Path, logged: Logged) -> None:
        self._clock = FakeClock()
        self._stream = RollingStream(self._clock)
        self._detectors = plugin_wiring.detectors(Config())
        self._folder = folder
        self._logged = logged
        self._job = SampleJob()
        self._samples = SampleJob(incarnation="another")
        self._records = MutatedRecords(self._samples, forest())
        self._reader = wire.RecordReader()
        self._generation = 0
        self._taken = self._unreadable = self._before = self._again = self._letters = 0
        self._kept: set[int] = set()
        """Offsets of the records that were kept aside: an owner's change keeps some twice."""
        self._events, self._jobs = EventMetrics(), JobMetrics()
        self._notices: Counter[str] = Counter()
        self._runner = self._next_owner()
        self._put(*self._job.standing(self._clock.now()))

    def take(self, random: Random) -> None:
        self._taken += 1
        if self._taken % LIFE == 0 or self._runner.superseded:
            self._change_owner()
        newest = Mark(mark="tick", generation=self._generation, number=max(0, self._runner.evaluator.number), time=self._clock.now())
        record = self._records.draw(random, self._clock.now(), newest)
        self._unreadable += self._is_unreadable(record)
        self._stream.append(OBSERVATIONS, [(JOB, record)])
        self._clock.advance(1.0 / SECOND)
        if self._taken % SECOND == 0:
            self._put(*self._job.second(self._clock.now(), *self._pace(self._taken // SECOND)), self._job.event(random.choice(list(EVENTS)), self._clock.now()))
            for _ in self._events.collect(), self._jobs.collect():
                pass
        self._runner.step()
        self._note_kept()
        self._check()

    def tally(self) -> Tally:
        self._runner.step()  # what was refused last is still to be written
        self._note_kept()
        counted = self._before + self._runner.counts.dead_letters - self._again
        return Tally(max(self._unreadable, counted), counted, len(self._kept))

    def close(self) -> None:
        self._runner.close()

    def _change_owner(self) -> None:
        """What the next one reads again it counts again."""
        former = self._runner
        former.close()
        self._before += former.counts.dead_letters
        self._runner = self._next_owner(former.superseded_by)
        for _ in range(CATCH_UP_STEPS):
            if self._runner.offset >= former.offset:
                break
            self._runner.step()
        self._again += self._runner.counts.dead_letters

    def _note_kept(self) -> None:
        for message in self._stream.read(DEAD_LETTERS, 0, self._letters):
            self._kept.add(msgspec.json.decode(message.value, type=DeadLetter).offset)
            self._letters = message.offset + 1

    def _next_owner(self, above: int = 0) -> Runner:
        """As its process gives the partition a new owner: above every generation that the stream holds."""
        self._generation = max(self._generation, above) + 1
        runner = Runner(
            self._stream, 0, self._detectors, Diagnosis(), clock=self._clock, generation=self._generation,
            on_notice=self._tell, on_frame=lambda frame: self._events.observe_events(frame.events),
            on_snapshots=self._observe, records=self._folder / "records", records_bytes=RECORDS_BYTES,
        )  # fmt: skip
        runner.step()
        return runner

    def _observe(self, snapshots: list[JobSnapshot]) -> None:
        for snapshot in snapshots:
            self._jobs.observe_job(snapshot)

    def _pace(self, second: int) -> tuple[int, float]:
        """(step, for how long the job has stood): it stands for the second half of each two minutes."""
        stands = max(0, second % 120 - 60)
        return second - stands, float(stands)

    def _put(self, *records: Record) -> None:
        self._stream.append(OBSERVATIONS, [(JOB, wire.encode(record)) for record in records])

    def _is_unreadable(self, record: bytes) -> bool:
        try:
            self._reader.read(record)
        except WireError:
            return True
        return False

    def _tell(self, notice: Notice) -> None:
        self._notices[notice.name] += 1
        if notice.name in CONTAINED:
            self._logged.faults.append(f"{notice.name}: {notice.message}")

    def _check(self) -> None:
        if self._logged.faults:
            faults, self._logged.faults = self._logged.faults, []
            raise Fault("\n".join(faults))


@contextmanager
def detection(folder: Path) -> Iterator[Detection]:
    """In the memory of this process; the records around incidents in the folder."""
    logged = Logged()
    logging.getLogger().addHandler(logged)
    subject = Detection(folder, logged)
    try:
        yield subject
    finally:
        subject.close()
        logging.getLogger().removeHandler(logged)


TARGET = Target("runner", "observations through the runner, all detectors and the diagnosis", detection)
