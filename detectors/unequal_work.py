"""Imbalance that costs a stated share of each step and is nobody's machine: pipeline stages with unequal work, and batches of unequal work.

How much shorter a step had been is a what-if on its workers' own times (features/step_estimate.py). It is told only where it is steady over many steps:

- stage.unequal: had all stages the same work. A stage counts by the median of its replicas, and most replicas have to show it, so that a slow worker is none. Where there is one
  replica alone, a slow machine looks the same: it is told only where it has been so from the first steps of the epoch on, and the evidence says so.
- work.unequal: had all workers with the same ranks the same work. It is told where tokens or sequence lengths explain half of that or more; where lengths are not logged, also where forward and backward
  grow together (Lin et al., OSDI 2025, go by that) of one worker after the other. One worker alone that is always longest is left to `straggler` and `fail_slow`.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Seconds, Share
from eagle_eye.types import Claim, Entity, Evidence, Floats, Kind, Layout, Step

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps
from .features.own_compute import of_the_script
from .features.peer_roles import PeerRoles, peer_roles
from .features.processor_signals import QUEUED, ProcessorSignals
from .features.step_estimate import (
    NOT_SYNCHRONOUS,
    PipelineGrid,
    Shortened,
    even_stages,
    pipeline_grid,
    stage_seconds,
    step_work,
)
from .features.step_time import zero_if_unknown
from .features.work_course import WorkCourse, means

STAGES, BATCHES = "stage.unequal", "work.unequal"
APART_S = 0.2
"""Shorter steps are left out until so much time has passed."""
LONG = 1.05
"""Times the mean of all stages: a long stage."""
MOST = 0.75
"""Of the replicas have to show it."""
TOGETHER = 0.95
"""Correlation of forward and backward in a step, from which on it looks like work: in published traces of jobs whose sequences are alike its median is 0.76 and 0.87."""
ALWAYS = 0.5
"""Of the steps: where the same worker is the longest in more, or another than in the step before in fewer, it is about workers and not about batches."""
PEERS = 3


class _Row(NamedTuple):
    """One step."""

    end: float
    step_s: float
    stages: Floats
    """Seconds of each stage; empty where there is one alone, or replicas differ."""
    even_saved: float
    """Seconds that the step had been shorter with equal stages."""
    agree: float
    """Share of the replicas whose longest stage is a long one of all."""
    alike_saved: float
    """The same, had all with the same ranks the same work ..."""
    explained: float
    """... and what of it tokens and sequence lengths explain; NaN: they are not logged, or are all the same."""
    together: float
    """Correlation of forward and backward."""
    longest: int
    """The worker that computes longest."""


@dataclass
class UnequalWork:
    """Claims stage.unequal and work.unequal of a job; both inform only, and accuse nobody."""

    needs_job: ClassVar[bool] = True
    lost: Share = 0.08
    """Share of each step that equal work would save, at least."""
    share: Share = 0.8
    """In at least this share of the steps of the window."""
    steps: Count = 50
    """The window ..."""
    seconds: Seconds = 10.0
    """... which is so long, at least."""
    recovered: Share = 0.3
    """A claim is withdrawn when no more than this share of the window shows it."""
    _epoch: int = field(default=-1, init=False, repr=False)
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _workers: tuple[str, ...] = field(default=(), init=False, repr=False)
    _layout: Layout | None = field(default=None, init=False, repr=False)
    _grid: PipelineGrid = field(default_factory=lambda: pipeline_grid((), None), init=False, repr=False)
    _roles: PeerRoles = field(default_factory=lambda: peer_roles((), None, 1), init=False, repr=False)
    _course: WorkCourse = field(default_factory=WorkCourse, init=False, repr=False)
    _rows: deque[_Row] = field(default_factory=deque, init=False, repr=False)
    _first: tuple[int, ...] = field(default=(), init=False, repr=False)
    """Stages that were long in the first steps of the epoch."""
    _seen: int = field(default=0, init=False, repr=False)
    """Rows of this epoch."""
    _lengths_known: bool = field(default=False, init=False, repr=False)
    """The workers log the length of their sequences."""
    _signals: ProcessorSignals = field(default_factory=ProcessorSignals, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._begin((), None)
            yield from self._claims.withdraw_all(event.time, why)
        if not frame.tick:
            return
        self._signals.update(frame)
        job = Entity(kind=Kind.JOB, name=frame.job)
        for step in self._steps.of(frame):
            if self._add(step, frame.layout):
                yield from self._judge(job)

    # --- measuring

    def _begin(self, workers: tuple[str, ...], layout: Layout | None) -> None:
        self._workers, self._layout = workers, layout
        self._rows.clear()
        self._course.forget()
        self._first, self._seen = (), 0
        self._grid, self._roles = pipeline_grid(workers, layout), peer_roles(workers, layout, 1)

    def _add(self, step: Step, layout: Layout | None) -> bool:
        """Take a step in; True if there is another row to judge by."""
        changed = layout is not self._layout and layout != self._layout
        self._layout = layout if not changed else self._layout  # equal ones are not compared again
        if step.epoch != self._epoch or step.workers != self._workers or changed:
            first_of_epoch, self._epoch = step.epoch != self._epoch, step.epoch
            self._begin(step.workers, layout)
            if first_of_epoch:  # it compiles and fills caches
                return False
        if len(self._workers) < 2 or (self._rows and step.end - self._rows[-1].end < APART_S):
            return False
        row = self._row(step)
        if row is None:
            return False
        self._rows.append(row)
        while len(self._rows) > self.steps and row.end - self._rows[1].end >= self.seconds:
            self._rows.popleft()
        self._seen += 1
        if self._seen == max(self.steps // 5, 3):
            self._first = self._long_stages()
        return True

    def _row(self, step: Step) -> _Row | None:
        """None of a step that says nothing: without phases, of workers that do not wait for one another, or whose longest worker lacked a processor."""
        work = step_work(step)
        if work is None:
            return None
        compute = work.seconds[1:].sum(axis=0)
        own = np.maximum(compute - of_the_script(step, compute), 0.1 * compute).astype(np.float32)
        count, longest = work.micro_batches, int(own.argmax())
        lasted = float(self._grid.length(own, count))
        queued = zero_if_unknown(self._signals.of_workers(self._signals.queued, step.workers))
        if lasted > NOT_SYNCHRONOUS * work.step_s or queued[longest] >= QUEUED or self._signals.held_back(step.workers)[longest]:
            return None
        role = self._roles.same_ranks
        self._lengths_known = "sequence_length" in step.values and bool(np.isfinite(step.values["sequence_length"]).any())
        explained = self._course.explained(step, own, role)
        less = float("nan") if explained is None else lasted - float(self._grid.length(own - explained, count))
        alike = lasted - float(self._grid.length(means(own, role), count))
        together = self._course.together(work.seconds[1], work.seconds[2], role)
        stages, even_saved, agree = self._stages(own, lasted, count)
        return _Row(step.end, work.step_s, stages, even_saved, agree, alike, less, together, longest)

    def _stages(self, own: Floats, lasted: float, count: float) -> tuple[Floats, float, float]:
        """Seconds of each stage, what equal ones had saved, and the share of the replicas that show it."""
        grid = self._grid
        if grid.stages < 2:
            return np.zeros(0, np.float32), 0.0, 0.0
        of_stage = stage_seconds(grid, own)
        long_ones = np.flatnonzero(of_stage > LONG * of_stage.mean())
        longest = grid.cells(own).reshape(-1, grid.stages).argmax(axis=1)
        return of_stage, lasted - float(grid.length(even_stages(grid, own, of_stage), count)), float(np.isin(longest, long_ones).mean())

    # --- judging

    def _judge(self, job: Entity) -> Iterator[Claim]:
        rows = self._rows
        if len(rows) < self.steps or rows[-1].end - rows[0].end < 0.8 * self.seconds:
            return
        yield from self._stages_unequal(job)
        yield from self._work_unequal(job)

    def _stages_unequal(self, job: Entity) -> Iterator[Claim]:
        shown = float(np.mean([row.even_saved >= self.lost * row.step_s and row.agree >= MOST for row in self._rows]))
        if shown <= self.recovered:
            yield from self._claims.withdraw(job, STAGES, self._rows[-1].end, "its stages take the same time")
        long_ones = self._long_stages()
        if shown < self.share or not long_ones or (self._single and long_ones != self._first):
            return
        usual = np.median([row.stages for row in self._rows], axis=0)
        saved = Shortened(self._median("step_s"), self._median("even_saved"))
        told = ", ".join(f"stage {stage} {seconds:.3f} s" for stage, seconds in enumerate(usual.tolist()))
        names = ", ".join(map(str, long_ones))
        lines = [
            saved.evidence(f"had all pipeline stages the same work (stage {names} {'has' if len(long_ones) == 1 else 'have'} more)"),
            Evidence(text=f"in each step, by the median of {len(self._grid.replicas)} replicas: {told}; in {shown:.0%} of the last {len(self._rows)} steps"),
            Evidence(text=self._whose),
        ]
        yield from self._claims.report(Claim(entity=job, kind=STAGES, score=0.8, since=self._rows[0].end, evidence=tuple(lines)), revise=False)

    @property
    def _single(self) -> bool:
        return len(self._grid.replicas) < 2

    @property
    def _whose(self) -> str:
        if self._single:
            return "it has been so since the first steps of this epoch; there is no second replica, and a machine that has been slow since then looks the same"
        return "all replicas show it, so that it is the work of the stage and no machine; all stages of a replica train on the same tokens, so that these do not explain it"

    def _long_stages(self) -> tuple[int, ...]:
        """By the median of the rows."""
        if not self._rows or not self._rows[-1].stages.size:
            return ()
        usual = np.median([row.stages for row in self._rows], axis=0)
        return tuple(np.flatnonzero(usual > LONG * usual.mean()).tolist())

    def _work_unequal(self, job: Entity) -> Iterator[Claim]:
        rows = self._rows
        costly = np.array([row.alike_saved >= self.lost * row.step_s for row in rows])
        logged = np.array([self._explained(row) for row in rows])
        together = np.array([row.together >= TOGETHER for row in rows]) & (not self._lengths_known and self._goes_round())
        shown = float((costly & (logged | together)).mean())
        if shown <= self.recovered:
            yield from self._claims.withdraw(job, BATCHES, rows[-1].end, "its workers have the same work")
        if shown < self.share:
            return
        saved = Shortened(self._median("step_s"), self._median("alike_saved"))
        why = self._by_tokens() if logged.mean() >= 0.5 else self._by_operations()
        proofs = (saved.evidence("had all workers with the same ranks the same work"), Evidence(text=why), Evidence(text=f"in {shown:.0%} of the last {len(rows)} steps; {self._longest()}"))
        yield from self._claims.report(Claim(entity=job, kind=BATCHES, score=0.7, since=rows[0].end, evidence=proofs), revise=False)

    def _explained(self, row: _Row) -> bool:
        """By tokens and the length of sequences; not where one worker's were not told."""
        return row.explained >= max(0.5 * row.alike_saved, self.lost * row.step_s)

    def _goes_round(self) -> bool:
        """From step to step another worker of a job with enough of them is longest: a slow machine, or a busy host, stays so for a while."""
        longest = np.array([row.longest for row in self._rows])
        most, changes = Counter(longest.tolist()).most_common(1)[0][1], float((longest[1:] != longest[:-1]).mean())
        return most <= ALWAYS * len(longest) and changes >= ALWAYS and int(np.bincount(self._roles.same_ranks).max(initial=0)) >= PEERS

    def _longest(self) -> str:
        (worker, most), *others = Counter(row.longest for row in self._rows).most_common()
        return f"{1 + len(others)} workers were the longest in turn, {self._workers[worker]} in {most / len(self._rows):.0%} of them"

    def _by_tokens(self) -> str:
        share = np.median([row.explained / max(row.alike_saved, 1e-9) for row in self._rows if self._explained(row)])
        return f"their tokens and the length of their sequences explain {min(share, 1.0):.0%} of that: share them out more equally over the workers"

    def _by_operations(self) -> str:
        together = self._median("together")
        return f"the length of sequences is not logged, and tokens do not explain it; who computes longer does so forward and backward alike (correlation {together:.2f}), as with longer sequences: log it (monitor.log(sequence_length=...)) to be sure"

    def _median(self, name: str) -> float:
        return float(np.median([getattr(row, name) for row in self._rows]))
