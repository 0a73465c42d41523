"""Stragglers: workers that compute slower than their peers, as opposed to those that wait, have more work or lack a processor.

Per step and worker, compute is forward + backward + optimizer; waiting for others lies in communication and is left
out. With tokens logged, compute is taken per token. A worker is compared with the fast quartile of its peers in the
same step (the same pipeline stage, expert, context and tensor rank: features/peer_roles.py; without enough of them it is left to `fail_slow`), twice: by the clock, and less the time that it waited in the run queue because other processes had the processor.
Slow by both, and by a share of the step that is worth a word, is worker.slow; where no tokens are logged more work looks the same, so that it is only
worker.unequal_compute, which accuses nobody.

Tokens do not tell all of the work: attention grows with the square of a sequence, and padding costs what no token is counted for. So worker.slow needs steps that bear it out whatever a token costs: in which
the worker had no more tokens than the lower quartile of its peers, and no longer sequences, and yet computed longer than the fast quartile as a whole, not only per token. Where all have the same these are all
steps; who always has more is worker.unequal_compute, too. Slow by the clock alone is cpu.throttled where its cgroup
used up its CPU quota, and host.contended where the host shows that others had the processors: both accuse nobody. Else nothing is said.

On a GPU compute by the clock is the time that the host took to hand the work over, and a host that is ahead waits there until its GPU's queue has room. Whoever's GPU had
work for as long as that, and took for no phase longer than those of its peers, is not slow. It is a reason against an accusation and never one for it: a GPU's
phases hold its waits in collectives, which make them equal where one worker is slow, and those of the fast ones longer where others come late.

Other ranks have other work: where tensor ranks are compared with one another because each of them alone has too few peers, somebody with the very ranks of the slow worker has to keep up, else it may be the work of that rank. Nor is it
the machine where one worker after the other was slow and kept up again, also over epochs, for their slowness may be why these began: the work wanders (features/wandering_work.py). Both are worker.unequal_compute; who stays slow for
three times as long as any of the others is named after all.

What Python's garbage collector took, and a step in which torch.compile made a graph anew, are the script's doing: they are no sign of a slow machine. Nor is what a worker's timers say beyond
the length of its own step (features/phase_sums.py), which `timer_sums` tells of.

The more a worker stands in the run queue, the slower it has to be. Both, because each alone is wrong: by the clock a busy host makes sick workers, and the run queue is read once a
second, too coarsely for the steps in it (measured: 4 workers on 2 cores with 4 to 8 others' processes; of ten
successive steps at most 4 were slow by the clock, 6 less the run queue, while a worker that ran for 35 % of the time
was slow in all of them by both).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Delay, Ratio, Seconds, Share
from eagle_eye.topology import node_of_worker
from eagle_eye.types import Claim, Entity, Evidence, Floats, Integers, Kind, Layout, Step

from .features.active_claims import ActiveClaims
from .features.critical_path import CriticalPath, SlownessCost, off_path
from .features.current_steps import CurrentSteps
from .features.own_compute import COMPUTE, LONGER, compute_of, longer_sequences, of_the_script, work_of
from .features.peer_roles import PeerRoles, peer_roles
from .features.phase_sums import PhaseSums
from .features.processor_signals import ProcessorSignals
from .features.step_estimate import NOTICEABLE
from .features.step_time import lower_quartile, phase, zero_if_unknown
from .features.wandering_work import WanderingWork

EXPLAINED = 1.0 / 3.0
"""Of the time that a worker computes beyond its peers: if it waited so much of it for a processor that others had, nothing shows that it is sick."""
ROWS = 64
"""Steps kept for the window at most; of shorter steps some are left out."""
MOST_QUEUED = 0.8
"""Share of the time in the run queue that is counted at most: who computes 32 times as long as its peers is slow on any machine."""

ALONE = 64
"""Workers at most, of many that are slow at once, that are weighed each by itself; the others all together."""
WEIGHED_EACH = 8
"""Observations: so often it is looked again whether the others wait for a worker that was told."""

LIKE_PEERS = 3
"""Steps at least in which a worker is slow without more work than its peers, until it is accused."""

UNKNOWN_WORK = Evidence(text="its script logs no tokens (monitor.log(tokens=...)), so that more work cannot be told from a slow machine")
WORK_OF_RANK = Evidence(text="nobody with the same ranks in pipeline, context, experts and tensors keeps up with the others: it may be the work of that rank")
OBSERVATION_S = 0.2
"""Shorter steps are one observation together, as those of `fail_slow`: how far back it is seen whether work wanders."""
APART = 6
"""Observations: workers of a node that is slow are all found within fewer."""
MORE_WORK = Evidence(text="too few steps show it slow with no more tokens and no longer sequences than its peers: a token may cost it more, so that more work cannot be told from a slow machine")


class _Row(NamedTuple):
    """One step: how many times longer than the fast quartile each worker computed."""

    end: float
    clock: Floats
    """By the clock."""
    own: Floats
    """Less the run queue."""
    by_host: NDArray[np.bool_]
    """Others had the processors, which explains a third of it or more."""
    lost: Floats
    """Share of the step that each worker computed beyond the fast quartile."""
    queued: Floats
    """Share of the time that it stood in the run queue; 0 where that is not known."""
    whole: Floats
    """Less the run queue, and not per token."""
    more: NDArray[np.bool_]
    """It had more tokens, or longer sequences, than the lower quartile of its peers."""


class _Judged(NamedTuple):
    """What the window shows of all workers."""

    rows: list[_Row]
    clock: Floats
    """Steps × workers; and so is `own`, less what is excused."""
    own: Floats
    share: Floats
    """Of the steps in which each is slow."""
    needed: Floats
    """How slow each has to be."""

    def proofs(self, index: int, name: str) -> tuple[Evidence, Evidence]:
        """How slow that worker is, and at which speed it runs."""
        ratios = np.minimum(self.clock[:, index], self.own[:, index])
        ratio = median(ratios[np.isfinite(ratios)].tolist())  # ten times as fast as numpy's for a few numbers
        often = f"in {self.share[index]:.0%} of the last {len(self.rows)} steps; it is no wait for others, for data or for a processor"
        slow = Evidence(text=f"worker {name} computes {ratio:.2f} times as long as its fast peers, {often}", metric="compute_ratio", value=ratio, threshold=float(self.needed[index]))
        return slow, Evidence(text=f"it runs at {1 / ratio:.2f} of their speed", metric="speed", value=1 / ratio)


@dataclass
class Straggler:
    """Claims worker.slow or worker.unequal_compute, host.contended and cpu.throttled; withdrawn when the worker keeps up again."""

    needs_job: ClassVar[bool] = True
    ratio: Ratio = 1.3
    """Times the compute of the fast quartile of its peers."""
    lost: Share = 0.1
    """Share of a step that it must compute beyond its peers: where a step hardly computes, nobody is slow for a few milliseconds."""
    share: Share = 0.8
    """In at least this share of the steps of the window."""
    steps: Count = 10
    """The window: so many steps ..."""
    seconds: Seconds = 3.0
    """... or so long, whichever is more."""
    crowd_s: Delay = 15.0
    """A worker whose processors are taken by others is accused only if it stays slow for so many seconds."""
    peers: Count = 3
    """Fewer workers of a role cannot be compared."""
    recovered: Share = 0.3
    """The claim is withdrawn when the worker is slow in no more than this share of the window."""
    _epoch: int = field(default=-1, init=False, repr=False)
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _workers: tuple[str, ...] = field(default=(), init=False, repr=False)
    _layout: Layout | None = field(default=None, init=False, repr=False)
    _roles: PeerRoles = field(default_factory=lambda: peer_roles((), None, 1), init=False, repr=False)
    _groups: list[Integers] = field(default_factory=list, init=False, repr=False)
    """Workers that are compared with one another."""
    _rows: deque[_Row] = field(default_factory=lambda: deque(maxlen=ROWS), init=False, repr=False)
    _work_known: bool = field(default=False, init=False, repr=False)
    """The workers log their tokens."""
    _slow_since: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    """Worker → since when it is slow by the clock."""
    _observed: int = field(default=0, init=False, repr=False)
    """Observations so far, in all epochs."""
    _observed_at: float = field(default=0.0, init=False, repr=False)
    _found: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    """Worker that is slow without more work that is seen → observation in which it was found."""
    _wandering: WanderingWork = field(default_factory=lambda: WanderingWork(apart=APART), init=False, repr=False)
    _sums: PhaseSums = field(default_factory=PhaseSums, init=False, repr=False)
    _path: CriticalPath = field(default_factory=CriticalPath, init=False, repr=False)
    _off_path: set[str] = field(default_factory=set, init=False, repr=False)
    """Slow workers that nobody waits for, as they were told."""
    _weighed_at: int = field(default=0, init=False, repr=False)
    """Observation in which it was looked last whether the others wait for those that were told."""
    _signals: ProcessorSignals = field(default_factory=ProcessorSignals, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._rows.clear()
            self._slow_since.clear()
            self._path.forget()
            self._off_path.clear()
            self._pass(self._found)
            yield from self._claims.withdraw_all(event.time, why)
        if not frame.tick:
            return
        self._signals.update(frame)
        before = len(self._rows), self._rows[-1].end if self._rows else 0.0
        for step in self._steps.of(frame):
            self._add_step(step, frame)
        if self._rows and (len(self._rows), self._rows[-1].end) != before:
            yield from self._judge(frame)

    # --- measuring

    def _add_step(self, step: Step, frame: Frame) -> None:
        if step.epoch != self._epoch or step.workers != self._workers:
            first_of_epoch, self._epoch, self._workers = step.epoch != self._epoch, step.epoch, step.workers
            self._rows.clear()
            self._group(frame.layout)
            if first_of_epoch:  # it compiles and fills caches
                return
        elif frame.layout is not None and frame.layout is not self._layout and frame.layout != self._layout:
            self._group(frame.layout)
        if self._rows and step.end - self._rows[-1].end < self.seconds / ROWS:
            return
        if step.end - self._observed_at >= OBSERVATION_S:
            self._observed, self._observed_at = self._observed + 1, step.end
        busy = compute_of(step)
        if busy is None:
            return
        beyond = self._sums.beyond(step, busy, self._roles)
        busy = busy - beyond
        self._path.add(step, frame.layout, busy)
        queued, step_s = self._queued(step), zero_if_unknown(step.values["step_s"])
        waited = queued * step_s
        own = np.maximum(busy - waited - of_the_script(step, busy), 0.1 * busy)
        work = work_of(step)
        self._work_known = work is not None
        scale = work if work is not None else np.ones(len(step.workers), dtype=np.float32)
        clock = self._compared(busy / scale)
        longer = zero_if_unknown((busy * (1.0 - 1.0 / np.maximum(clock, 1.0))).astype(np.float32))
        clock = np.where(self._behind_its_gpu(step, longer, scale), np.float32(1.0), clock)
        by_host = self._signals.crowded(step.workers) & (waited >= EXPLAINED * longer)
        compared = whole = self._compared(own / scale)
        lost = longer / np.maximum(step_s, 1e-9)
        more = longer_sequences(step, 0.25)
        if work is not None and (work != work[0]).any():
            whole = self._compared(own)
            more |= self._compared(work) > LONGER
        self._rows.append(_Row(step.end, clock, compared, by_host, lost.astype(np.float32), queued, whole, more))

    def _behind_its_gpu(self, step: Step, longer: Floats, scale: Floats) -> NDArray[np.bool_]:
        """Whose host waited for its GPU and not the GPU for it, while that GPU is as fast as those of its peers; of peers with a GPU that was not timed nobody."""
        lag = step.values.get("gpu_lag_s")
        if lag is None:
            return np.zeros(len(step.workers), np.bool_)
        role = self._roles.role
        untimed = np.unique(role[np.isnan(lag) & np.isfinite(step.values["step_s"])])
        waits: NDArray[np.bool_] = (zero_if_unknown(lag) >= longer) & ~np.isin(role, untimed)
        for name in COMPUTE:
            waits &= self._compared(phase(step, f"gpu_{name}") / scale) <= self.ratio
        return waits

    def _queued(self, step: Step) -> Floats:
        """Share of the step that each worker stood in the run queue."""
        share: Floats = zero_if_unknown(self._signals.of_workers(self._signals.queued, step.workers)).astype(np.float32)
        return share

    def _compared(self, times: Floats) -> Floats:
        ratios = np.full(len(times), np.nan, dtype=np.float32)
        for group in self._groups:
            peers = group[np.isfinite(times[group])]
            if len(peers) >= self.peers:
                ratios[peers] = times[peers] / max(lower_quartile(times[peers]), 1e-9)
        return ratios

    def _group(self, layout: Layout | None) -> None:
        """Who is compared with whom; what was seen of other groups says nothing of these."""
        before, self._layout = self._roles, layout
        self._roles = peer_roles(self._workers, layout, self.peers)
        self._groups = self._roles.groups()
        if not np.array_equal(before.role, self._roles.role):
            self._rows.clear()

    # --- judging

    def _judge(self, frame: Frame) -> Iterator[Claim]:
        rows = self._window()
        if rows is None:
            return
        clock, own = np.array([row.clock for row in rows]), np.array([row.own for row in rows])
        late = (clock > self.ratio) & (np.array([row.lost for row in rows]) > self.lost)
        by_clock = late.mean(axis=0)
        excused = np.array([row.by_host for row in rows]) & ~self._lasting(by_clock, rows[-1].end)
        own = np.where(excused, np.float32(1.0), own)
        held_back = self._signals.held_back(self._workers)
        needed = self._needed(rows)
        slow = late & (own > needed)
        share = np.where(held_back, 0.0, slow.mean(axis=0)).astype(np.float32)
        whatever = self._whatever_tokens_cost(slow, needed, rows)
        self._pass([name for name, again in zip(self._workers, share <= self.recovered, strict=True) if again])
        judged = _Judged(rows, clock, own, share, needed)
        named = np.flatnonzero(self._named(share)).tolist()
        cost, again = self._cost(share, named)
        if again:
            yield from self._weigh_again(judged, cost)
        keep_up = self._ranks_that_keep_up(share)
        for place, index in enumerate(named):
            doubt = UNKNOWN_WORK if not self._work_known else MORE_WORK if not whatever[index] else self._doubt(index, keep_up)
            yield from self._slow(index, judged, doubt, cost, alone=place < ALONE)
        yield from self._lacking(by_clock >= self.share, share < self.share, clock, rows)
        yield from self._recover(share, by_clock, frame)

    def _pass(self, workers: Iterable[str]) -> None:
        """Those of them that were slow keep up again, or are in another epoch."""
        for worker in [name for name in workers if name in self._found]:
            found = self._found.pop(worker)
            self._wandering.add(worker, found, self._observed - found)

    def _ranks_that_keep_up(self, share: Floats) -> NDArray[np.bool_]:
        """Of each worker: somebody with the very ranks that it has is not slow."""
        ranks = self._roles.same_ranks
        found: NDArray[np.bool_] = np.isin(ranks, ranks[share < self.share])
        return found

    def _doubt(self, index: int, keep_up: NDArray[np.bool_]) -> Evidence | None:
        """Why the machine of that worker, which is slow with no more work than is seen of others, need not be at fault; None if nothing says so."""
        if not keep_up[index]:
            return WORK_OF_RANK
        worker = self._workers[index]
        since = self._found.setdefault(worker, self._observed)
        self._wandering.drop(worker)
        why = self._wandering.why(worker, self._observed)
        return Evidence(text=why) if why and not self._wandering.outlasts(worker, since, self._observed) else None

    def _lasting(self, by_clock: Floats, now: float) -> NDArray[np.bool_]:
        """Slow for so long that no crowd explains it: a crowded host starves now one worker, now another."""
        slow = {name for name, share in zip(self._workers, by_clock.tolist(), strict=True) if share >= self.share}
        self._slow_since = {name: self._slow_since.get(name, now) for name in slow}
        return np.array([now - self._slow_since.get(name, now) >= self.crowd_s for name in self._workers])

    def _needed(self, rows: list[_Row]) -> Floats:
        """How slow each worker has to be: the more it stood in the run queue, the more of its slowness that explains.

        What is subtracted for the queue is too little on a crowded machine: its reading is late, and the interpreter's lock is
        held by threads of the worker that stand in the queue themselves. So who waits for a share q of the time is given
        1 / (1 - q) for the one and for the other (seen: with 20 workers of five jobs on 2 cores, single ones computed 1.9 to 3.6 times as
        long as their peers for seconds, after all that they stood in the queue was subtracted).
        """
        queued = np.minimum(np.array([row.queued for row in rows]).max(axis=0), MOST_QUEUED)
        needed: Floats = (self.ratio / (1.0 - queued) ** 2).astype(np.float32)
        return needed

    def _whatever_tokens_cost(self, slow: NDArray[np.bool_], needed: Floats, rows: list[_Row]) -> NDArray[np.bool_]:
        """Who is slow in enough of the steps in which it had no more work than its peers, as a whole and not only per token. `slow`: steps × workers."""
        alike = ~np.array([row.more for row in rows])
        borne_out = (slow & alike & (np.array([row.whole for row in rows]) > needed)).sum(axis=0)
        enough: NDArray[np.bool_] = borne_out >= np.maximum(min(LIKE_PEERS, len(rows)), 0.5 * self.share * alike.sum(axis=0))
        return enough

    def _named(self, share: Floats) -> NDArray[np.bool_]:
        """The slow ones; beside one of them half of the share will do: what slows a node slows all of its workers."""
        slow = share >= self.share
        if not slow.any():
            return slow
        crowd = {self._roles.nodes[index] for index in np.flatnonzero(slow).tolist()}
        named = slow.copy()
        beside = np.flatnonzero(~slow & (share >= 0.5 * self.share)).tolist()
        named[[index for index in beside if self._roles.nodes[index] in crowd]] = True
        return named

    def _window(self) -> list[_Row] | None:
        """The rows to judge by, None if there are not enough yet."""
        newest = self._rows[-1].end
        rows = [row for row in self._rows if newest - row.end <= self.seconds]
        if len(rows) < self.steps:
            rows = list(self._rows)[-self.steps :]
        enough = len(rows) >= self.steps and newest - rows[0].end >= 0.8 * self.seconds
        return rows if enough else None

    def _slow(self, index: int, judged: _Judged, doubt: Evidence | None, cost: SlownessCost | None, *, alone: bool) -> Iterator[Claim]:
        """Tell of a worker that is not told of yet. `doubt`: why it may have more work; `cost`: of all that are slow; `alone`: say what it costs by itself."""
        name = self._workers[index]
        worker = Entity(kind=Kind.WORKER, name=name)
        if (worker, "worker.slow") in self._claims or (doubt is not None and (worker, "worker.unequal_compute") in self._claims):
            return
        since, proofs = judged.rows[0].end, (*judged.proofs(index, name), *_cost_line(cost, index, name, alone=alone))
        if doubt is None:
            self._weigh(index, cost, alone=alone)
            claim = Claim(entity=worker, kind="worker.slow", score=0.9, since=since, evidence=(*proofs, *self._off_path_line(name)))
        else:
            claim = Claim(entity=worker, kind="worker.unequal_compute", score=0.7, since=since, evidence=(*proofs, doubt))
        yield from self._claims.report(claim, revise=doubt is None)

    def _cost(self, share: Floats, named: list[int]) -> tuple[SlownessCost | None, bool]:
        """Of all that are slow, None where it cannot be said or nothing is to be told; and whether it is time to look again at those that were told. `share`: of the steps in which each worker is slow."""
        known = {entity.name for entity, kind in self._claims.open if kind in ("worker.slow", "worker.unequal_compute")}
        again = bool(known) and self._observed - self._weighed_at >= WEIGHED_EACH
        self._weighed_at = self._observed if again else self._weighed_at
        new = any(self._workers[index] not in known for index in named)
        return (self._path.cost(share > self.recovered, self._roles) if new or again else None), again

    def _weigh(self, index: int, cost: SlownessCost | None, *, alone: bool) -> None:
        """Whether the others wait for that one at all, or would once the other slow ones are as fast as their peers. Where that cannot be said they may."""
        worker = self._workers[index]
        saved = cost.together if cost is not None else None
        if cost is not None and alone and cost.together.share >= NOTICEABLE / 2:
            saved = cost.remaining(index)
        if saved is None or saved.share >= NOTICEABLE:
            self._off_path.discard(worker)
        elif saved.share < NOTICEABLE / 2:
            self._off_path.add(worker)

    def _weigh_again(self, judged: _Judged, cost: SlownessCost | None) -> Iterator[Claim]:
        """Those that were told, and now are waited for or not, other than they were told. One that is slow less often by now may be about to keep up: the newest steps do not show that nobody waits for it."""
        index_of = {name: index for index, name in enumerate(self._workers)}
        looked_at = 0
        for (worker, kind), claim in list(self._claims.open.items()):
            index = index_of.get(worker.name)
            if kind != "worker.slow" or index is None or judged.share[index] <= self.recovered:
                continue
            before, still = worker.name in self._off_path, bool(judged.share[index] >= self.share)
            alone, looked_at = looked_at < ALONE, looked_at + 1
            if before or still:
                self._weigh(index, cost, alone=alone)
            if before != (worker.name in self._off_path):
                proofs = judged.proofs(index, worker.name) if still else claim.evidence[:2]
                line = _cost_line(cost, index, worker.name, alone=alone)
                yield from self._claims.report(msgspec.structs.replace(claim, evidence=(*proofs, *line, *self._off_path_line(worker.name))))

    def _off_path_line(self, worker: str) -> tuple[Evidence, ...]:
        return (off_path(),) if worker in self._off_path else ()

    def _lacking(self, slow: NDArray[np.bool_], not_sick: NDArray[np.bool_], clock: Floats, rows: list[_Row]) -> Iterator[Claim]:
        """Slow by the clock for want of a processor, where the host shows it; nothing is said where nothing shows why."""
        if not (slow & not_sick).any():
            return
        held_back, crowded = (signal(self._workers) for signal in (self._signals.held_back, self._signals.crowded))
        told: set[str] = set()
        for index in np.flatnonzero(slow & not_sick & (held_back | crowded)).tolist():
            worker = self._workers[index]
            node = node_of_worker(worker)
            if node not in told:
                told.add(node)
                cost = f"worker {worker} computes {float(np.nanmedian(clock[:, index])):.2f} times as long as its fast peers"
                make = self._signals.quota_claim if held_back[index] else self._signals.contention_claim
                yield from self._claims.report(make(node, rows[0].end, cost), revise=False)

    def _recover(self, share: Floats, by_clock: Floats, frame: Frame) -> Iterator[Claim]:
        index_of = {name: index for index, name in enumerate(self._workers)}
        held_up = {node_of_worker(self._workers[index]) for index in np.flatnonzero(by_clock > self.recovered).tolist()}
        for entity, kind in list(self._claims.open):
            index = index_of.get(entity.name)
            if kind in ("worker.slow", "worker.unequal_compute") and (index is None or share[index] <= self.recovered):
                self._off_path.discard(entity.name)
                yield from self._claims.withdraw(entity, kind, frame.time, "it keeps up with its peers")
            elif kind in ("host.contended", "cpu.throttled") and entity.name not in held_up:
                yield from self._claims.withdraw(entity, kind, frame.time, "its workers keep up with their peers")


def _cost_line(cost: SlownessCost | None, index: int, name: str, *, alone: bool) -> tuple[Evidence, ...]:
    """What that worker costs, if it is known."""
    if cost is None:
        return ()
    line = cost.line(index, name) if alone else cost.line_together(name)
    return (line,) if line is not None else ()
