"""A lasting loss of a job's throughput, against the steady level that it had with as many workers; and what explains it, if it shows.

The loss is always told. Its cause only where something shows it: other processes on a host, the CPU quota of the workers'
cgroup, collectives or input that take longer while computing does not, the garbage collection of Python. Where one worker alone waits for its data, or
collects garbage, the finding is that worker's. Metrics that moved on most machines together with it (features/metric_shifts.py) are told as that, and
where there is nothing of all this the cause is unknown. It accuses nobody: which worker computes longer than its peers is the straggler detector's to say.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Seconds, Share
from eagle_eye.types import Claim, Entity, Evidence, Kind, Step

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps
from .features.metric_shifts import MetricShifts
from .features.processor_signals import ProcessorSignals, UsualSignals
from .features.step_estimate import RecentWork
from .features.throughput_level import NOBODY, Level, Span, StepCost, TypicalStep, cost_of, level_of, span_of, typical

KIND = "job.throughput_lost"
_SIZES_KEPT = 16
_NOISE = 6.0
"""Standard deviations of the mean of the judged spans: a noisy job has to lose more."""
_PARTS = (("all of it", "step_s"), ("computing", "compute_s"), ("communication", "communication_s"), ("waiting for data", "data_s"), ("garbage collection", "garbage_s"))
_REVISED = 0.1
"""A share that changed by so much is told anew."""
_SAMPLES_OF_A_SPAN = 3
"""Of the metrics, at most."""
_SLOWLY_READ = 4
"""Times the judged spans after which it is looked once more what moved: some metrics are read every ten seconds."""


class _Wait(NamedTuple):
    """What takes longer in a step."""

    kind: str
    what: str
    place: int
    """Of the worker whose it is alone; NOBODY."""
    before_s: float
    after_s: float


@dataclass
class ThroughputLoss:
    """Claims job.throughput_lost, and with it communication.slow, input.slow, garbage_collection.slow, cpu.throttled and host.contended. All inform only.

    The level is the best that the job held for `window` spans with as many workers and as much work in a step; it outlives
    an epoch. A pause (evaluation, checkpoint, one long step) is no loss.
    """

    needs_job: ClassVar[bool] = True
    lost: Share = 0.2
    """Share of the level that must be lost ..."""
    spans: Count = 8
    """... in all but one of so many spans in succession."""
    span_s: Seconds = 1.0
    """Steps of so many seconds are one span; a longer step is one by itself."""
    window: Count = 60
    """Spans that make the level; judged from a sixth of it on."""
    _epoch: int = field(default=-1, init=False, repr=False)
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _workers: int = field(default=0, init=False, repr=False)
    _names: tuple[str, ...] = field(default=(), init=False, repr=False)
    """Of the workers of the newest step."""
    _open_span: list[StepCost] = field(default_factory=list, init=False, repr=False)
    _steady: deque[Span] = field(default_factory=deque, init=False, repr=False)
    """Spans of this epoch that were not lost, the newest last."""
    _newest: deque[Span] = field(default_factory=deque, init=False, repr=False)
    """The judged ones."""
    _levels: dict[int, Level] = field(default_factory=dict, init=False, repr=False)
    """Number of workers → their level."""
    _partial: bool = field(default=False, init=False, repr=False)
    """The level was made of less than a whole window of this epoch, and follows it."""
    _since: float = field(default=0.0, init=False, repr=False)
    _told: tuple[float, bool] = field(default=(1.0, False), init=False, repr=False)
    """Share of the level, and whether something explains it: as they were told last."""
    _moved: tuple[Evidence, ...] = field(default=(), init=False, repr=False)
    """Metrics that moved with the loss, as they were told last."""
    _lost_spans: int = field(default=0, init=False, repr=False)
    """Judged since the loss was told."""
    _shifts: MetricShifts = field(default_factory=MetricShifts, init=False, repr=False)
    _unseen: dict[tuple[Entity, str], int] = field(default_factory=dict, init=False, repr=False)
    """Explanations that were told → in how many spans in succession they have not been seen since."""
    _recent: RecentWork = field(default_factory=RecentWork, init=False, repr=False)
    _signals: ProcessorSignals = field(default_factory=ProcessorSignals, init=False, repr=False)
    _usual: UsualSignals = field(default_factory=UsualSignals, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._begin_epoch()
            yield from self._claims.withdraw_all(event.time, why)
        if not frame.tick:
            return
        self._signals.update(frame)
        self._usual.update(self._signals, frame.moved.get(Kind.NODE), learn=self._is_steady)
        self._shifts.update(frame, self._newest[-1].step_s / _SAMPLES_OF_A_SPAN if self._newest else 0.0)
        job = Entity(kind=Kind.JOB, name=frame.job)
        for step in self._steps.of(frame):
            if self._claims.open and (step.epoch != self._epoch or len(step.workers) != self._workers):
                yield from self._claims.withdraw_all(step.end, "its workers have changed")
            self._recent.add(step, frame.layout)
            if self._add(step):
                yield from self._judge(job)

    # --- measuring ---------------------------------------------------------------------------------------------------

    def _begin_epoch(self) -> None:
        self._epoch, self._partial = -1, False
        self._recent.forget()
        self._shifts.drop()
        self._open_span.clear()
        self._steady.clear()
        self._newest.clear()

    def _add(self, step: Step) -> bool:
        """Take a step in; True if a span is whole now."""
        self._names = step.workers
        if step.epoch != self._epoch or len(step.workers) != self._workers:
            self._begin_epoch()
            self._epoch, self._workers = step.epoch, len(step.workers)
            return False  # the first step of an epoch compiles and fills caches
        cost = cost_of(step)
        if cost is None:
            return False
        self._open_span.append(cost)
        if sum(each.seconds for each in self._open_span) < self.span_s:
            return False
        self._newest.append(span_of(self._open_span))
        self._open_span.clear()
        return True

    @property
    def _level(self) -> Level | None:
        """None as long as too little is known, also in a new epoch, whose first steps fill caches."""
        return self._levels.get(self._workers) if len(self._steady) + len(self._newest) > self._least else None

    @property
    def _least(self) -> int:
        return max(self.window // 6, self.spans)

    @property
    def _is_steady(self) -> bool:
        level = self._level
        return level is not None and not self._claims.open and bool(self._newest) and level.share([self._newest[-1]]) > 1.0 - self.lost

    def _settle(self, span: Span) -> None:
        """A span that was no loss: the level follows it as long as it is made, later it only rises."""
        self._shifts.settle(span.end)
        self._steady.append(span)
        while len(self._steady) > self.window:
            self._steady.popleft()
        known = self._levels.get(self._workers)
        if known is None and len(self._steady) >= self._least:
            self._partial = True
        whole = len(self._steady) == self.window
        level = level_of(self._steady) if self._partial or whole else None
        if level is not None and (self._partial or known is None or level.rate > known.rate):
            self._levels.pop(self._workers, None)
            self._levels[self._workers] = level
        self._partial = self._partial and not whole
        while len(self._levels) > _SIZES_KEPT:
            del self._levels[next(iter(self._levels))]

    def _forget_level(self) -> None:
        self._levels.pop(self._workers, None)
        self._steady.clear()

    # --- judging -----------------------------------------------------------------------------------------------------

    def _judge(self, job: Entity) -> Iterator[Claim]:
        """A span more."""
        lost = (job, KIND) in self._claims
        while len(self._newest) > self.spans:
            span = self._newest.popleft()
            if not lost:
                self._settle(span)
        level = self._level
        if level is None or len(self._newest) < self.spans:
            return
        if level.is_other_work(self._newest):
            self._forget_level()
            yield from self._claims.withdraw_all(self._newest[-1].end, "its steps have another amount of work now")
        elif not lost and self._is_lost(level):
            self._since, self._told, self._unseen, self._moved, self._lost_spans = self._newest[0].end - self._newest[0].seconds, (1.0, False), {}, (), 0
            yield from self._report(job, level)
        elif lost and level.share(self._newest) >= 1.0 - self.lost / 2:
            self._shifts.drop()
            yield from self._claims.withdraw_all(self._newest[-1].end, f"the job does {level.share(self._newest):.0%} of its earlier throughput again")
        elif lost:
            yield from self._report(job, level)

    def _is_lost(self, level: Level) -> bool:
        shares = level.shares(self._newest)
        enough = max(self.lost, _NOISE * level.noise / math.sqrt(self.spans))
        return bool(np.median(shares) <= 1.0 - enough and (shares <= 1.0 - self.lost).mean() >= 1.0 - 1.0 / self.spans)

    # --- telling -----------------------------------------------------------------------------------------------------

    def _report(self, job: Entity, level: Level) -> Iterator[Claim]:
        """The loss with what explains it; again when that changes, or the loss itself by much."""
        share, now = level.share(self._newest), typical(self._newest)
        cost = f"the job does {share:.0%} of its earlier throughput"
        found = list(self._explanations(job, level.step, now, cost))
        yield from self._follow(found)
        explained = bool(self._unseen)
        self._lost_spans += 1
        later = self._lost_spans == _SLOWLY_READ * self.spans and self._shifts_changed()
        if later or (job, KIND) not in self._claims or explained != self._told[1] or abs(share - self._told[0]) >= _REVISED:
            self._told, self._moved = (share, explained), self._shifts.lines(self._since)
            evidence = self._evidence(level, share, now, cost, explained=explained)
            yield from self._claims.report(Claim(entity=job, kind=KIND, score=0.9, since=self._since, evidence=evidence))

    def _shifts_changed(self) -> bool:
        """Other metrics moved than were told."""
        return {line.metric for line in self._shifts.lines(self._since)} != {line.metric for line in self._moved}

    def _follow(self, found: list[Claim]) -> Iterator[Claim]:
        """Tell what is new, and withdraw what has not been seen for a while."""
        for claim in found:
            self._unseen[(claim.entity, claim.kind)] = 0
            yield from self._claims.report(claim, revise=False)
        seen = {(claim.entity, claim.kind) for claim in found}
        for key in [key for key in self._unseen if key not in seen]:
            self._unseen[key] += 1
            if self._unseen[key] >= self.spans:
                del self._unseen[key]
                yield from self._claims.withdraw(*key, self._newest[-1].end, "it is not seen any more")

    def _explanations(self, job: Entity, usual: TypicalStep, now: TypicalStep, cost: str) -> Iterator[Claim]:
        """What the signals show; a host that lacks processors makes everything longer, so that phases say nothing then."""
        throttled = self._usual.quota_bites(self._signals)
        contended = [node for node in self._usual.contended(self._signals) if node not in throttled]
        yield from (self._signals.quota_claim(node, self._since, cost) for node in throttled)
        yield from (self._signals.contention_claim(node, self._since, cost) for node in contended)
        longer = now.step_s - usual.step_s
        if throttled or contended or longer <= 0.0:
            return
        for kind, what, place, before, after in self._longer(usual, now, longer):
            whose = "" if place == NOBODY else f" on {self._names[place]} alone"
            text = f"{cost}: {what} takes {after:.3f} s of a step{whose}, {before:.3f} s before; computing takes {now.compute_s:.3f} s, {usual.compute_s:.3f} s before"
            proof = Evidence(text=text, metric="phase_s", value=after, threshold=before)
            entity = job if place == NOBODY else Entity(kind=Kind.WORKER, name=self._names[place])
            told = next((whom for whom, which in self._unseen if which == kind), entity)
            yield Claim(entity=told, kind=kind, score=0.8, since=self._since, evidence=(proof,))

    def _longer(self, usual: TypicalStep, now: TypicalStep, longer: float) -> Iterator[_Wait]:
        """What makes up at least half of what a step takes longer."""
        if now.garbage_s - usual.garbage_s >= longer / 2:
            yield _Wait("garbage_collection.slow", "garbage collection", now.garbage_of, usual.garbage_s, now.garbage_s)
        elif now.compute_s - usual.compute_s <= longer / 4:
            waits = (
                _Wait("communication.slow", f"communication on all {self._workers} workers", NOBODY, usual.communication_s, now.communication_s),
                _Wait("input.slow", "waiting for data", now.data_of, usual.data_s, now.data_s),
            )
            yield from (wait for wait in waits if wait.after_s - wait.before_s >= longer / 2)

    def _evidence(self, level: Level, share: float, now: TypicalStep, cost: str, *, explained: bool) -> tuple[Evidence, ...]:
        unit = "tokens" if math.isfinite(level.tokens[0]) else "steps"
        figures = f"{level.rate * share:.4g} {unit}/s instead of {level.rate:.4g} on {self._workers} workers, for {self._newest[-1].end - self._since:.0f} s"
        lines = [Evidence(text=f"{cost}: {figures}", metric="throughput_share", value=share, threshold=1.0 - self.lost)]
        if now.compute_s + level.step.compute_s > 0.0:
            parts = ((name, getattr(now, part), getattr(level.step, part)) for name, part in _PARTS)
            told = ", ".join(f"{name} {after:.3f} s ({before:.3f} s before)" for name, after, before in parts)
            lines.append(Evidence(text=f"of each step: {told}"))
        if (saved := self._recent.best()) is not None:
            lines.append(saved)
        lines += self._moved
        if not explained and not self._moved:
            lines.append(Evidence(text="nothing that was seen explains it: the cause is unknown"))
        return tuple(lines)
