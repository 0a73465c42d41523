"""The one loop: reads a partition in order, appends the marks, and judges what it reads back.

    records ─► Watch (pure) ─► findings, incidents, pulses ─► topics, then callbacks, then the committed offset

Frames come only from what was read, marks included, so a replay of the same records sees the same frames.
"""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from eagle_eye import wire
from eagle_eye.clock import Clock
from eagle_eye.errors import StreamAway, StreamFull, WireError
from eagle_eye.frames import Frame
from eagle_eye.protocols import Diagnoser
from eagle_eye.pulses import Pulses
from eagle_eye.stream import DEAD_LETTERS, OBSERVATIONS, WATCHERS, Message, Stream
from eagle_eye.stream.following import Follower
from eagle_eye.stream.seeking import resume_at
from eagle_eye.types import ConfigChange, Event, Finding, Incident, Mark, Notice, Pulse, Topology

from .keeping import RecordKeeper
from .learning import Learning
from .recovery import open_incidents_and_findings, refill
from .unsent import Unsent
from .watch import Configure, Judgement, Prototypes, Watch

SNAPSHOT_TICKS = 60
"""So often the standing records are appended again: a reader may begin there."""
READ_LIMIT = 2048
RETRY_S = 0.1
"""Between two attempts to reach a stream that is away."""
_log = logging.getLogger(__name__)
_Told = TypeVar("_Told")


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
        on_pulses: Callable[[list[Pulse]], None] | None = None,
        on_notice: Callable[[Notice], None] | None = None,
        topology: Topology | None = None,
        configure: Configure | None = None,
        config: ConfigChange | None = None,
        records: Path | None = None,
        learning: Learning | None = None,
        tick_s: float = 1.0,
        marks: bool = True,
    ) -> None:
        """Nothing is read before `run` or `step`.

        generation: of this owner; higher than any before it. marks: False = a replay, which uses those in the record.
        on_…: told on the runner's own thread, new and revised ones each; incidents that are open once more after a
        restart. records: directory for the raw records around each incident. config: what the detectors were built from.
        """
        self.counts = RunnerCounts()
        self.watch = Watch(detectors, diagnoser, topology=topology, configure=configure, tell=self._tell)
        self.offset = 0
        """Of the next message to read."""
        self.outranked_by = 0
        """Generation of an owner that was seen above this one, which is over then; 0 = none."""
        self._stream, self._partition, self._clock = stream, partition, clock
        self._generation = generation
        self._on_incidents = on_incidents
        self._on_findings = on_findings
        self._on_frame = on_frame
        self._on_pulses, self._pulses = on_pulses, Pulses()
        self._on_notice = on_notice
        self._config = config
        self._keeper = None if records is None else RecordKeeper(stream, partition, records)
        self._learning = learning
        self._tick_s = tick_s
        self._marks = marks
        self._reader = wire.Reader()
        self._follower = Follower(stream, OBSERVATIONS, partition, 0)
        self._stop = threading.Event()
        self._unsent = Unsent(stream)
        self._ready = False
        self._key = ""
        self._away = False
        self._caught_up = False
        self._cut_due = False
        self._next_tick = 0.0
        self._numbered = 0
        self._outstanding = 0
        """Number of a mark that was appended and not read back yet; 0 = none."""
        self._ticks = 0

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
        except (StreamAway, StreamFull) as error:
            _log.warning("partition %d is left with %d records unwritten: %s", self._partition, len(self._unsent), error)

    def close(self) -> None:
        """Release what is open beside the stream; `run` does it by itself."""
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
            messages = self._read()
            for message in messages:
                self._take(message)
            self._caught_up = self._caught_up or not messages
            if self._marks and self._caught_up and not self.superseded:
                self._append_marks()
            if not messages:
                self._wait(timeout)
        except (StreamAway, StreamFull) as error:
            self._went_away(str(error))

    def _wait(self, timeout: float) -> None:
        """For the next record, but not beyond the next tick."""
        left = min(timeout, self._next_tick - self._clock.monotonic()) if self._marks else timeout
        if left > 0:
            self._stream.wait(OBSERVATIONS, self._partition, self.offset, min(left, RETRY_S))

    def _begin(self) -> bool:
        """Take up where the last owner stopped: detectors are warmed up unheard on the last ten minutes. False if ended before."""
        self._key = mark_key(self._stream, self._partition)
        self.offset = resume_at(self._stream, WATCHERS, OBSERVATIONS, self._partition)
        refill(self._stream, self._partition, self.watch, self._reader, self.offset, self._stop.is_set)
        if self._stop.is_set() or self._outranked(self.watch.generation):
            return False
        incidents, findings = open_incidents_and_findings(self._stream, self._partition)
        self.watch.reopen(findings, incidents)
        self._follower = Follower(self._stream, OBSERVATIONS, self._partition, self.offset)
        self._next_tick = self._clock.monotonic() + self._tick_s
        self._ready = True
        if self._keeper is not None:
            self._keeper.resume(incidents, self.offset)
        if incidents:
            self._unsent.judged(incidents, ())  # whoever leads may have lost them
            _call(self._on_incidents, incidents)
        return True

    # --- records -------------------------------------------------------------------------------------------------

    def _read(self) -> list[Message]:
        messages = self._follower.read(READ_LIMIT)
        if messages is None:
            self._begin_anew()
        return messages or []

    def _begin_anew(self) -> None:
        """The stream has lost what it held: what stands open is written again, and the standing records before the next tick."""
        self.offset = self._follower.offset
        self._outstanding = self._ticks = 0
        if self._keeper is not None:
            self._keeper.begin_anew(self.offset)
        self._unsent.judged(self.watch.incidents.values(), self.watch.open_findings())
        self._tell("stream.anew", f"partition {self._partition} has begun anew: what was in it before is gone")

    def _take(self, message: Message) -> None:
        self.offset, self.read_until = message.offset + 1, message.time
        self.counts.records += 1
        self.counts.newest = message.time
        try:
            record = self._reader.read(message.value)
        except WireError as error:
            self._bury(message, str(error))
            return
        if isinstance(record, Event) and not self._outstanding:
            self._cut_due = True
        judgement = self.watch.take(record)
        if isinstance(record, Mark):
            self._saw(record)
        if judgement is not None:
            self._announce(judgement)

    def _saw(self, mark: Mark) -> None:
        if mark.mark == "tick":
            self.last_tick = mark.time
        if mark.number >= self._outstanding:
            self._outstanding = 0
        self._outranked(mark.generation)

    def _outranked(self, generation: int) -> bool:
        if self._marks and generation > self._generation and not self.outranked_by:
            self.outranked_by = generation
            self._tell("runner.superseded", f"partition {self._partition} is owned by generation {generation} by now")
        return self.superseded

    def _bury(self, message: Message, reason: str) -> None:
        """What cannot be read is kept for whoever can, and counted."""
        self.counts.dead_letters += 1
        if self.counts.dead_letters == 1:
            self._tell("record.unreadable", f"{message.key} at offset {message.offset}: {reason}")
        letter = {"reason": reason, "offset": message.offset, "partition": message.partition, "record": message.value}
        if self._marks:
            self._unsent.add(DEAD_LETTERS, message.key, msgspec.json.encode(letter))

    # --- judgements ----------------------------------------------------------------------------------------------

    def _announce(self, judgement: Judgement) -> None:
        """Write down, tell, and only then remember that it is done."""
        incidents, findings = judgement.incidents, judgement.findings
        self.counts.frames += len(judgement.frames)
        self.counts.findings += len(findings)
        self.counts.incidents += len(incidents)
        pulses = [pulse for pulse in map(self._pulses.of, judgement.frames) if pulse is not None] if self._marks else []
        self._unsent.judged(incidents, findings, pulses)
        try:
            self._unsent.flush()
        except (StreamAway, StreamFull) as error:
            self._went_away(str(error))
        if incidents:
            _call(self._on_incidents, incidents)
        if findings:
            _call(self._on_findings, findings)
        if pulses:
            _call(self._on_pulses, pulses)
        for frame in judgement.frames:
            _call(self._on_frame, frame)
        if judgement.mark.mark == "tick":
            self.counts.last_tick = judgement.mark.time
            if self._learning is not None and self._marks:
                self._learn(self._learning, judgement)
        self._keep(judgement)
        if not self._unsent:
            self._stream.commit(WATCHERS, OBSERVATIONS, self._partition, self.offset)

    def _learn(self, learning: Learning, judgement: Judgement) -> None:
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

    def _keep(self, judgement: Judgement) -> None:
        if self._keeper is not None:
            self._keeper.judged(judgement.incidents, judgement.findings, self.offset)
            if judgement.mark.mark == "tick":
                self._keeper.follow(self.offset)

    # --- marks ---------------------------------------------------------------------------------------------------

    def _append_marks(self) -> None:
        now = self._clock.monotonic()
        if self._away:
            self._append("cut", [])  # asks for an answer and judges nobody: late batches still have to come
            self._came_back()
        elif self._cut_due:
            self._append("cut", [])
        if now >= self._next_tick and not self._outstanding:
            self._append("tick", self._snapshot() if self._ticks % SNAPSHOT_TICKS == 0 else [])
            self._ticks += 1
            following = self._next_tick + self._tick_s
            self._next_tick = following if following > now else now + self._tick_s  # missed ticks are not made up

    def _append(self, kind: str, before: list[tuple[str, bytes]]) -> None:
        self._numbered = max(self._numbered, self.watch.number) + 1
        mark = msgspec.convert(
            {"mark": kind, "generation": self._generation, "number": self._numbered, "time": self._clock.now()}, Mark
        )
        self._stream.append(OBSERVATIONS, [*before, (self._key, wire.encode(mark))])
        self._outstanding = mark.number
        self._cut_due = False
        self.counts.marks += 1

    def _snapshot(self) -> list[tuple[str, bytes]]:
        """The standing records, and at first the configuration that this owner was started with."""
        standing = [(job or self._key, wire.encode(record)) for job, record in self.watch.standing()]
        if self._config is not None and self._ticks == 0:
            standing.append((self._key, wire.encode(self._config)))
        return standing

    # --- notices -------------------------------------------------------------------------------------------------

    def _went_away(self, reason: str) -> None:
        self._follower.rewind(self.offset)
        if not self._away:
            self._away = True
            self._outstanding = 0
            self._tell("stream.away", f"partition {self._partition}: {reason}; nothing is judged meanwhile")
        self._stop.wait(RETRY_S)

    def _came_back(self) -> None:
        """The next tick comes a whole one later, so that what was spooled can arrive before it."""
        self._away = False
        self._next_tick = self._clock.monotonic() + self._tick_s
        self._tell("stream.back", f"partition {self._partition} answers again")

    def _tell(self, name: str, message: str) -> None:
        _log.warning("%s: %s", name, message)
        _call(self._on_notice, Notice(name=name, time=self._clock.now(), message=message))


def _call(listener: Callable[[_Told], None] | None, told: _Told) -> None:
    """A listener that fails must not end the watch."""
    if listener is None:
        return
    try:
        listener(told)
    except Exception:  # noqa: BLE001 -- whoever listens is not the runner's business
        _log.exception("a listener of the runner failed")


def mark_key(stream: Stream, partition: int) -> str:
    """A key that goes to the partition: marks and standing records need one."""
    return next(
        key
        for key in (f"partition-{partition}-{index}" for index in range(1_000_000))
        if stream.partition_of(OBSERVATIONS, key) == partition
    )
