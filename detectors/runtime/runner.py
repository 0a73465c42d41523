"""The one loop: reads a partition in order, appends the marks, and judges what it reads back.

    records ─► Evaluator (pure) ─► findings, incidents, snapshots ─► topics, then callbacks, then the committed offset

Frames come only from what was read, marks included, so a replay of the same records sees the same frames.
"""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from eagle_eye import wire
from eagle_eye.clock import Clock
from eagle_eye.errors import StreamFull, StreamUnavailable, WireError
from eagle_eye.frames import Frame
from eagle_eye.job_snapshots import JobSnapshots
from eagle_eye.protocols import Diagnoser
from eagle_eye.stream import DEAD_LETTERS, OBSERVATIONS, RUNNER_GROUP, Message, Position, Stream
from eagle_eye.stream.start_offset import resume_at
from eagle_eye.stream.tailer import Tailer
from eagle_eye.types import ConfigChange, Finding, Incident, JobSnapshot, Mark, Notice, Topology

from .baseline_learner import BaselineLearner
from .evaluator import Configure, Evaluation, Evaluator, Prototypes
from .incident_recorder import IncidentRecorder
from .open_record_offsets import OpenRecordOffsets
from .output_buffer import OutputBuffer
from .recovery import BOOTSTRAP, BackgroundCatchUp, catch_up
from .subscribers import Subscribers
from .watermark_writer import WatermarkWriter

READ_LIMIT = 2048
RETRY_S = 0.1
"""Between two attempts to reach a stream that is away."""
_log = logging.getLogger(__name__)


@dataclass
class RunnerCounts:
    """What a runner has done so far."""

    records: int = 0
    dead_letters: int = 0
    marks: int = 0
    frames: int = 0
    findings: int = 0
    incidents: int = 0
    last_tick: float = math.nan
    """Time of the newest tick that was judged; NaN before the first."""
    newest: float = math.nan
    """When the newest record that was read had been written; NaN before the first."""


class Runner:
    """Owns one partition of the observations for as long as nobody with a higher generation does."""

    def __init__(
        self,
        stream: Stream,
        partition: int,
        detectors: Prototypes,
        diagnoser: Diagnoser,
        *,
        clock: Clock,
        generation: int,
        on_incidents: Callable[[list[Incident]], None] | None = None,
        on_findings: Callable[[list[Finding]], None] | None = None,
        on_frame: Callable[[Frame], None] | None = None,
        on_snapshots: Callable[[list[JobSnapshot]], None] | None = None,
        on_notice: Callable[[Notice], None] | None = None,
        topology: Topology | None = None,
        configure: Configure | None = None,
        config: ConfigChange | None = None,
        records: Path | None = None,
        learning: BaselineLearner | None = None,
        tick_s: float = 1.0,
        marks: bool = True,
    ) -> None:
        """Nothing is read before `run` or `step`.

        generation: of this owner; higher than any before it. marks: False = a replay, which uses those in the record.
        on_…: told on the runner's own thread, new and revised ones each; incidents that are open once more after a
        restart. records: directory for the raw records around each incident. config: what the detectors were built from.
        """
        self.counts = RunnerCounts()
        self.watch = Evaluator(detectors, diagnoser, topology=topology, configure=configure, tell=self._tell)
        self.offset = 0
        """Of the next message to read."""
        self.outranked_by = 0
        """Generation of an owner that was seen above this one, which is over then; 0 = none."""
        self._stream, self._partition, self._clock = stream, partition, clock
        self._generation = generation
        self._listeners = Subscribers(on_incidents, on_findings, on_snapshots, on_frame, on_notice)
        self._snapshots = JobSnapshots()
        self._config = config
        self._keeper = None if records is None else IncidentRecorder(stream, partition, records)
        self._learning = learning
        self._tick_s = tick_s
        self._marking = WatermarkWriter(stream, partition, clock=clock, generation=generation, tick_s=tick_s) if marks else None
        self._reader = wire.Reader()
        self._follower = Tailer(stream, OBSERVATIONS, partition, 0)
        self._stop = threading.Event()
        self._open_places = OpenRecordOffsets(stream, partition)
        self._unsent = OutputBuffer(stream, self._open_places.written)
        self._fresh_watch = partial(Evaluator, detectors, diagnoser, topology=topology, configure=configure, tell=self._tell)
        self._deepening: BackgroundCatchUp | None = None
        self._ready = self._away = self._caught_up = False

    # --- the loop ------------------------------------------------------------------------------------------------

    @property
    def superseded(self) -> bool:
        """Another owns the partition now."""
        return self.outranked_by > 0

    def run(self, stop: threading.Event | None = None) -> None:
        """Until `stop` is set or called, or until an owner of a higher generation is seen."""
        self._stop = stop or self._stop
        try:
            while not self._stop.is_set() and not self.superseded:
                self.step(self._tick_s)
            self._finish()
        finally:
            self.close()

    def stop(self) -> None:
        """End `run` after the frame in hand, which is committed; from any thread."""
        self._stop.set()

    def _finish(self) -> None:
        """What is not written by now, the next owner judges again."""
        try:
            if self._ready and self._unsent and not self.superseded:
                self._unsent.flush()
        except (StreamUnavailable, StreamFull) as error:
            _log.warning("partition %d is left with %d records unwritten: %s", self._partition, len(self._unsent), error)

    def close(self) -> None:
        """Release what is open beside the stream; `run` does it by itself."""
        if self._deepening is not None:
            self._deepening.stop()
        if self._learning is not None:
            self._learning.close()
        if self._keeper is not None:
            self._keeper.close()

    def step(self, timeout: float = 0.0) -> None:
        """One round: read, judge, mark; waits at most `timeout` seconds for something to read."""
        try:
            if not self._ready and not self._begin():
                return
            self._unsent.flush()
            self._deepen()
            messages = self._read()
            for message in messages:
                self._take(message)
            self._caught_up = self._caught_up or not messages
            if self._marking is not None and self._caught_up and not self.superseded:
                self._mark(self._marking)
            if not messages:
                self._wait(timeout)
        except (StreamUnavailable, StreamFull) as error:
            self._went_away(str(error))

    def _wait(self, timeout: float) -> None:
        """For the next record, but not beyond the next tick."""
        left = self._marking.until_tick(timeout) if self._marking is not None else timeout
        if left > 0:
            self._stream.wait(OBSERVATIONS, self._partition, self.offset, min(left, RETRY_S))

    def _begin(self) -> bool:
        """Take up where the last owner stopped: detectors are warmed up unheard on the last ten minutes. False if ended before."""
        began = self._clock.monotonic()
        self.offset = resume_at(self._stream, RUNNER_GROUP, OBSERVATIONS, self._partition)
        self._reader, begin = catch_up(self._stream, self._partition, self.watch, self.offset, self._stop.is_set)
        if self._stop.is_set() or self._outranked(self.watch.generation):
            return False
        incidents, findings = self._open_places.find()
        self.watch.reopen(findings, incidents)
        if begin is not None:
            self._deepening = BackgroundCatchUp(self._stream, self._partition, self._fresh_watch(), begin, lambda: self.offset)
        self._follower = Tailer(self._stream, OBSERVATIONS, self._partition, self.offset)
        if self._marking is not None:
            self._marking.begin()
        self._ready = True
        if self._keeper is not None:
            self._keeper.resume(incidents, self.offset)
        if incidents:
            self._unsent.judged(incidents, ())  # whoever leads may have lost them
            self._listeners.judged(incidents, [], [], ())
        words = "partition %d: judging from offset %d on, %.1f s after it became ours; %d findings are open"
        _log.info(words, self._partition, self.offset, self._clock.monotonic() - began, len(findings))
        return True

    def _deepen(self) -> None:
        """Go on with the watch that has seen more, once it has caught up."""
        if self._deepening is not None and self._deepening.near:
            self.watch, self._reader = self._deepening.take_over(self.watch)
            self._deepening = None
            _log.info("partition %d: the last ten minutes have been seen whole", self._partition)

    # --- records -------------------------------------------------------------------------------------------------

    def _read(self) -> list[Message]:
        messages = self._follower.read(READ_LIMIT)
        if messages is None:
            self._begin_anew()
        return messages or []

    def _begin_anew(self) -> None:
        """The stream has lost what it held: what stands open is written again, and the bootstrap records before the next tick."""
        self.offset = self._follower.offset
        if self._marking is not None:
            self._marking.begin_anew()
        if self._keeper is not None:
            self._keeper.begin_anew(self.offset)
        self._unsent.judged(self.watch.incidents.values(), self.watch.open_findings())
        self._tell("stream.reset", f"partition {self._partition} has begun anew: what was in it before is gone")

    def _take(self, message: Message) -> None:
        self.offset = message.offset + 1
        self.counts.records += 1
        self.counts.newest = message.time
        try:
            record = self._reader.read(message.value)
        except WireError as error:
            self._bury(message, str(error))
            return
        judgement = self.watch.take(record)
        if self._marking is not None:
            self._marking.saw(record)
        if isinstance(record, Mark):
            self._outranked(record.generation)
        if judgement is not None:
            self._announce(judgement)

    def _outranked(self, generation: int) -> bool:
        if self._marking is not None and generation > self._generation and not self.outranked_by:
            self.outranked_by = generation
            self._tell("runner.superseded", f"partition {self._partition} is owned by generation {generation} by now")
        return self.superseded

    def _bury(self, message: Message, reason: str) -> None:
        """What cannot be read is kept for whoever can, and counted."""
        self.counts.dead_letters += 1
        if self.counts.dead_letters == 1:
            self._tell("record.unreadable", f"{message.key} at offset {message.offset}: {reason}")
        letter = {"reason": reason, "offset": message.offset, "partition": message.partition, "record": message.value}
        if self._marking is not None:
            self._unsent.add(DEAD_LETTERS, message.key, msgspec.json.encode(letter))

    # --- judgements ----------------------------------------------------------------------------------------------

    def _announce(self, judgement: Evaluation) -> None:
        """Write down, tell, and only then remember that it is done."""
        incidents, findings = judgement.incidents, judgement.findings
        self.counts.frames += len(judgement.frames)
        self.counts.findings += len(findings)
        self.counts.incidents += len(incidents)
        snapshots = [snapshot for snapshot in map(self._snapshots.of, judgement.frames) if snapshot is not None] if self._marking is not None else []
        self._unsent.judged(incidents, findings, snapshots)
        try:
            self._unsent.flush()
        except (StreamUnavailable, StreamFull) as error:
            self._went_away(str(error))
        self._listeners.judged(incidents, findings, snapshots, judgement.frames)
        if judgement.mark.mark == "tick":
            self.counts.last_tick = judgement.mark.time
            if self._learning is not None and self._marking is not None:
                self._learn(self._learning, judgement)
        self._keep(judgement)
        if not self._unsent:
            self._stream.commit(RUNNER_GROUP, OBSERVATIONS, self._partition, self.offset)

    def _learn(self, learning: BaselineLearner, judgement: Evaluation) -> None:
        """Baselines come back as records, so that they take effect at the same place of every replay."""
        watched = self.watch.jobs
        frames = [
            (frame, not watched[frame.job].panel.book.open)
            for frame in judgement.frames
            if frame.job in watched and frame.layout is not None  # an idle node has no minutes of a job
        ]
        baselines = learning.tick(frames)
        for baseline in baselines:
            self._unsent.add(OBSERVATIONS, baseline.job, wire.encode(baseline))

    def _keep(self, judgement: Evaluation) -> None:
        if self._keeper is not None:
            self._keeper.judged(judgement.incidents, judgement.findings, self.offset)
            if judgement.mark.mark == "tick":
                self._keeper.follow(self.offset)

    # --- marks ---------------------------------------------------------------------------------------------------

    def _mark(self, marking: WatermarkWriter) -> None:
        if self._away:
            marking.came_back(self.watch.number)
            self._away = False
            self._tell("stream.recovered", f"partition {self._partition} answers again")
        bootstrap = marking.append_due(self.watch.number, self._bootstrap_records)
        self.counts.marks = marking.marks
        if bootstrap is not None:
            self._remember(bootstrap)

    def _remember(self, bootstrap: Position) -> None:
        """Where the next owner may begin to read, of each topic."""
        self._stream.commit(BOOTSTRAP, OBSERVATIONS, self._partition, bootstrap.offset)
        if not self._unsent:
            self._unsent.judged(*self._open_places.commit())

    def _bootstrap_records(self, first: bool) -> list[tuple[str, bytes]]:
        """The bootstrap records, and at first the configuration that this owner was started with."""
        records = [(job, wire.encode(record)) for job, record in self.watch.bootstrap_records()]
        if self._config is not None and first:
            records.append(("", wire.encode(self._config)))
        return records

    # --- notices -------------------------------------------------------------------------------------------------

    def _went_away(self, reason: str) -> None:
        self._follower.rewind(self.offset)
        if not self._away:
            self._away = True
            if self._marking is not None:
                self._marking.went_away()
            self._tell("stream.away", f"partition {self._partition}: {reason}; nothing is judged meanwhile")
        self._stop.wait(RETRY_S)

    def _tell(self, name: str, message: str) -> None:
        self._listeners.notices(Notice(name=name, time=self._clock.now(), message=message))
