"""Stalls: a job that makes no progress, and the worker that the others wait for, if it is proved to hang.

A worker's position is its step and the number of marks it has set in it. Workers that wait in communication are victims;
suspected is the worker furthest behind that waits for nobody. What its agent sees of its process decides: who was stopped
by a signal or hangs for sure is a culprit at once, who stands without a proof after `stall.standing_s` (longer in a line in which
the job has stood before and gone on by itself), who works after `stall.patience_s`. Until then the job pauses, and nobody is
accused. When all workers wait at the same position, none is.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from eagle_eye.activity.hang_verdict import ActivityKind
from eagle_eye.activity.pause_memory import PauseMemory
from eagle_eye.config import StallConfig
from eagle_eye.event_attributes import EXCLUDED_STALLED, integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio, Seconds
from eagle_eye.training.messages import PHASES
from eagle_eye.types import Claim, Doubles, Entity, Event, Evidence, Kind, Step

from .features.active_claims import ActiveClaims, ends_epoch
from .features.collective_ranks import CollectiveWaits, collectives_of, gpu_idles, left_behind, not_entered, use_gpu
from .features.ended_stalls import EndedHangs, EndedStops
from .features.step_time import iteration_time
from .features.worker_positions import (
    AGE,
    COMMUNICATION,
    DATA,
    PAUSES,
    PHASE,
    RUNNING,
    STATE,
    STEP,
    STOPPED,
    Truths,
    WaitingRounds,
    WorkerPositions,
    awaited,
    elsewhere,
    fewest,
    furthest_behind,
    missed_by_most,
    not_awaiting_the_finished,
    row_of,
    waiting_for,
)
from .features.worker_table import WorkerTable

MOVES = frozenset({"stall", "resumed", "worker.finished"})
"""Events after which a worker is somewhere else than it was."""


@dataclass
class Stall:
    """Claims job.paused, worker.stopped, job.stalled, worker.stalled and input.stalled; all are withdrawn when the job moves again.

    `stall` events of the agents are evaluated once every worker of the layout is covered, at the latest at the next
    tick.
    """

    needs_job: ClassVar[bool] = True
    stall: StallConfig = field(default_factory=StallConfig)
    """Section [stall]; set by the server."""
    data_patience_s: Seconds = 10.0
    """A wait for input accuses no worker for at least so many seconds ..."""
    pause_patience_s: Seconds = 5.0
    """... nor does an evaluation or a checkpoint for at least so many seconds ..."""
    times_longest: Ratio = 10.0
    """... or for so many times the longest one that the job has shown, whichever is more, up to `stall.patience_s`."""
    times_stood: Ratio = 2.0
    """Who stands in a line is waited for so many times as long as the job has stood there before, if it went on by itself."""
    late_ticks: Count = 3
    """When a batch is late, a worker's last reading stays valid for so many ticks; then its position is unknown."""
    _epoch: int = field(default=-1, init=False, repr=False)
    _stepped: bool = field(default=False, init=False, repr=False)
    _dead: bool = field(default=False, init=False, repr=False)
    _reports: dict[str, Event] = field(default_factory=dict, init=False, repr=False)
    _iterations: deque[float] = field(default_factory=lambda: deque(maxlen=50), init=False, repr=False)
    _pauses: PauseMemory = field(init=False, repr=False)
    """By phase, from completed steps."""
    _stood: PauseMemory = field(init=False, repr=False)
    """By line of the user's code."""
    _table: WorkerTable = field(default_factory=WorkerTable, init=False, repr=False)
    _told: tuple[str, ...] = field(default=(), init=False, repr=False)
    """What the job.paused that is open says of those that are waited for."""
    _stops: EndedStops = field(default_factory=EndedStops, init=False, repr=False)
    _hangs: EndedHangs = field(default_factory=EndedHangs, init=False, repr=False)
    _accused: float = field(default=-np.inf, init=False, repr=False)
    """When a worker was last found to be the culprit: what the job did around then is no pause to learn from."""
    _exchanged: float = field(default=-np.inf, init=False, repr=False)
    """When somebody was last seen in a collective that went on."""
    _waits: CollectiveWaits = field(default_factory=CollectiveWaits, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)
    _rounds: WaitingRounds = field(default_factory=WaitingRounds, init=False, repr=False)
    _behind: WaitingRounds = field(default_factory=WaitingRounds, init=False, repr=False)

    def __post_init__(self) -> None:
        self._pauses, self._stood = PauseMemory(self.times_longest), PauseMemory(self.times_stood)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name in MOVES:
                self._rounds.forget()
                self._behind.forget()
            yield from self._take(event)
        if frame.tick:
            self._look(frame)
            yield from self._tell_hangs(frame)
        yield from self._judge(frame)

    # --- what is known

    def _take(self, event: Event) -> Iterator[Claim]:
        if why := ends_epoch(event):
            self._epoch = max(self._epoch, integer_attribute(event, "epoch"))
            yield from self._tell_stops()
            self._forget()
            yield from self._claims.withdraw_all(event.time, why)
        elif event.name == "stall" and event.attributes.get("state") == "T" and (self._is_late(event) or event.attributes.get("ended")):
            yield from self._was_stopped(event)
        elif event.name == "worker.excluded" or self._is_late(event):
            self._keep_hang(event)
        elif event.name == "stall":
            self._take_stall(event)
        elif event.name == "resumed":
            self._end_pause(event.entity.name, event.time)
            self._table.resume(event)
            self._hangs.resumed(event.entity.name, event.time)
            for kind in ("worker.stopped", "worker.stalled"):
                yield from self._claims.withdraw(event.entity, kind, event.time, "it moves again")
        elif event.name == "worker.finished":
            self._table.finish(event)
            self._reports.pop(event.entity.name, None)
        elif event.name == "restart.delayed":
            self._dead = True  # the job backs off: its workers were ended, and come back with the next epoch
            yield from self._tell_stops()
            self._reports.clear()
            yield from self._claims.withdraw_all(event.time, "the job backs off before it starts its workers again")
        elif event.name in ("exit", "exception"):
            self._dead = True  # the others stall because of it; the death itself is the finding of another detector

    def _take_stall(self, event: Event) -> None:
        if self._waits.observe(event):
            self._exchanged = event.time
        self._reports[event.entity.name] = event
        self._table.stall(event.entity.name)

    def _is_late(self, event: Event) -> bool:
        return 0 <= integer_attribute(event, "epoch") < self._epoch

    def _tell_stops(self) -> Iterator[Claim]:
        """Of the epoch that ends: those that came together with its end, to a server that was behind, were not judged before."""
        for report in self._reports.values():
            if report.attributes.get("state") == "T":
                yield from self._was_stopped(report)
            self._keep_hang(report)

    def _keep_hang(self, event: Event) -> None:
        hung = event.name == "stall" and event.attributes.get("activity") == ActivityKind.HUNG.value
        if hung or (event.name == "worker.excluded" and event.attributes.get("reason") == EXCLUDED_STALLED):
            self._hangs.add(event)

    def _tell_hangs(self, frame: Frame) -> Iterator[Claim]:
        """Of epochs that are over: told and withdrawn."""
        for claim in self._hangs.due(frame.time, len(self._workers_of(frame))):
            if (claim.entity, claim.kind) not in self._claims:  # it hangs again, and that is told
                yield from self._claims.report(claim)
                yield from self._claims.withdraw(claim.entity, claim.kind, frame.time, "its job went on without it")

    def _was_stopped(self, event: Event) -> Iterator[Claim]:
        """Its process was ended for another fault: it is told and withdrawn."""
        self._hangs.accused(event.entity.name, integer_attribute(event, "epoch"))  # an elastic job leaves it out as one that hangs
        if (claim := self._stops.claim(event)) is not None:
            yield from self._claims.report(claim, revise=False)
            yield from self._claims.withdraw(claim.entity, claim.kind, event.time, "its process was ended")

    def _forget(self) -> None:
        self._rounds.forget()
        self._reports.clear()
        self._table = WorkerTable()
        self._iterations.clear()
        self._stepped = self._dead = False
        self._exchanged = -np.inf
        self._waits = CollectiveWaits()

    def _look(self, frame: Frame) -> None:
        for step in frame.steps:
            if step.epoch >= self._epoch:
                if self._stepped:  # the first one compiled and filled caches
                    self._iterations.append(iteration_time(step))
                self._stepped = True
            self._measure_pauses(step)
        for worker in self._table.read(frame, self.late_ticks):
            self._reports.pop(worker, None)
        for worker in self._table.moved(self._reports):
            self._end_pause(worker, frame.time)

    def _measure_pauses(self, step: Step) -> None:
        if not self._teaches(step.end - float(np.nan_to_num(step.values.get("step_s", np.zeros(1))).max(initial=0.0))):
            return
        for phase in PAUSES:
            seconds = np.nan_to_num(step.values.get(f"{PHASES[int(phase)]}_s", np.zeros(1)))
            self._pauses.ended(PHASES[int(phase)], float(seconds.max(initial=0.0)))

    def _end_pause(self, worker: str, time: float) -> None:
        """It goes on by itself: how long it stood teaches patience with that line, unless somebody was accused meanwhile."""
        self._waits.forget(worker)
        report = self._reports.pop(worker, None)
        if report is None or report.attributes.get("activity") != ActivityKind.STANDING.value:
            return
        stood_s = row_of(report, time)[AGE]
        if self._teaches(time - stood_s):
            self._stood.ended(report.attributes.get("place", ""), stood_s)

    def _teaches(self, began: float) -> bool:
        """Nobody is accused, nor was since then: what an accusation was withdrawn of is no pause of the job's own."""
        return began > self._accused and not any(entity.kind is Kind.WORKER for entity, _ in self._claims.open)

    def _workers_of(self, frame: Frame) -> tuple[str, ...]:
        """Of the job: by its layout, else those that the last tick had."""
        return frame.layout.workers if frame.layout is not None else self._table.workers

    # --- judging

    def _judge(self, frame: Frame) -> Iterator[Claim]:
        if not self._reports and not (frame.tick and self._may_stall()):
            self._rounds.forget()
            if frame.tick or any(event.name == "resumed" for event in frame.events):
                yield from self._claims.withdraw_all(frame.time, "the job moves again")
            return
        at = self._table.positions(self._workers_of(frame), self._reports, frame.time)
        stopped = self._stalled(at) & (at.table[:, STATE] == STOPPED)
        for index in np.flatnonzero(stopped).tolist():
            yield from self._worker("worker.stopped", at, index, frame, 1.0)
        if self._dead or not at.workers or not (frame.tick or (at.reported | at.finished).all()):
            return
        known = at.reported | at.finished | np.isfinite(at.table[:, AGE])
        stalled = self._stalled(at, share=0.5)
        if at.finished.all() or not (stalled | self._left_loop(at, stalled) | at.finished | ~known).all():
            if not self._reports and not stopped.any():
                yield from self._claims.withdraw_all(frame.time, "the job moves again")
        elif stopped.any():
            yield from self._standing(frame, at, stopped, 1.0)
        elif not known.all():
            yield from self._pause(frame, at, ~known, 0.5)  # nobody has told where they are: no proof of anything
        elif not at.late.any():  # positions of different moments cannot be compared
            yield from self._blame(at, frame)

    def _limit(self) -> float:
        """Seconds without a mark after which a worker is suspected, without an event of its agent."""
        return max(2 * self.stall.suspect_s, self._several_iterations())

    def _several_iterations(self) -> float:
        times = [time for time in self._iterations if np.isfinite(time)]
        return self.stall.suspect_iterations * float(np.median(times)) if times else 0.0

    def _may_stall(self) -> bool:
        """Without any event: a worker has set no mark for longer than the limit. Never before the first step."""
        rows = self._table.rows
        return bool(rows is not None and self._stepped and (rows[:, AGE] >= self._limit()).any())

    def _stalled(self, at: WorkerPositions, share: float = 1.0) -> Truths:
        old = np.nan_to_num(at.table[:, AGE]) >= self._limit() * share
        stalled: Truths = at.reported | (old & (at.table[:, RUNNING] != 0.0) & self._stepped)
        return stalled

    def _left_loop(self, at: WorkerPositions, stalled: Truths) -> Truths:
        """Workers behind their loop that nobody has looked into: alone no stall, but others may wait for what they do there."""
        old = np.nan_to_num(at.table[:, AGE]) >= self._limit() / 2
        found: Truths = old & (at.table[:, RUNNING] == 0.0) & self._stepped & stalled.any()
        return found

    def _blame(self, at: WorkerPositions, frame: Frame) -> Iterator[Claim]:
        """All workers are suspected: find the one that the others wait for, and whether it is proved to hang."""
        table, left = at.table, ~at.finished
        hung = left & at.shows(ActivityKind.HUNG)
        if hung.any():
            yield from self._accuse(at, frame, np.zeros_like(hung) if (hung | at.finished).all() and hung.sum() > 1 else hung, 0.95)
            return
        late = self._left_behind(at, frame)
        if late.any():
            yield from self._accuse(at, frame, late, 0.8)
            return
        suspects, accused = self._suspects(at)
        pausing = suspects & ~at.waiting & np.isin(table[:, PHASE], PAUSES)
        if pausing.any() and not accused.any() and self._patient(table[pausing]):
            if (table[pausing, PHASE] == DATA).any():
                yield from self._job(frame, "input.stalled", at, np.flatnonzero(pausing), 0.6)
            return
        if self._proved(at, accused, frame):
            yield from self._accuse(at, frame, accused, 0.95 if (table[accused, PHASE] != COMMUNICATION).all() else 0.8)
        else:
            yield from self._pause(frame, at, accused if accused.any() else suspects & ~at.waiting, 0.9)

    def _left_behind(self, at: WorkerPositions, frame: Frame) -> Truths:
        """Where all wait for their GPUs: who has not come to the collective of the others, in several rounds, while its own GPU computes nothing."""
        name = left_behind(at.workers, collectives_of(self._reports)) if at.shows(ActivityKind.AWAITS_GPU).all() else ""
        late: Truths = np.array([worker == name for worker in at.workers], dtype=bool)
        idle = bool(name) and gpu_idles(name, frame)
        if frame.tick and not idle:
            self._behind.forget()
        proved = frame.tick and idle and self._behind.confirmed(at, late, frame.time, tick=True)
        return late if proved else np.zeros_like(late)

    def _suspects(self, at: WorkerPositions) -> tuple[Truths, Truths]:
        """Who is furthest behind, and those of them that the others wait for: none when all are alike."""
        table, left = at.table, awaited(at)
        if not np.isfinite(table[left, STEP]).any():
            return left, elsewhere(at)
        behind = left & (table[:, STEP] == fewest(table, left, STEP))
        pausing = behind & ~at.waiting & np.isin(table[:, PHASE], PAUSES)
        accused = missed_by_most(table, behind, pausing)
        if not accused.any():
            accused = self._overdue(table, pausing) if pausing.any() else furthest_behind(at, behind)
        if not accused.any() and not pausing.any():
            accused = elsewhere(at)
        return behind, not_awaiting_the_finished(at, accused)

    def _proved(self, at: WorkerPositions, accused: Truths, frame: Frame) -> bool:
        """Whether the accused, or all where none is, have stood for as long as what they do asks for."""
        if self._exchange(at):
            self._exchanged = frame.time
        shown = accused if accused.any() else ~at.finished
        apart = (accused & at.waiting).any() and self._rounds.confirmed(at, accused, frame.time, tick=frame.tick)
        gpus = use_gpu(at.workers, self._reports, frame)
        return all(self._over(at, index, frame.time, apart=bool(apart), gpu=bool(gpus[index])) for index in np.flatnonzero(shown).tolist())

    def _exchange(self, at: WorkerPositions) -> bool:
        """Somebody is in a collective that goes on: those that wait for its end wait in vain for nobody."""
        return bool((at.shows(ActivityKind.EXCHANGES) & ~at.finished).any())

    def _over(self, at: WorkerPositions, index: int, now: float, *, apart: bool, gpu: bool) -> bool:
        """`apart`: the others wait elsewhere, for sure. Then a worker that waits for them in another place will do so for ever.
        `gpu`: what it exchanges is seen by its flight recorder alone; where that tells nothing it is waited for as for one that works."""
        age = float(np.nan_to_num(at.table[index, AGE]))
        if at.waiting[index] and not at.shows(ActivityKind.AWAITS_GPU)[index]:  # the GPU may compute
            if age >= self.stall.patience_s:
                return True
            if self._exchange(at):
                return False
            pausing = at.table[index, PHASE] in PAUSES  # an evaluation or a save of some ranks has collectives of its own, and they may be slow
            stood_s = min(age, now - self._exchanged, self._waits.seconds(at.workers[index], now) if gpu else np.inf)
            return (apart and not pausing) or stood_s >= max(self.stall.standing_s, self._several_iterations())
        if at.shows(ActivityKind.STANDING)[index]:
            learned = self._stood.patience(at.places.get(at.workers[index], ""))
            return age >= max(self.stall.standing_s, self._several_iterations(), min(learned, self.stall.patience_s))
        return age >= self.stall.patience_s

    def _accuse(self, at: WorkerPositions, frame: Frame, culprits: Truths, score: float) -> Iterator[Claim]:
        yield from self._standing(frame, at, culprits, 0.9)
        blamed = {at.workers[index] for index in np.flatnonzero(culprits).tolist()}
        for entity, kind in list(self._claims.open):
            if kind == "worker.stalled" and entity.name not in blamed:
                yield from self._claims.withdraw(entity, kind, frame.time, "another worker is behind it")
        for index in np.flatnonzero(culprits).tolist():
            yield from self._worker("worker.stalled", at, index, frame, score)

    def _standing(self, frame: Frame, at: WorkerPositions, shown: Truths, score: float) -> Iterator[Claim]:
        """The job is proved to stand: it does not pause any more."""
        yield from self._job(frame, "job.stalled", at, np.flatnonzero(shown), score)
        yield from self._claims.withdraw(Entity(kind=Kind.JOB, name=frame.job), "job.paused", frame.time, "it is no pause")

    def _pause(self, frame: Frame, at: WorkerPositions, shown: Truths, score: float) -> Iterator[Claim]:
        """Nothing is proved: it is shown what those do that the others wait for, and nobody is accused."""
        if (Entity(kind=Kind.JOB, name=frame.job), "job.stalled") not in self._claims:
            yield from self._job(frame, "job.paused", at, np.flatnonzero(shown), score, revise=True)

    def _patience(self, phase: float) -> float:
        """Seconds for which a pause accuses no worker."""
        learned = self._pauses.patience(PHASES[int(phase)])
        if not learned and phase != DATA:
            return self.stall.patience_s
        return max(self.data_patience_s if phase == DATA else self.pause_patience_s, min(learned, self.stall.patience_s))

    def _patient(self, rows: Doubles) -> bool:
        ages = np.nan_to_num(rows[:, AGE])
        return all(age < self._patience(phase) for phase, age in zip(rows[:, PHASE], ages, strict=True))

    def _overdue(self, table: Doubles, pausing: Truths) -> Truths:
        """Workers whose pause has lasted too long; none if all of them pause: then the storage is slow, not a worker.

        Workers that have paused for at least half as long as the longest one are named with it.
        """
        shares = np.zeros(len(table))
        for index in np.flatnonzero(pausing).tolist():
            shares[index] = np.nan_to_num(table[index, AGE]) / self._patience(table[index, PHASE])
        late: Truths = shares >= min(1.0, float(shares.max(initial=0.0)) / 2)
        late &= pausing & (shares.max(initial=0.0) >= 1.0)
        return np.zeros_like(late) if late.all() else late

    # --- claims

    def _worker(self, kind: str, at: WorkerPositions, index: int, frame: Frame, score: float) -> Iterator[Claim]:
        entity = Entity(kind=Kind.WORKER, name=at.workers[index])
        event = self._reports.get(entity.name)
        age = float(np.nan_to_num(at.table[index, AGE]))
        proof = Evidence(
            text=at.line(index),
            event=event.id if event else "",
            metric="progress_age_s",
            value=age,
            threshold=self._limit(),
            status="task hang",
        )
        others = waiting_for(at, index)
        entered = not_entered(entity.name, at.workers, collectives_of(self._reports))
        claim = Claim(entity=entity, kind=kind, score=score, since=frame.time - age, evidence=(proof, *entered, *others))
        self._accused = max(self._accused, frame.time)
        if kind == "worker.stopped":
            self._stops.is_told(entity.name, claim.since, event)
        self._hangs.accused(entity.name, max(self._epoch, integer_attribute(event, "epoch") if event else -1))
        yield from self._claims.report(claim, revise=False)

    def _job(
        self, frame: Frame, kind: str, at: WorkerPositions, shown: Iterable[int], score: float, *, revise: bool = False
    ) -> Iterator[Claim]:
        """`revise`: tell it again once what the shown workers do has changed."""
        entity = Entity(kind=Kind.JOB, name=frame.job)
        shown = list(shown)[:4]
        doing = tuple(at.doing.get(at.workers[index], "") for index in shown)
        if revise and self._told == doing and (entity, kind) in self._claims:
            return
        self._told = doing
        ages = at.table[:, AGE]
        age = float(np.nanmin(ages)) if np.isfinite(ages).any() else 0.0
        lines = [Evidence(text=at.line(index)) for index in shown]
        if not lines:
            left = np.flatnonzero(~at.finished)
            lines = [Evidence(text=f"all {len(left)} workers wait at the same place; {at.line(int(left[0]))}")]
        claim = Claim(entity=entity, kind=kind, score=score, since=frame.time - age, evidence=tuple(lines))
        yield from self._claims.report(claim, revise=revise)
