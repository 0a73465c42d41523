"""Reads the rings of workers' flight recorders: one worker at a time, and each so seldom that it costs next to nothing.

The pause behind a read is what the read took, divided by a share: on the worker's side the whole time until the answer was there (which its thread cannot exceed), on the agent's its processor time.
A full ring of 2,000 takes a worker 30 to 45 ms, so it is asked about once in 75 s; one with a few entries every LEAST_S.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from collectors.agent.job_directory import may_name
from eagle_eye.training import live_flight_recorder

from .ring_sizes import RingGroup, RingSizes, ring_sizes

log = logging.getLogger(__name__)

WORKER_SHARE = 0.0005
"""Of one core of a worker, at most."""
AGENT_SHARE = 0.002
"""Of one core of the agent, for all its workers together."""
LEAST_S, AGAIN_S, LONGEST_AGAIN_S = 10.0, 30.0, 3600.0
"""Between two reads of a worker, at least; and behind one that did not answer, doubled each time."""
OLD_S, OLD_PAUSES = 900.0, 3.0
"""A ring counts for so long, and for so many of its pauses."""
ANSWER_S = 1.0
"""A worker that is stopped never answers."""
LARGEST = 16 << 20
"""Bytes of an answer: a ring of 20,000."""

WorkerLife = tuple[str, int, int, int]


class RingRequest(NamedTuple):
    """A worker whose ring may be read."""

    life: WorkerLife
    recorder: str
    """Path of its server."""
    user: int
    over: int
    """Collectives that are over, all groups together: a ring is read again only if there are new ones."""
    ranks: Mapping[str, int]
    """Name of a group → its size."""


@dataclass
class _WorkerRing:
    sizes: Mapping[RingGroup, RingSizes] = field(default_factory=dict)
    read_at: float = -1e18
    due_at: float = -1e18
    pause_s: float = 0.0
    over: int = -1
    failures: int = 0


@dataclass
class FlightRingReader:
    """Keeps the newest ring of each worker."""

    ask: Callable[[str, float, int], list[bytes] | None] = live_flight_recorder.answers
    elapsed: Callable[[], float] = time.perf_counter
    used: Callable[[], float] = time.thread_time
    """Processor time of this thread."""
    _rings: dict[WorkerLife, _WorkerRing] = field(default_factory=dict, init=False)
    _due_at: float = field(default=-1e18, init=False)

    def sizes(self, life: WorkerLife, now: float) -> Mapping[RingGroup, RingSizes]:
        """Of the newest ring that was read; {}: none was, or it is too old."""
        ring = self._rings.get(life)
        return ring.sizes if ring is not None and now - ring.read_at <= max(OLD_S, OLD_PAUSES * ring.pause_s) else {}

    def look(self, requests: Iterable[RingRequest], now: float) -> None:
        """Read the ring that is due for longest, if the agent has time for one. At most ANSWER_S times `live_flight_recorder.LONGEST`."""
        if now < self._due_at:
            return
        due = [(ring.due_at, request) for request in requests if self._is_due(ring := self._ring(request.life), request, now)]
        if due:
            self._read(min(due, key=lambda each: each[0])[1], now)

    def keep(self, lives: set[WorkerLife]) -> None:
        """Forget all others: they are gone."""
        self._rings = {life: ring for life, ring in self._rings.items() if life in lives}

    def _ring(self, life: WorkerLife) -> _WorkerRing:
        return self._rings.setdefault(life, _WorkerRing())

    def _is_due(self, ring: _WorkerRing, request: RingRequest, now: float) -> bool:
        return ring.due_at <= now and ring.over != request.over

    def _read(self, request: RingRequest, now: float) -> None:
        ring, used = self._ring(request.life), self.used()
        problem, ring.pause_s = "it cannot be read", LEAST_S
        try:
            problem = self._take(ring, request, now)
        except MemoryError:
            problem = "it does not fit into the agent's memory"
        finally:  # whatever comes of it, the others have their turn
            if problem:
                self._fail(ring, request, problem)
            ring.due_at = now + ring.pause_s
            self._due_at = now + (self.used() - used) / AGENT_SHARE

    def _take(self, ring: _WorkerRing, request: RingRequest, now: float) -> str:
        """Ask for the ring and keep what it says; why that did not come about, '' if it did."""
        if not may_name(request.user, request.recorder):
            return "it is another user's"
        began = self.elapsed()
        answers = self.ask(request.recorder, ANSWER_S, LARGEST)
        ring.pause_s = max(LEAST_S, (self.elapsed() - began) / WORKER_SHARE)
        if answers is None:
            return "it does not answer" if Path(request.recorder).exists() else "it has none: torch is too old, or was loaded after the probe"
        try:
            ring.sizes, ring.read_at, ring.over, ring.failures = ring_sizes(answers, request.ranks), now, request.over, 0
        except ValueError as error:
            return f"what it answers is no ring: {error}"
        return ""

    def _fail(self, ring: _WorkerRing, request: RingRequest, problem: str) -> None:
        """Told at the first of several in succession."""
        ring.pause_s = max(ring.pause_s, min(LONGEST_AGAIN_S, AGAIN_S * 2.0 ** min(ring.failures, 16)))
        ring.failures += 1
        if ring.failures == 1:
            log.warning("flight recorder of %s (%s): %s; the bytes of its collectives are not known", request.life[0], request.recorder, problem)
