"""When a collector is asked, how long it may take, and what becomes of one that fails or hangs.

The thread that asks never waits for an answer: each collector has a thread of its own, and one that hangs costs
nobody else anything.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from queue import SimpleQueue
from typing import NamedTuple

from eagle_eye.protocols import Collector
from eagle_eye.types import Event, Reading, StepReading

LONGEST_BACKOFF_S = 60.0
LEAD_S = 0.08
"""Collectors are asked so long before the full second, so that their answers are there when the batch is made."""


class HealthState(StrEnum):
    """How a collector does."""

    OK = "ok"
    FAILING = "failing"
    HUNG = "hung"


class HealthChange(NamedTuple):
    """A collector began to fail, or is back."""

    name: str
    """Of the event: collector.failing or collector.recovered."""
    reason: str


@dataclass
class Schedule:
    """One collector's times; knows no thread and no clock."""

    interval_s: float = 1.0
    timeout_s: float = 5.0
    health: HealthState = HealthState.OK
    reason: str = ""
    _slot: int | None = None
    _asked: float = math.nan
    """Monotonic time of the question that is still open; NaN: none is."""
    _errors: int = 0
    _retry_at: float = -math.inf

    @property
    def open(self) -> bool:
        """A question has not been answered yet."""
        return not math.isnan(self._asked)

    def due(self, wall: float, monotonic: float) -> bool:
        """Whether to ask now. Slots are aligned to wall time; a clock that is set only moves them."""
        slot = math.floor((wall + LEAD_S) / self.interval_s)
        return slot != self._slot and not self.open and monotonic >= self._retry_at

    def asked(self, wall: float, monotonic: float) -> None:
        self._slot = math.floor((wall + LEAD_S) / self.interval_s)
        self._asked = monotonic

    def answered(self, monotonic: float, error: str) -> HealthChange | None:
        """An answer came; `error` says why it is none, '' = it is one."""
        self._asked = math.nan
        before, self.reason = self.health, error
        if error:
            self._errors += 1
            self._retry_at = monotonic + min(self.interval_s * 2.0 ** min(self._errors, 16), LONGEST_BACKOFF_S)
            self.health = HealthState.FAILING
            return HealthChange("collector.failing", error) if before is HealthState.OK else None
        self._errors, self._retry_at, self.health = 0, -math.inf, HealthState.OK
        return HealthChange("collector.recovered", "it answers again") if before is not HealthState.OK else None

    def watch(self, monotonic: float) -> HealthChange | None:
        """Notice a question that has been open for too long; it stays the only one until it is answered."""
        if not monotonic - self._asked > self.timeout_s or self.health is HealthState.HUNG:
            return None
        before, self.health = self.health, HealthState.HUNG
        self.reason = f"no answer for {self.timeout_s:g} s"
        return HealthChange("collector.failing", self.reason) if before is HealthState.OK else None

    def next_in(self, wall: float) -> float:
        """Seconds until the next slot begins."""
        return self.interval_s - (wall + LEAD_S) % self.interval_s


@dataclass(frozen=True)
class CollectorResult:
    """What came of asking a collector once."""

    name: str
    found: Sequence[Reading | StepReading | Event] = ()
    error: str = ""


@dataclass
class CollectorThread:
    """A collector with its schedule and its thread."""

    name: str
    collector: Collector
    schedule: Schedule
    _questions: SimpleQueue[bool] = field(default_factory=SimpleQueue)

    def start(self, answers: "SimpleQueue[CollectorResult]") -> None:
        """Begin the thread. It is a daemon: one that hangs for ever must not keep the agent from ending."""
        threading.Thread(target=self._run, args=(answers,), name=f"collector-{self.name}", daemon=True).start()

    def ask(self) -> None:
        self._questions.put(True)

    def close(self) -> None:
        """End the thread, once it is done with what it does."""
        self._questions.put(False)

    def _run(self, answers: "SimpleQueue[CollectorResult]") -> None:
        while self._questions.get():
            try:
                answers.put(CollectorResult(self.name, tuple(self.collector.collect())))
            except Exception as error:  # noqa: BLE001  # boundary: any plugin may raise anything; it is told and retried
                answers.put(CollectorResult(self.name, error=f"{type(error).__name__}: {error}"))
