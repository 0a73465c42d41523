"""The detection loop of one partition: reads its records in order, appends marks, evaluates what it reads back.

    records ─► Evaluator (pure) ─► findings, incidents, snapshots ─► topics, then callbacks, then the committed offset

Frames are built only from records that were read, marks included, so a replay of the same records gives the same frames.
"""

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from detectors.clock_skew import KIND as CLOCK_SKEWED
from eagle_eye import wire
from eagle_eye.clock import Clock
from eagle_eye.dead_letters import dead_letter
from eagle_eye.errors import RecordRefused, StreamFull, StreamUnavailable, WireError
from eagle_eye.frames import Frame
from eagle_eye.job_snapshots import JobSnapshots
from eagle_eye.protocols import Diagnoser
from eagle_eye.record_writer import read_record
from eagle_eye.stream import DEAD_LETTERS, OBSERVATIONS, RUNNER_GROUP, Message, Position, ReadableStream, Stream
from eagle_eye.stream.start_offset import resume_at
from eagle_eye.stream.tailer import Tailer
from eagle_eye.types import ConfigChange, Finding, Incident, JobSnapshot, Mark, Notice, Topology

from .baseline_learner import BaselineLearner
from .catch_up import BOOTSTRAP, BackgroundCatchUp, catch_up
from .evaluator import Configure, Evaluation, Evaluator, Prototypes
from .hang_watch import DetectorCall, MutedDetectors
from .incident_recorder import RECORDS_BYTES, IncidentRecorder
from .mark_writer import MarkWriter
from .open_record_offsets import OpenRecordOffsets
from .runner_output import OutputBuffer, Subscribers

READ_LIMIT = 2048
RETRY_S = 0.1
"""Seconds between two attempts to reach a stream that is unavailable."""
TOLD_EVERY_S, REASONS_KEPT = 600.0, 100
"""A reason to refuse records is told once in so long; so many reasons at a time."""
_log = logging.getLogger(__name__)


@dataclass
class RunnerCounts:
    """What a runner has done so far."""

    records: int = 0
    dead_letters: int = 0
    marks: int = 0
    missed_ticks: int = 0
    """Left out, because what came before them was not done."""
    stretch: int = 1
    """Times less often than usual detectors that judge minutes are asked."""
    frames: int = 0
    findings: int = 0
    incidents: int = 0
    last_tick: float = math.nan
    """Time of the newest tick that was evaluated; NaN before the first."""
    newest: float = math.nan
    """When the newest record that was read was written; NaN before the first."""


class Runner:
    """Owns one partition of the observations until an owner of a higher generation appears."""

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
        records_bytes: int = RECORDS_BYTES,
        learner: BaselineLearner | None = None,
        tick_s: float = 1.0,
        marks: bool = True,
        hung: MutedDetectors | None = None,
        reads: ReadableStream | None = None,
    ) -> None:
        """Nothing is read before `run` or `step`.

        generation: of this owner; higher than that of every owner before it. marks: False = a replay, which uses the
        recorded marks. on_…: called on the runner's own thread with what is new or revised; after a restart once more
        with the open incidents. records: directory for the raw records around each incident, of at most so many bytes.
        config: what the detectors were built from. reads: through which the records are read that are evaluated; default: the stream.
        """
        self.counts = RunnerCounts()
        self.evaluator = Evaluator(detectors, diagnoser, topology=topology, configure=configure, notify=self._notify, hung=hung)
        self.offset = 0
        """Of the next message to read."""
        self.superseded_by = 0
        """Generation of a newer owner that was seen in the stream: this runner ends then; 0 = none."""
        self.left_behind = False
        """A detector holds its thread, and another runner has taken over: nothing more of this one is written."""
        self._stream, self._partition, self._clock = stream, partition, clock
        self._generation = generation
        self._subscribers = Subscribers(on_incidents, on_findings, on_snapshots, on_frame, on_notice)
        self._job_snapshots = JobSnapshots()
        self._config = config
        self._recorder = None if records is None else IncidentRecorder(stream, partition, records, records_bytes)
        self._learner = learner
        self._tick_s = tick_s
        self._marks = MarkWriter(stream, partition, clock=clock, generation=generation, tick_s=tick_s) if marks else None
        self._reader = wire.RecordReader()
        self._reads: ReadableStream = reads or stream
        self._follower = Tailer(self._reads, OBSERVATIONS, partition, 0)
        self._stop = threading.Event()
        self._open_records = OpenRecordOffsets(stream, partition)
        self._output = OutputBuffer(stream, self._open_records.written, lambda why: self._notify("record.refused", why))
        self._new_evaluator = partial(Evaluator, detectors, diagnoser, topology=topology, configure=configure, notify=self._notify, hung=hung)
        self._background: BackgroundCatchUp | None = None
        self._ready = self._unavailable = self._caught_up = False
        self._refusals: dict[str, float] = {}
        """Reason → when it was told."""

    # --- the loop ------------------------------------------------------------------------------------------------

    @property
    def superseded(self) -> bool:
        """A newer owner has taken over the partition."""
        return self.superseded_by > 0 or self.left_behind

    def run(self, stop: threading.Event | None = None) -> None:
        """Runs until `stop` is set or called, or until an owner of a higher generation is seen."""
        self._stop = stop or self._stop
        try:
            while not self._stop.is_set() and not self.superseded:
                self.step(self._tick_s)
            self._finish()
        finally:
            self.close()

    def stop(self) -> None:
        """End `run` after the current frame, which is committed; callable from any thread."""
        self._stop.set()

    def hung_in(self, now: float) -> DetectorCall | None:
        """The detector, or its learner, that does not return; asked again and again from one other thread, with the monotonic time."""
        background = self._background
        watches = [self.evaluator.watch, *([self._learner.watch] if self._learner is not None else []), *([background.evaluator.watch] if background is not None else [])]
        calls = [each.hung(now) for each in watches]  # each is asked: it counts the time from one look to the next
        return next((call for call in calls if call is not None), None)

    def leave_behind(self) -> None:
        """A detector holds its thread: should it come back, `run` ends and writes nothing. Callable from any thread."""
        self.left_behind = True
        self._stop.set()
        if self._background is not None:
            self._background.abandon()

    def _finish(self) -> None:
        """Write what is left; what cannot be written now is evaluated again by the next owner."""
        try:
            if self._ready and self._output and not self.superseded:
                self._output.flush()
        except (StreamUnavailable, StreamFull) as error:
            _log.warning("partition %d ends with %d records unwritten: %s", self._partition, len(self._output), error)

    def close(self) -> None:
        """Close everything but the stream; `run` does so when it ends."""
        if self._background is not None:
            self._background.stop()
        if self._learner is not None:
            self._learner.close()
        if self._recorder is not None:
            self._recorder.close()

    def step(self, timeout: float = 0.0) -> None:
        """One round: read, evaluate, append marks; waits at most `timeout` seconds for records."""
        try:
            if not self._ready and not self._start():
                return
            self._output.flush()
            self._finish_catch_up()
            messages = self._read()
            for message in messages:
                self._take(message)
                if self.left_behind:
                    return
            self._caught_up = self._caught_up or not messages
            if self._marks is not None and self._caught_up and not self.superseded:
                self._append_marks(self._marks)
            if not messages:
                self._wait(timeout)
        except (StreamUnavailable, StreamFull) as error:
            self._stream_unavailable(str(error))

    def _wait(self, timeout: float) -> None:
        """Wait for the next record, at most until the next tick."""
        left = self._marks.until_tick(timeout) if self._marks is not None else timeout
        if left > 0:
            self._stream.wait(OBSERVATIONS, self._partition, self.offset, min(left, RETRY_S))

    def _start(self) -> bool:
        """Continue where the last owner stopped, with detectors that have seen the last ten minutes; False if stopped meanwhile."""
        began = self._clock.monotonic()
        self.offset = resume_at(self._stream, RUNNER_GROUP, OBSERVATIONS, self._partition)
        self._reader, begin = catch_up(self._stream, self._partition, self.evaluator, self.offset, self._stop.is_set)
        if self._stop.is_set() or self._note_generation(self.evaluator.generation):
            return False
        incidents, findings = self._open_records.find()
        self.evaluator.restore(findings, incidents)
        if begin is not None:
            self._background = BackgroundCatchUp(self._stream, self._partition, self._new_evaluator(), begin, lambda: (self.offset, self.counts.newest))
        self._follower = Tailer(self._reads, OBSERVATIONS, self._partition, self.offset)
        if self._marks is not None:
            self._marks.start()
        self._ready = True
        if self._recorder is not None:
            self._recorder.resume(incidents, self.offset)
        if incidents:
            self._output.add_results(incidents, ())  # the leader may have lost them
            self._subscribers.publish(incidents, [], [], ())
        text = "partition %d: evaluating from offset %d on, %.1f s after it was taken over; %d findings are open"
        _log.info(text, self._partition, self.offset, self._clock.monotonic() - began, len(findings))
        return True

    def _finish_catch_up(self) -> None:
        """Switch to the background evaluator, which has seen all ten minutes, once it has caught up."""
        if self._background is not None and self._background.ready:
            self.evaluator, self._reader = self._background.take_over(self.evaluator)
            self._background = None
            _log.info("partition %d: caught up with all of the last ten minutes", self._partition)

    # --- records -------------------------------------------------------------------------------------------------

    def _read(self) -> list[Message]:
        messages = self._follower.read(READ_LIMIT)
        if messages is None:
            self._reset()
        return messages or []

    def _reset(self) -> None:
        """The stream was reset: write the open findings and incidents again, and the bootstrap records before the next tick."""
        self.offset = self._follower.offset
        if self._background is not None:  # what it reads is gone
            self._background.stop()
            self._background = None
        if self._marks is not None:
            self._marks.reset()
        if self._recorder is not None:
            self._recorder.reset(self.offset)
        self._output.add_results(self.evaluator.incidents.values(), self.evaluator.open_findings())
        self._notify("stream.reset", f"partition {self._partition} was reset: its earlier records are gone")

    def _take(self, message: Message) -> None:
        self.offset = message.offset + 1
        self.counts.records += 1
        self.counts.newest = message.time
        try:
            record = read_record(self._reader, message)
            evaluation = self.evaluator.take(record)
        except WireError as error:
            self._dead_letter(message, error)
            return
        if self._marks is not None:
            self._marks.observe(record)
        if isinstance(record, Mark):
            self._note_generation(record.generation)
        if evaluation is not None:
            self._publish(evaluation)

    def _note_generation(self, generation: int) -> bool:
        if self._marks is not None and generation > self._generation and not self.superseded_by:
            self.superseded_by = generation
            self._notify("runner.superseded", f"partition {self._partition} is owned by generation {generation} now")
        return self.superseded

    def _dead_letter(self, message: Message, error: WireError) -> None:
        """Count a record that cannot be read, and keep it in the dead-letter topic."""
        self.counts.dead_letters += 1
        if isinstance(error, RecordRefused):
            self._tell_refused(message, str(error))
        elif self.counts.dead_letters == 1:
            self._notify("record.unreadable", f"{message.key} at offset {message.offset}: {error}")
        if self._marks is not None:
            self._output.add(DEAD_LETTERS, *dead_letter(message, str(error)))

    def _tell_refused(self, message: Message, reason: str) -> None:
        """Each reason once in TOLD_EVERY_S; who invents reasons fills no memory."""
        now = self._clock.monotonic()
        self._refusals = {told: since for told, since in self._refusals.items() if now - since < TOLD_EVERY_S}
        if reason not in self._refusals and len(self._refusals) < REASONS_KEPT:
            self._refusals[reason] = now
            self._notify("record.refused", f"{message.key} at offset {message.offset}: {reason}")

    # --- results ----------------------------------------------------------------------------------------------

    def _publish(self, evaluation: Evaluation) -> None:
        """Write the results, call the subscribers, and only then commit the offset."""
        if self.left_behind:
            return
        incidents, findings = evaluation.incidents, evaluation.findings
        self.counts.frames += len(evaluation.frames)
        self.counts.findings += len(findings)
        self.counts.incidents += len(incidents)
        snapshots = self._snapshots_of(evaluation.frames) if self._marks is not None else []
        self._output.add_results(incidents, findings, snapshots)
        try:
            self._output.flush()
        except (StreamUnavailable, StreamFull) as error:
            self._stream_unavailable(str(error))
        self._subscribers.publish(incidents, findings, snapshots, evaluation.frames)
        if evaluation.mark.mark == "tick":
            self.counts.last_tick = evaluation.mark.time
            if self._learner is not None and self._marks is not None:
                self._learn(self._learner, evaluation)
        self._record(evaluation)
        if not self._output:
            self._stream.commit(RUNNER_GROUP, OBSERVATIONS, self._partition, self.offset)

    def _snapshots_of(self, frames: Sequence[Frame]) -> list[JobSnapshot]:
        snapshots = []
        for frame in frames:
            try:
                snapshots.append(self._job_snapshots.of(frame))
            except Exception as error:  # noqa: BLE001 -- boundary: what one job's records lead to must not end the detection on the others
                _log.exception("a frame of %s has no snapshot", frame.job)
                self._notify("evaluation.failing", f"a frame of {frame.job} has no snapshot: {type(error).__name__}: {error}")
        self._job_snapshots.forget(self.evaluator.jobs.keys())
        return [snapshot for snapshot in snapshots if snapshot is not None]

    def _learn(self, learner: BaselineLearner, evaluation: Evaluation) -> None:
        """Fitted baselines are written as records, so that they take effect at the same record in every replay."""
        jobs = self.evaluator.jobs
        frames = [
            (frame, all(finding.kind == CLOCK_SKEWED for finding in jobs[frame.job].detectors.findings.open))  # a clock that nobody sets right must not end all learning
            for frame in evaluation.frames
            if frame.job in jobs and frame.layout is not None  # an idle node has no job
        ]
        baselines = learner.tick(frames)
        for baseline in baselines:
            self._output.add(OBSERVATIONS, baseline.job, wire.encode(baseline))

    def _record(self, evaluation: Evaluation) -> None:
        if self._recorder is not None:
            self._recorder.record(evaluation.incidents, evaluation.findings, self.offset)
            if evaluation.mark.mark == "tick":
                self._recorder.copy(self.offset)

    # --- marks ---------------------------------------------------------------------------------------------------

    def _append_marks(self, marks: MarkWriter) -> None:
        if self._unavailable:
            marks.recovered(self.evaluator.number)
            self._unavailable = False
            self._notify("stream.recovered", f"partition {self._partition} is available again")
        bootstrap = marks.append_due(self.evaluator.number, self._bootstrap_records)
        self.counts.marks, self.counts.missed_ticks, self.counts.stretch = marks.count, marks.load.missed, marks.load.stretch
        if news := marks.take_news():
            self._notify("ticks.late", f"partition {self._partition}: {news}")
        if bootstrap is not None:
            self._commit_bootstrap(bootstrap)

    def _commit_bootstrap(self, bootstrap: Position) -> None:
        """Commit where the next owner may begin to read, for each topic."""
        self._stream.commit(BOOTSTRAP, OBSERVATIONS, self._partition, bootstrap.offset)
        if not self._output:
            self._output.add_results(*self._open_records.commit())

    def _bootstrap_records(self, first: bool) -> list[tuple[str, bytes]]:
        """The bootstrap records; the first time with the configuration of this owner."""
        records = [(job, wire.encode(record)) for job, record in self.evaluator.bootstrap_records()]
        if self._config is not None and first:
            records.append(("", wire.encode(self._config)))
        return records

    # --- notices -------------------------------------------------------------------------------------------------

    def _stream_unavailable(self, reason: str) -> None:
        self._follower.rewind(self.offset)
        if not self._unavailable:
            self._unavailable = True
            if self._marks is not None:
                self._marks.interrupted()
            self._notify("stream.away", f"partition {self._partition}: {reason}; nothing is evaluated meanwhile")
        self._stop.wait(RETRY_S)

    def _notify(self, name: str, message: str) -> None:
        self._subscribers.notify(Notice(name=name, time=self._clock.now(), message=message))
