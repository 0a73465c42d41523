"""Fail-slow workers: a few percent to a third slower than their peers or than their own past, found by a sequential test with a stated rate of false alarms.

What `straggler` calls slow is at least 1.3 times as slow as the others, and may be acted upon; what is found here is told with its worker, and nothing is done about
it. An observation of a worker is the logarithm of what it computed (forward + backward + optimizer) a token, less the run queue and what the script did itself, over
a step or, of shorter ones, a fifth of a second. It is compared twice (features/slowness_test.py):

- with its peers of that moment, which have the same pipeline stage, expert, context and tensor rank. What all have in common, noise and slowdown alike, falls out.
  Peers that differ much among themselves allow much.
- with its own best time, less what its peers (or, where these are too few, all workers) changed since theirs. That time is never dragged along by a
  creeping slowness, and holds over epochs, and over restarts of the server for those who have peers (`FailSlowLearner`).

What a worker's timers say beyond the length of its own step counts for nothing (features/phase_sums.py).

It is the worker's own only where its work is known to be that of the others: tokens are logged, or other stages of its replica, through which the same batches go, are as
fast as ever. Else it may have longer sequences: that is worker.unequal_compute, which accuses nobody, and is told only of a worker that has changed. Workers that compute
one layer together wait for one another in it: where all of them are slower, so that it cannot be seen which is, nobody is accused either, unless they are all of a node.

Who has been slower from the first observations of the epoch on, and has no past that was faster, may have work of its own (rank 0 logs, an expert is chosen more often): it is told, as half as likely.
Where one worker after the other was told and kept up again, the work wanders: that is nobody's machine.
"""

import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle_eye.errors import UNREADABLE
from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio, Seconds, Share
from eagle_eye.types import Baseline, Claim, Doubles, Entity, Evidence, Floats, Kind, Layout, Step, digest_of

from .features.active_claims import ActiveClaims
from .features.compute_baseline import fitted, recalled, sample_of, shape_of, split_of
from .features.compute_past import ComputePast
from .features.current_steps import CurrentSteps
from .features.own_compute import COMPUTE, compute_of, longer_sequences, of_the_script, work_of
from .features.peer_roles import PeerRoles, above_peers, median_of_role, peer_roles
from .features.phase_sums import PhaseSums
from .features.processor_signals import QUEUED, ProcessorSignals
from .features.robust_deviation import NORMAL_MAD
from .features.slowness_test import MEMORY, SlownessTest
from .features.step_estimate import NOTICEABLE, saved_alone
from .features.step_time import phases, zero_if_unknown
from .features.wandering_work import WanderingWork

log = logging.getLogger(__name__)

NAME = "fail_slow"
"""Name of the baseline."""
FALSE_ALARM_EVERY = 1e8
"""Observations of a healthy job's workers, all together, until one of them is accused by chance, by either test."""
SPREAD = 6.0
"""Peers whose levels differ: so many robust deviations of these are nothing unusual."""
ROWS = 16
"""Newest observations that tell how slow a worker is."""
FROM_THE_START = "slower from the start"
"""Status of a claim (diagnosis/causes.py): nothing shows that the worker was ever as fast as the others."""
SURE, UNSURE = 0.8, 0.5
"""Scores of a worker that became slower, and of one that has been so from the start."""

Truths = NDArray[np.bool_]


class _Sum(NamedTuple):
    """Steps that make one observation: of each worker the seconds that it computed itself (NaN where these say nothing of its machine), its work, and the steps."""

    begin: float
    own: Doubles
    work: Doubles
    step_s: Doubles
    steps: int = 1


_BESIDE = ("its peers", "its own best time, less what the others changed since theirs")


class _Proof(NamedTuple):
    """What speaks against a worker."""

    by_past: bool
    """Beside its own past; False: beside its peers."""
    strength: float
    """ln of how many observations it takes a healthy worker to show as much."""
    since: float
    observations: int
    """Since then."""
    which: int
    """Of the slownesses that are tested."""

    @property
    def chance(self) -> str:
        return f"by chance a healthy worker shows that once in 10^{self.strength / math.log(10.0):.0f} observations at most"


@dataclass
class FailSlow:
    """Claims worker.slower, and worker.unequal_compute; withdrawn when the worker keeps up again. Neither is acted upon."""

    needs_job: ClassVar[bool] = True
    tolerated: Ratio = 1.02
    """Healthy workers differ by so much."""
    told: Ratio = 1.035
    """Times what its peers or its own past take: nothing below it is told."""
    lost: Share = 0.01
    """Share of a step that it must compute beyond that."""
    steps: Count = 8
    """Observations since it became slower, at least ..."""
    seconds: Seconds = 3.0
    """... and so long."""
    peers: Count = 3
    """Fewer workers of a role cannot be compared."""
    window: Count = 60
    """Observations that make a worker's own past."""
    span_s: Seconds = 0.2
    """Shorter steps are one observation together."""
    _epoch: int = field(default=-1, init=False, repr=False)
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _workers: tuple[str, ...] = field(default=(), init=False, repr=False)
    _shape: tuple[int, ...] = field(default=(), init=False, repr=False)
    """How many ranks of each kind the layout has."""
    _roles: PeerRoles = field(default_factory=lambda: peer_roles((), None, 1), init=False, repr=False)
    _sum: _Sum | None = field(default=None, init=False, repr=False)
    _work_known: bool = field(default=False, init=False, repr=False)
    _beside_peers: SlownessTest = field(default_factory=lambda: SlownessTest.of(0), init=False, repr=False)
    _beside_past: SlownessTest = field(default_factory=lambda: SlownessTest.of(0), init=False, repr=False)
    _past: ComputePast = field(default_factory=ComputePast, init=False, repr=False)
    _recalled: str = field(default="", init=False, repr=False)
    """Digest of the newest baseline that was looked at."""
    _rows: deque[tuple[Floats, Floats]] = field(default_factory=lambda: deque(maxlen=ROWS), init=False, repr=False)
    """Slowness beside the peers and beside the past."""
    _first: list[NDArray[np.float16]] = field(default_factory=list, init=False, repr=False)
    """Slowness beside the peers in the first observations of these workers, `steps` of them."""
    _observed: int = field(default=0, init=False, repr=False)
    """Observations of these workers."""
    _wandering_work: WanderingWork = field(default_factory=lambda: WanderingWork(apart=ROWS), init=False, repr=False)
    """Of workers that were told to be slower and kept up again, or were not told for the work that wanders."""
    _told: dict[str, tuple[bool, int, int]] = field(default_factory=dict, init=False, repr=False)
    """Worker → whether it was found beside its past, which of the slownesses that are tested, and in which observation."""
    _sums: PhaseSums = field(default_factory=PhaseSums, init=False, repr=False)
    _signals: ProcessorSignals = field(default_factory=ProcessorSignals, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._workers = ()
            self._told.clear()
            yield from self._claims.withdraw_all(event.time, why)
        if not frame.tick:
            return
        self._signals.update(frame)
        for step in self._steps.of(frame):
            if (summed := self._add(step, frame.layout)) is not None:
                self._sum = None
                self._recall(frame.baselines.get(NAME))
                yield from self._judge(summed, step.end)

    # --- measuring ---------------------------------------------------------------------------------------------------

    def _add(self, step: Step, layout: Layout | None) -> _Sum | None:
        """Take a step in; returns an observation that is whole."""
        if step.epoch != self._epoch or step.workers != self._workers:
            first_of_epoch = step.epoch != self._epoch
            self._begin(step, layout)
            if first_of_epoch:  # it compiles and fills caches
                return None
        busy = compute_of(step)
        if busy is None:
            return None
        busy = busy - self._sums.beyond(step, busy, self._roles)
        work, step_s = work_of(step), zero_if_unknown(step.values["step_s"])
        self._work_known = work is not None
        scale = work if work is not None else np.ones(len(step.workers), np.float32)
        queued = self._queued(step.workers)
        own = np.maximum(busy - queued * step_s - of_the_script(step, busy), 0.1 * busy)
        own = np.where(self._says_nothing(step, busy, own / scale, queued), np.nan, own)
        summed = self._sum = _added(self._sum, step, (own, scale, step_s))
        return summed if step.end - summed.begin >= self.span_s else None

    def _begin(self, step: Step, layout: Layout | None) -> None:
        """Other workers, or another epoch: what is known of their past holds while the model is split as before."""
        self._epoch, self._workers, self._sum = step.epoch, step.workers, None
        self._roles = peer_roles(step.workers, layout, self.peers)
        shape = shape_of(layout)
        self._past.window = self.window
        if shape != self._shape:
            self._shape = shape
            self._past.forget()
        self._past.begin(step.workers)
        self._beside_peers, self._beside_past = (SlownessTest.of(len(step.workers)) for _ in range(2))
        self._rows.clear()
        self._first.clear()
        self._wandering_work.forget()
        self._observed = 0

    def _recall(self, baseline: Baseline | None) -> None:
        """Take over the past that an earlier server saw, while none was seen here."""
        if baseline is None or baseline.digest == self._recalled or np.isfinite(self._past.levels).any():
            return
        self._recalled = baseline.digest
        try:
            levels = recalled(baseline.data)
        except UNREADABLE as error:
            log.warning("baseline %s of %s cannot be used, the past of its workers begins anew: %s", baseline.digest, baseline.job, error)
            return
        if levels.split == split_of(self._shape, work_known=self._work_known):
            self._past.recall(levels.by_worker, self._roles.role)

    def _queued(self, workers: tuple[str, ...]) -> Floats:
        queued: Floats = zero_if_unknown(self._signals.of_workers(self._signals.queued, workers)).astype(np.float32)
        return queued

    def _says_nothing(self, step: Step, busy: Floats, per_work: Floats, queued: Floats) -> Truths:
        """Whose compute of this step is not that of its machine alone: a busy host, longer sequences, a host that waits for room in its GPU's queue."""
        read = self._signals.of_workers(self._signals.queued, step.workers)
        excused: Truths = (queued >= QUEUED) | (np.isnan(read) & np.isfinite(read).any()) | self._signals.held_back(step.workers) | self._signals.on_full_nodes(step.workers)
        if "compiled_graphs" in step.values:
            excused |= step.values["compiled_graphs"] > 0
        excused |= longer_sequences(step, 0.5)
        lag = step.values.get("gpu_lag_s")
        if lag is not None:
            beyond = self._compared(per_work)
            on_gpu = self._compared(phases(step, [f"gpu_{name}" for name in COMPUTE]).sum(axis=0) / (busy / np.maximum(per_work, 1e-9)))
            longer = busy * (1.0 - np.exp(-np.maximum(np.nan_to_num(beyond), 0.0)))
            excused |= (zero_if_unknown(lag) > 0.0) & (zero_if_unknown(lag) >= longer) & ~(on_gpu > 0.5 * np.maximum(beyond, 0.0))
        return excused

    def _compared(self, times: Floats) -> Doubles:
        """The logarithm of each time beside those of its peers."""
        return self._roles.compared(_logarithm(times.astype(np.float64)), self.peers)

    # --- judging -----------------------------------------------------------------------------------------------------

    def _judge(self, summed: _Sum, now: float) -> Iterator[Claim]:
        """An observation more."""
        roles, past = self._roles, self._past
        compute = _logarithm(summed.own / summed.work)
        allowed = self._allowed()
        beside_peers = roles.compared(compute, self.peers) - allowed
        beside_past = self._changed(compute - past.levels) - allowed
        past.add(compute)
        least = np.full(len(compute), math.log(self.tolerated))
        self._beside_peers.update(beside_peers, np.maximum(least, self._spread(roles)), roles.role, summed.begin)
        self._beside_past.update(beside_past, np.maximum(least, 0.5 * self._beside_past.noise.scales()), roles.role, summed.begin)
        self._rows.append((beside_peers.astype(np.float32), beside_past.astype(np.float32)))
        self._observed += 1
        if len(self._first) < self.steps:
            self._first.append(beside_peers.astype(np.float16))
        yield from self._report(now, summed)

    def _allowed(self) -> Doubles:
        """The queue is read late and coarsely: who stood in it for a share q is given 1 / (1 - q) twice, as by the straggler detector, less what its peers are given.

        Where all stand in it alike, as the workers of a node with few processors do, the reading is as wrong for each of them.
        """
        given: Doubles = -2.0 * np.log1p(-np.minimum(self._queued(self._workers).astype(np.float64), QUEUED))
        beyond = self._roles.compared(given, self.peers)
        return np.where(np.isfinite(beyond), np.maximum(beyond, 0.0), given)

    def _changed(self, changes: Doubles) -> Doubles:
        """How much more each worker changed than its peers; of those without enough of them, than all workers."""
        everybody = np.zeros(len(changes), dtype=np.int64)
        beside: Doubles = np.where(self._roles.role > 0, self._roles.compared(changes, self.peers), above_peers(changes, everybody, self.peers))
        return beside

    def _spread(self, roles: PeerRoles) -> Doubles:
        """How much the levels of each worker's peers differ among themselves, beyond what so many noisy observations, of so few, leave open."""
        noise = self._beside_peers.noise
        level = noise.level.astype(np.float64)
        deviation = NORMAL_MAD * np.nan_to_num(median_of_role(np.abs(level - median_of_role(level, roles.role)), roles.role))
        few = 2.0 + 16.0 / np.bincount(roles.role, minlength=1)[roles.role]
        unsure = few * noise.scale.astype(np.float64) ** 2 / max(1, min(noise.count, 2 * MEMORY))
        spread: Doubles = SPREAD * np.sqrt(np.maximum(deviation**2 - unsure, 0.0))
        return spread if noise.count >= self.steps else np.zeros(len(spread))

    def _report(self, now: float, summed: _Sum) -> Iterator[Claim]:
        needed = math.log(FALSE_ALARM_EVERY * 2 * max(len(self._workers), 1))
        for by_past, test in ((False, self._beside_peers), (True, self._beside_past)):
            if test.evidence.max(initial=0.0) < needed:
                continue
            strength, since, count = test.strongest()
            for index in np.flatnonzero((strength >= needed) & (count >= self.steps) & (now - since >= self.seconds)).tolist():
                proof = _Proof(by_past, float(strength[index]), float(since[index]), int(count[index]), int(test.evidence[:, index].argmax()))
                if self._workers[index] not in self._told:
                    yield from self._tell(index, proof, summed)
        yield from self._recover(now)

    def _recent(self, count: int, *, by_past: bool) -> Floats:
        """How slow each worker was in so many of the newest observations: the median."""
        return _median(np.array([row[by_past] for row in list(self._rows)[-count:]]))

    def _tell(self, index: int, proof: _Proof, summed: _Sum) -> Iterator[Claim]:
        worker, recent = self._workers[index], self._recent(proof.observations, by_past=proof.by_past)
        slower, share = float(recent[index]), float(summed.own[index] / max(summed.step_s[index], 1e-9))
        allowed = 0.0 if proof.by_past else float(self._spread(self._roles)[index])
        if not (slower >= max(math.log(self.told), allowed) and share * (1.0 - math.exp(-slower)) >= self.lost):
            return
        doubt = self._doubt(index, recent, slower) or self._wandering(worker)
        if doubt and not proof.by_past:
            return
        self._told[worker] = proof.by_past, proof.which, self._observed
        text = f"worker {worker} computes {math.exp(slower):.2f} times as long as {_BESIDE[proof.by_past]}, in {proof.observations} observations; {proof.chance}"
        evidence = [Evidence(text=text, metric="compute_ratio", value=math.exp(slower), threshold=self.told)]
        other = float(self._recent(proof.observations, by_past=not proof.by_past)[index])
        if math.isfinite(other):
            evidence.append(Evidence(text=f"beside {_BESIDE[not proof.by_past]} it computes {math.exp(other):.2f} times as long"))
        saved = saved_alone(summed.own / summed.steps, float(np.median(summed.step_s)) / summed.steps, index, math.exp(slower), self._roles.role == self._roles.role[index])
        if saved is not None and saved.share >= NOTICEABLE:
            evidence.append(saved.evidence(f"had worker {worker} computed as its peers"))
        kind, score = ("worker.unequal_compute", 0.7) if doubt else ("worker.slower", SURE)
        evidence += [Evidence(text=doubt)] if doubt else []
        if not doubt and not proof.by_past and self._from_the_start(index, slower, other):
            score = UNSURE
            text = "it has been so from the first observations of this epoch on, and was never seen to be as fast as its peers: it may have work of its own"
            evidence.append(Evidence(text=text, status=FROM_THE_START))
        claim = Claim(entity=Entity(kind=Kind.WORKER, name=worker), kind=kind, score=score, since=proof.since, evidence=tuple(evidence))
        yield from self._claims.report(claim, revise=False)

    def _doubt(self, index: int, recent: Floats, slower: float) -> str:
        """Why the machine of that worker need not be at fault; '' if it is known to have done the same work as the others by itself."""
        nodes, roles = np.array(self._roles.nodes), self._roles
        here = nodes == nodes[index]
        half = recent >= 0.5 * slower
        together, replica = roles.stage_of(index), roles.replica_of(index)
        if len(together) > 1 and half[together].sum() * 2 > len(together) and not (here.sum() > 1 and half[here].all()):
            return "those that compute the same layers with it are slower, too: they wait for one another in it, and which of them is slow is not seen"
        siblings = replica[(roles.role[replica] != roles.role[index]) | (replica != index)]
        siblings = siblings[~np.isin(siblings, together) & np.isfinite(recent[siblings])]
        slow = siblings[half[siblings]]
        if len(slow) * 2 > len(siblings) and not (self._work_known and here[slow].all()):
            return "other stages through which the same batches go are slower, too: the batches may be longer than those of the others"
        if not self._work_known and not len(siblings):
            return "its script logs no tokens (monitor.log(tokens=...)), so that more work cannot be told from a slow machine"
        return ""

    def _from_the_start(self, index: int, slower: float, beside_past: float) -> bool:
        """It was nearly as slow in its first observations, and is not slower than in its own past (NaN: there is none)."""
        return float(_median(np.array(self._first, np.float32))[index]) >= 0.5 * slower and not beside_past >= 0.5 * slower

    def _wandering(self, worker: str) -> str:
        """Why what it computes longer is work that goes from one to the next; '' if nothing shows that."""
        why, found = self._wandering_work.why(worker, self._observed), self._wandering_work.found(worker)
        if why and (found is None or self._observed - found > MEMORY):
            self._wandering_work.add(worker, self._observed)
        return why

    def _recover(self, now: float) -> Iterator[Claim]:
        if not self._told:
            return
        index_of = {name: index for index, name in enumerate(self._workers)}
        for worker, (by_past, which, at) in list(self._told.items()):
            index = index_of.get(worker)
            if index is not None and not (self._beside_past if by_past else self._beside_peers).is_over(which, index):
                continue
            del self._told[worker]
            if (Entity(kind=Kind.WORKER, name=worker), "worker.slower") in self._claims:
                self._wandering_work.add(worker, at)
            if index is not None:
                self._beside_peers.forget(index)
                self._beside_past.forget(index)
            for kind in ("worker.slower", "worker.unequal_compute"):
                yield from self._claims.withdraw(Entity(kind=Kind.WORKER, name=worker), kind, now, "it keeps up again")


def _added(summed: _Sum | None, step: Step, values: tuple[Floats, Floats, Floats]) -> _Sum:
    own, work, step_s = (each.astype(np.float64) for each in values)
    if summed is None:
        return _Sum(step.end - float(step_s.max(initial=0.0)), own, work, step_s)
    return _Sum(summed.begin, summed.own + own, summed.work + work, summed.step_s + step_s, summed.steps + 1)


def _logarithm(times: Doubles) -> Doubles:
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Doubles = np.where(times > 0.0, np.log(times), np.nan)
    return found


def _median(rows: Floats) -> Floats:
    """Of each column, of what is known in it; NaN where nothing is."""
    known = np.isfinite(rows).sum(axis=0)
    ordered = np.sort(rows, axis=0)
    below, above = (np.take_along_axis(ordered, at[None, :], axis=0)[0] for at in (np.maximum(known - 1, 0) // 2, np.minimum(known // 2, len(rows) - 1)))
    found: Floats = np.where(known > 0, (below + above) / np.float32(2.0), np.float32(np.nan))
    return found


@dataclass
class FailSlowLearner:
    """The best time of each worker, in hours without open findings; what was known before is never forgotten for a worse one."""

    window: Count = 60
    """Samples, one a tick, whose median is a level."""

    def sample(self, frame: Frame, /) -> tuple[tuple[str, ...], Floats]:
        """(the split and the workers, 1 × so many)."""
        return sample_of(frame)

    def fit(self, history: Mapping[str, Any], /) -> Baseline:
        """Raises ValueError for fewer samples than half a window."""
        data = fitted(tuple(history["names"]), history["matrix"], self.window, history["before"])
        return Baseline(name=NAME, job=str(history["job"]), digest=digest_of(NAME, data), fitted=float(history["time"]), data=data)
