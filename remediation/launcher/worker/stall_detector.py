"""Stall detection: which elastic worker hangs while all others wait for it. A pause that nobody waits for is no stall.

A worker is suspected when its marks have not moved for longer than usual (section [stall]); it waits when its last mark says
that it is in a collective. Only where every worker of the epoch does one or the other, and somebody waits, the suspected ones
may be to blame: those whose process proves that they hang at once, those that stand or work once the patience for it is over. Who stands
in a line in which this node's workers have stood before, and gone on by themselves, is given twice as long as then.

Where all wait, for far longer than a step takes, one of them hangs within a collective and nothing tells which. Then they
are to meet again under a new epoch: a worker that does not take its new assignment is suspected, whatever its last mark says.
"""

import statistics
from collections.abc import Iterable

import msgspec

from eagle_eye.activity.hang_verdict import Activity, ActivityKind
from eagle_eye.activity.pause_memory import PauseMemory
from eagle_eye.clock import Clock
from eagle_eye.config import StallConfig

PAUSES = frozenset({"data", "checkpoint", "evaluation"})
LONG_PAUSES = PAUSES - {"data"}
"""Who is marked to save or to evaluate may stand for long without a sign of it: it waits for a store elsewhere, or for another program."""
WAITING_S = 0.1
"""Somebody who waits has been quiet for as long."""
TIMES_STOOD = 2.0
FRESH_S = 0.5
"""What another launcher has said holds for as long."""


class WorkerSample(msgspec.Struct, frozen=True, kw_only=True):
    """One worker at a moment."""

    worker: str
    marks: int
    phase: str
    stopped: bool = False
    """By a signal: state T."""
    deaf: bool = False
    """It was given an epoch's orders and has not moved since."""
    step_s: float | None = None
    """Median of its last steps, None if it has not completed some."""
    activity: Activity | None = None
    """What its process does, None if nobody has looked."""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The workers of a node that do not move."""

    waiting: tuple[str, ...] = ()
    still: dict[str, float] = {}
    """Worker → seconds without a mark, of those that are proved to hang, or whose patience is over."""
    suspected: tuple[str, ...] = ()
    """Who is looked into: it has set no mark for longer than usual."""
    doing: dict[str, str] = {}
    """What those do that are suspected or still, as far as it is known."""
    moving: int = 0
    """How many others there are."""
    waited_s: float = 0.0
    """For how long at least each of those that wait has done so."""
    step_s: float | None = None
    """Median length of a step, None if nobody knows."""


class InactivityTimer:
    """For how long each worker of a node has not moved."""

    def __init__(self, clock: Clock, look_s: float, stall: StallConfig) -> None:
        """`look_s`: how often `look` is called; after a much longer time it was we who stood still."""
        self._clock = clock
        self._stall = stall
        self._look_s = look_s
        self._looked = clock.monotonic()
        self._last: dict[str, tuple[int, float]] = {}
        self._standing: dict[str, str] = {}
        """Suspected worker → line in which it stands."""
        self._stood = PauseMemory(TIMES_STOOD)

    def seconds(self, worker: str) -> float:
        """Since its last mark, as of the last look."""
        return self._looked - self._last[worker][1] if worker in self._last else 0.0

    def look(self, sights: Iterable[WorkerSample]) -> NodeReport:
        """Compare with what was seen before."""
        now = self._clock.monotonic()
        overslept = now - self._looked > 5 * self._look_s
        self._looked = now
        seen = {sight.worker: sight for sight in sights}
        for name, sight in seen.items():
            before = self._last.get(name, (-1, 0.0))[0]
            if overslept or before != sight.marks:
                self._end_pause(name, now if before < sight.marks and not overslept else None)
                self._last[name] = (sight.marks, now)
        self._last = {name: self._last[name] for name in seen}
        usual = [sight.step_s for sight in seen.values() if sight.step_s is not None]
        fallback = statistics.median(usual) if usual else None
        waiting = tuple(name for name, sight in seen.items() if self._waits(sight))
        quiet = {name: self.seconds(name) for name in seen if name not in waiting}
        suspected = [name for name, seconds in quiet.items() if seconds > suspicion(seen[name], self._stall, fallback)]
        still = {name: quiet[name] for name in suspected if quiet[name] > patience(seen[name], self._stall, fallback, self._stood)}
        self._standing = {name: _line(seen[name]) for name in suspected if name not in still}
        return NodeReport(
            waiting=waiting, still=still, suspected=tuple(name for name in suspected if name not in still),
            doing={name: activity.doing for name in suspected if (activity := seen[name].activity) is not None},
            moving=len(seen) - len(waiting) - len(suspected), waited_s=min(map(self.seconds, waiting), default=0.0), step_s=fallback,
        )  # fmt: skip

    def overdue(self, workers: Iterable[str]) -> list[str]:
        """Of those that wait, who has done so for as long as makes others suspected: their mark may be out of date."""
        return [worker for worker in workers if self.seconds(worker) > self._stall.suspect_s]

    def _end_pause(self, worker: str, now: float | None) -> None:
        """`now`: it moves again by itself. A new process of its name, or who was accused meanwhile, teaches nothing."""
        line = self._standing.pop(worker, "")
        if line and now is not None:
            self._stood.ended(line, now - self._last[worker][1])

    def _waits(self, sight: WorkerSample) -> bool:
        """By its last mark, unless it was seen at work, or in a collective that goes on: a script may evaluate after the mark of its communication, and make none for that."""
        works = sight.activity is not None and sight.activity.kind in (ActivityKind.WORKING, ActivityKind.TRACED, ActivityKind.EXCHANGES)
        held_up = sight.phase == "communication" and not (sight.stopped or sight.deaf or works)
        return held_up and self.seconds(sight.worker) >= WAITING_S


def suspicion(sight: WorkerSample, stall: StallConfig, fallback: float | None = None) -> float:
    """Seconds that a worker may be without a mark before it is looked into; `fallback`: a step's usual length where its own is not known."""
    step_s = sight.step_s if sight.step_s is not None else fallback
    if sight.stopped:
        return max(stall.stopped_s, (step_s or 0.0) * stall.suspect_iterations)
    usual = max(stall.suspect_s, (step_s or 0.0) * stall.suspect_iterations)
    return max(usual, stall.suspect_pause_s) if sight.phase in PAUSES or step_s is None else usual


def _line(sight: WorkerSample) -> str:
    """Where it stands, '' if it does not."""
    return sight.activity.place if sight.activity is not None and sight.activity.kind is ActivityKind.STANDING else ""


def patience(sight: WorkerSample, stall: StallConfig, fallback: float | None = None, stood: PauseMemory | None = None) -> float:
    """Seconds without a mark after which a suspected worker is accused: 0 where its process proves that it hangs.

    `stood`: how long workers have stood before, by line.
    """
    if sight.stopped:
        return 0.0
    kind = sight.activity.kind if sight.activity is not None else ActivityKind.UNKNOWN
    if kind is ActivityKind.HUNG or (sight.deaf and kind in (ActivityKind.STANDING, ActivityKind.AWAITS_PEERS)):
        return 0.0
    if kind is ActivityKind.STANDING and sight.phase not in LONG_PAUSES:
        learned = stood.patience(_line(sight)) if stood is not None else 0.0
        return max(stall.standing_s, suspicion(sight, stall, fallback), min(learned, stall.patience_s))
    return stall.patience_s


class StallDetector:
    """All nodes' views together, with the coordinator."""

    def __init__(self, clock: Clock, stall: StallConfig) -> None:
        self._clock = clock
        self._stall = stall
        self._views: dict[str, tuple[float, NodeReport]] = {}

    def culprits(self, node: str, view: NodeReport, serving: Iterable[str]) -> dict[str, float]:
        """Who hangs, and for how long, while all others wait, now that `node` has said how it looks there."""
        self._views[node] = (self._clock.monotonic(), view)
        fresh = self._fresh()
        waiting = {worker for view in fresh for worker in view.waiting}
        still = {worker: age for view in fresh for worker, age in view.still.items()}
        everybody = set(serving)
        if not waiting & everybody or not everybody <= waiting | still.keys():
            return {}
        return {worker: age for worker, age in still.items() if worker in everybody}

    def stuck(self, serving: Iterable[str], times: int) -> bool:
        """Whether all wait for each other and nobody will end it. `times`: how often they have met again without a step since."""
        fresh = self._fresh()
        if not set(serving) <= {worker for view in fresh for worker in view.waiting}:
            return False
        step_s = max((view.step_s for view in fresh if view.step_s is not None), default=None)
        waited_s = min((view.waited_s for view in fresh if view.waiting), default=0.0)
        return waited_s > self._regroup_s(step_s) * 2.0**times

    def _regroup_s(self, step_s: float | None) -> float:
        """The first exchanges of a job, before anybody knows how long a step takes, may take longer than all later ones."""
        stall = self._stall
        return max(stall.regroup_s, stall.suspect_pause_s if step_s is None else stall.regroup_iterations * step_s)

    def _fresh(self) -> list[NodeReport]:
        now = self._clock.monotonic()
        return [view for heard, view in self._views.values() if now - heard <= FRESH_S]
