"""Schedule, time-out, backoff and thread of a collector.

The agent's thread never waits for a collector: each has a thread of its own, and one that hangs does not delay others.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from queue import SimpleQueue
from typing import NamedTuple

from eagle_eye.protocols import Collector
from eagle_eye.ranges import Seconds
from eagle_eye.types import Event, Reading, StepReading
from eagle_eye.writable_text import words_of

from .result_check import checked

BACKOFF_MAX_S = 60.0
LEAD_S = 0.08
"""Collectors run so long before the full second, so that their results are there when the batch is built."""


class HealthState(StrEnum):
    """State of a collector: it returns results, raises, or has not returned within its time-out."""

    OK = "ok"
    FAILING = "failing"
    HUNG = "hung"


class HealthChange(NamedTuple):
    """A collector started to fail, or has recovered."""

    name: str
    """Of the event: collector.failing or collector.recovered."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """Options that every collector takes beside its own."""

    interval_s: Seconds = 1.0
    """Seconds between two runs."""
    timeout_s: Seconds = 5.0
    """A run that takes longer counts as failed."""


@dataclass
class Schedule:
    """When one collector runs next, and its health. Pure: times are arguments."""

    interval_s: float = 1.0
    timeout_s: float = 5.0
    pace: int = 1
    """It runs so many times less often than `interval_s` says: the agent keeps to its budget."""
    health: HealthState = HealthState.OK
    reason: str = ""
    _slot: int | None = None
    _started: float = math.nan
    """Monotonic time at which the current run started; NaN: none is running."""
    _errors: int = 0
    _retry_at: float = -math.inf

    @property
    def pending(self) -> bool:
        """A run has not finished yet."""
        return not math.isnan(self._started)

    def due(self, wall: float, monotonic: float) -> bool:
        """Whether to run now. Slots are aligned to wall time; setting the clock only moves them."""
        slot = self._slot_at(wall)
        return slot != self._slot and not self.pending and monotonic >= self._retry_at

    def started(self, wall: float, monotonic: float) -> None:
        self._slot = self._slot_at(wall)
        self._started = monotonic

    def finished(self, monotonic: float, error: str) -> HealthChange | None:
        """A run finished; `error`: what it raised, '' = it succeeded. Returns a change of health, if any."""
        self._started = math.nan
        before, self.reason = self.health, error
        if error:
            self._errors += 1
            self._retry_at = monotonic + min(self.interval_s * 2.0 ** min(self._errors, 16), BACKOFF_MAX_S)
            self.health = HealthState.FAILING
            return HealthChange("collector.failing", error) if before is HealthState.OK else None
        self._errors, self._retry_at, self.health = 0, -math.inf, HealthState.OK
        return HealthChange("collector.recovered", "it works again") if before is not HealthState.OK else None

    def overdue(self, monotonic: float) -> bool:
        """A run exceeds `timeout_s`, and is not marked as hung yet."""
        return monotonic - self._started > self.timeout_s and self.health is not HealthState.HUNG

    def check_timeout(self, monotonic: float, doing: str = "") -> HealthChange | None:
        """Mark a run that exceeds `timeout_s` as hung; no other run starts until it returns. `doing`: the call it is in, if it says so."""
        if not self.overdue(monotonic):
            return None
        before, self.health = self.health, HealthState.HUNG
        self.reason = f"no result within {self.timeout_s:g} s{f': {doing} has not returned' if doing else ''}"
        return HealthChange("collector.failing", self.reason) if before is HealthState.OK else None

    def next_in(self, wall: float) -> float:
        """Seconds until the next slot begins."""
        interval_s = self.interval_s * self.pace
        return interval_s - (wall + LEAD_S) % interval_s

    def _slot_at(self, wall: float) -> int:
        return math.floor((wall + LEAD_S) / (self.interval_s * self.pace))


@dataclass(frozen=True)
class CollectorResult:
    """The result of one run of a collector."""

    name: str
    found: Sequence[Reading | StepReading | Event] = ()
    error: str = ""
    processor_s: float = 0.0
    """Processor time of its thread in this run."""


@dataclass
class CollectorThread:
    """A collector with its schedule and the thread that runs it."""

    name: str
    collector: Collector
    schedule: Schedule
    _requests: SimpleQueue[bool] = field(default_factory=SimpleQueue)

    def start(self, report: Callable[[CollectorResult], object]) -> None:
        """Start the thread; each run reports one result. It is a daemon: a hung collector must not block exit."""
        threading.Thread(target=self._run, args=(report,), name=f"collector-{self.name}", daemon=True).start()

    def request(self) -> None:
        """Ask the thread for one run; returns at once."""
        self._requests.put(True)

    def close(self) -> None:
        """End the thread after its current run."""
        self._requests.put(False)

    def check_timeout(self, monotonic: float) -> HealthChange | None:
        """Mark a run that takes too long as hung, with the call that it hangs in where the collector has the attribute `doing`."""
        if not self.schedule.overdue(monotonic):  # the usual case, dozens of times a second: nobody is asked what it is doing
            return None
        return self.schedule.check_timeout(monotonic, str(getattr(self.collector, "doing", "")))

    def _run(self, report: Callable[[CollectorResult], object]) -> None:
        while self._requests.get():
            began = time.thread_time()
            found: tuple[Reading | StepReading | Event, ...] = ()
            failure = ""
            try:
                found = checked(self.collector.collect())
            except BaseException as error:  # noqa: BLE001  # boundary: any plugin may raise anything, also SystemExit; it is reported and retried
                failure = words_of(error)
            report(CollectorResult(self.name, found, failure, time.thread_time() - began))
