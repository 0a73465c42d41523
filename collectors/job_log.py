"""Errors in the output of training jobs (CUDA, NCCL, torch, storage, memory, scheduler, whole Python tracebacks), and the training values that it prints.

The logs of this node's workers are followed while they grow, and so are files of your own (of Slurm, for example), each from
where the agent stopped. What a line says is in log/job/*.toml, which values it holds in
log/training_values.toml; other lines are not reported. Secrets are taken out before anything leaves the node.
"""

import logging
import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.ranges import Count, Seconds
from eagle_eye.redaction import redact
from eagle_eye.types import Event, Kind, Reading

from .agent.failure_boundary import FailureBoundary
from .agent.job_directory import JobDirectory, LocalJob, LocalWorker, may_name, trusted
from .agent.unsigned_event import filled, unsigned_event
from .log.file_tailer import CHUNK, FilePosition, FileTailer, as_ascii
from .log.job_messages import JobMessage, JobMessages, JobOutput
from .log.position_file import PositionFile
from .log.printed_values import NAMES, PrintedValues, ValueSearch
from .log.repeat_limit import RepeatLimit
from .log.value_formats import ValueFormats
from .worker.procfs import started_s_ago

log = logging.getLogger(__name__)

YOUNG_S = 60.0
"""A log that is new to the agent is read from its beginning if its worker was started so short a time ago; of an older one only what is written from now on."""
LEFT_S = 10.0
"""A log that no job names any more is followed for so much longer: its last lines come after the end of its worker."""
MOST_PIECES = 64
"""Megabytes of one log that one look takes."""
MOST_EVENTS = 128
"""Events of one log and look; how many others there were is logged."""
LOOK_S = 4.0
"""A look that has taken so long reads one piece of each further log, and the rest at the next one."""
LONGEST_MESSAGE = 2000
"""Characters of a message, and of what a row finds in it."""
LONGEST_TRACEBACK = 8000
"""Characters of a traceback in an event: its end, which has the exception."""
SAVE_S = 5.0
"""Positions are saved so often; of a log that is new, of a message and of an epoch that begins at the next look, so that an agent that is started again tells nothing twice, or of the wrong epoch."""
LEAD_S = 0.1
"""The look that is at most so long before a full second returns the values of that second's batch."""
_NUMBERS = re.compile(r"\d+|0x[0-9a-f]+")


@dataclass
class _TailedLog:
    """One log."""

    tailer: FileTailer
    output: JobOutput
    values: PrintedValues | None
    """None: none are read."""
    has_values: bool = False
    """Some line has held one: its worker has a row in each reading of its job."""
    worker: str = ""
    job: str = ""
    rank: str = ""
    epoch: str = ""
    """Of what is read now: where an epoch has begun since the last look, the one before, whose last lines these may be."""
    listed_epoch: str = ""
    skipped_bytes: int = 0
    unread_lines: int = 0
    rewritten: int = 0
    """These three: of which a warning has told."""
    of_pattern: bool = False
    """A pattern that is no plain name has found it, and finds folders, too."""
    utf16: bool = False
    told_utf16: bool = False
    unlisted: float = math.nan
    """Monotonic time since which no job names it."""


@dataclass
class JobLogCollector:
    """`log.error` and `log.notice` events of workers, and of the node for files of your own; loss, gradient norm and speed that workers print."""

    further_files: tuple[str, ...] = ()
    """Other logs of jobs, as absolute patterns: /var/log/slurm/job-*.out."""
    patterns: str = ""
    """A TOML file with rows of your own, in the form of log/job/program.toml; they count before those of this release."""
    training_values: bool = True
    """Read loss, gradient norm, speed and the like where a worker prints them. They are shown and judged where the script does not mark its own."""
    value_formats: str = ""
    """A TOML file with line formats of your own, in the form of log/training_values.toml; they count before those of this release."""
    repeat_s: Seconds = 60.0
    """Equal messages of a log, numbers aside, within so many seconds are one event."""
    most_backlog_mb: Count = 256
    """Of a log that has grown by more megabytes than these the older part is passed over, and counted in a warning."""
    node: str = ""
    reading_s: Seconds = 1.0
    """Seconds between two readings of training values; set by the agent."""
    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    state_dir: Path | None = None
    """Where positions are kept over restarts; set by the agent. None: nothing is kept."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 0.5
    timeout_s: ClassVar[float] = 10.0

    def __post_init__(self) -> None:
        self._messages = JobMessages(Path(self.patterns) if self.patterns else None)
        self._jobs = JobDirectory(Path(self.run_dir))
        self._positions = PositionFile(self.state_dir, "job_log", self.node, FilePosition)
        self._repeats = RepeatLimit(self.repeat_s)
        self._values = ValueSearch(ValueFormats(Path(self.value_formats) if self.value_formats else None)) if self.training_values else None
        self._followed: dict[str, _TailedLog] = {}
        self._boundary = FailureBoundary("job_log")
        self._second = -1
        self._began = -math.inf
        """Monotonic time at which the look that is under way began."""
        self._save_at = -math.inf

    def collect(self) -> list[Event | Reading]:
        if self.clock.monotonic() >= self._save_at:
            self._save_at = self.clock.monotonic() + SAVE_S
            self._positions.save()  # the events of the call before are with the agent now
        self._began = self.clock.monotonic()
        self._find_logs()
        events: list[Event] = []
        for name, followed in self._followed.items():
            with self._boundary.around(_log_words(name)):
                events.extend(self._read(name, followed))
        self._boundary.keep({_log_words(name) for name in self._followed})
        return [*events, *self._readings(self.clock.now()), *self._boundary.events(self.node, self.clock.now(), "every log is read again")]

    @property
    def problems(self) -> tuple[str, ...]:
        """Logs that are left out, each with the reason and what mends it."""
        return self._boundary.problems

    def position_of(self, path: Path) -> FilePosition:
        """How far a log has been read."""
        return self._followed[str(path)].tailer.position

    # --- which logs

    def _find_logs(self) -> None:
        """Follow what is new, leave what is gone."""
        listed = {worker.log: (job, worker) for job in self._jobs.read() for worker in job.workers if worker.log not in ("", os.devnull) and may_name(job.user, worker.log)}
        for name, (job, worker) in listed.items():
            with self._boundary.around(_log_words(name)):
                self._list(name, job, worker)
        further = {str(path): "*" in pattern or "?" in pattern or "[" in pattern for pattern in self.further_files for path in _matching(pattern)}
        for name in further.keys() - self._followed.keys():
            self._follow(name, None, False).of_pattern = further[name]
        for name in self._followed.keys() - listed.keys() - further.keys():
            self._leave(name)

    def _list(self, name: str, job: LocalJob, worker: LocalWorker) -> None:
        """Follow the log of a worker, and know whose it is now."""
        followed = self._followed.get(name)
        if followed is None:
            before = str(worker.birth - 1) if self._begins_before(name, worker) else ""
            followed = self._follow(name, _owner_of(job), self._is_young(worker))
            followed.epoch = before
        followed.worker, followed.job, followed.rank = worker.worker, job.job, str(worker.rank)
        followed.epoch, followed.listed_epoch = followed.epoch or str(worker.epoch), str(worker.epoch)
        followed.unlisted = math.nan

    def _leave(self, name: str) -> None:
        followed, now = self._followed[name], self.clock.monotonic()
        if math.isnan(followed.unlisted):
            followed.unlisted = now
        if now - followed.unlisted >= LEFT_S:
            followed.tailer.close()
            del self._followed[name]
            self._positions.drop(name)

    def _follow(self, name: str, owner: int | None, from_beginning: bool) -> _TailedLog:
        tailer = FileTailer(Path(name), self._positions.get(name), from_end=not from_beginning, most_backlog=self.most_backlog_mb << 20, owner=owner)
        values = PrintedValues(self._values) if self._values is not None else None
        self._followed[name] = _TailedLog(tailer, JobOutput(self._messages), values)
        self._save_at = -math.inf
        return self._followed[name]

    def _begins_before(self, name: str, worker: LocalWorker) -> bool:
        """Whether what an agent that begins reads first is of the process before: an error in it is over."""
        saved = self._positions.get(name)
        return (saved.offset if saved is not None else 0 if self._is_young(worker) else math.inf) < worker.log_from

    def _is_young(self, worker: LocalWorker) -> bool:
        return started_s_ago(worker.start_time, self.clock.monotonic()) < YOUNG_S

    # --- what they say

    def _read(self, name: str, followed: _TailedLog) -> Iterator[Event]:
        told = left_out = 0
        try:
            for message in self._messages_of(followed):
                self._save_at = -math.inf
                if told == MOST_EVENTS:
                    left_out += 1
                elif (event := self._event(name, followed, message)) is not None:
                    told += 1
                    yield event
        except OSError as error:
            if not (followed.of_pattern and os.path.isdir(name)):  # noqa: PTH112
                self._boundary.unreadable(_log_words(name), error)
            with suppress(OSError):
                followed.tailer.close()  # a handle that a network file system has lost is never good again; it is opened anew, at the same place
            return
        self._boundary.readable(_log_words(name), self.clock.monotonic())
        self._warn(name, followed, left_out)
        self._positions.put(name, followed.tailer.position)
        if followed.epoch != followed.listed_epoch:
            self._save_at = -math.inf
            if followed.values is not None:
                followed.values.begin_again()
        followed.epoch = followed.listed_epoch

    @staticmethod
    def _warn(name: str, followed: _TailedLog, left_out: int) -> None:
        """Say what was not read or not reported."""
        tailer, unread = followed.tailer, followed.output.unread_lines
        if left_out:
            log.warning("%s: %d further messages of this read are not reported", name, left_out)
        if unread > followed.unread_lines:
            log.warning("%s: %d further lines that look like ones before them are not read", name, unread - followed.unread_lines)
        if tailer.skipped_bytes > followed.skipped_bytes:
            log.warning("%s: %d bytes were passed over, it grows faster than it is read", name, tailer.skipped_bytes - followed.skipped_bytes)
        if followed.utf16 and not followed.told_utf16:
            log.warning("%s is in UTF-16, of which only ASCII characters are read: write it in UTF-8", name)
            followed.told_utf16 = True
        if tailer.rewritten > followed.rewritten:
            log.warning("%s was truncated or replaced, and is read from its beginning", name)
        followed.unread_lines, followed.skipped_bytes, followed.rewritten = unread, tailer.skipped_bytes, tailer.rewritten

    def _messages_of(self, followed: _TailedLog) -> Iterator[JobMessage]:
        """Raises OSError."""
        now = self.clock.monotonic()
        left = MOST_PIECES
        while left > 0:
            read = followed.tailer.read()
            piece = as_ascii(read)
            followed.utf16 = followed.utf16 or len(piece) < len(read)
            yield from followed.output.read(piece, now)
            if followed.values is not None and followed.worker:
                followed.values.read(piece)
            left = min(left - 1, math.ceil(followed.tailer.unread_bytes / CHUNK))  # what is written meanwhile is the next look's
            if self.clock.monotonic() - self._began > LOOK_S:
                return

    def _readings(self, wall: float) -> Iterator[Reading]:
        """Once a second, of each job whose workers have printed values since; its workers without a fresh one have a row of NaN."""
        second = math.floor((wall + LEAD_S) / self.reading_s)
        due, self._second = second != self._second, second
        if not due:
            return
        jobs: dict[str, dict[str, list[float]]] = {}
        fresh = set()
        for each in self._followed.values():
            row = each.values.take() if each.values is not None and each.worker else None
            each.has_values = each.has_values or row is not None
            if row is not None:
                fresh.add(each.job)
                jobs.setdefault(each.job, {})[each.worker] = row
            elif each.has_values:
                jobs.setdefault(each.job, {}).setdefault(each.worker, [math.nan] * len(NAMES))
        for job in fresh:
            with np.errstate(over="ignore"):
                matrix = np.array(list(jobs[job].values()), np.float32)
            yield Reading(source="job_log", kind=Kind.WORKER, entities=tuple(jobs[job]), names=NAMES, matrix=matrix, time=wall)

    def _event(self, name: str, followed: _TailedLog, message: JobMessage) -> Event | None:
        key = (name, message.code, _NUMBERS.sub("0", message.text))
        repeated = self._repeats.passes(key, self.clock.monotonic())
        if repeated is None:
            return None
        attributes = {
            "component": message.component, "code": message.code, "advice": message.advice, "log": name,
            "rank": message.rank or followed.rank, "epoch": followed.epoch, "repeated": str(repeated or ""),
            "traceback": redact(message.traceback)[-LONGEST_TRACEBACK:],  # a secret that is cut in two is not known for one
            **{name: redact(value)[:LONGEST_MESSAGE] for name, value in message.groups.items() if name not in ("detail", "rank")},
        }  # fmt: skip
        kind, entity = (Kind.WORKER, followed.worker) if followed.worker else (Kind.NODE, self.node)
        text = redact(message.text)[:LONGEST_MESSAGE]
        return unsigned_event(f"log.{message.level}", kind, entity, self.clock.now(), text, followed.job, **filled(attributes))


def _log_words(name: str) -> str:
    return f"log {name}"


def _owner_of(job: LocalJob) -> int | None:
    """Whose a job's logs have to be; None: anybody's, for a user who may name files of others."""
    return None if trusted(job.user) else job.user


def _matching(pattern: str) -> list[Path]:
    """Files that an absolute pattern names now; none for another pattern."""
    path = Path(pattern)
    if not path.is_absolute():
        return []
    return list(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
