"""A GPU or a node whose power or clock keeps apart from all others of its job, and readings that are stuck, of one or of all; it informs only.

In a synchronous job all wait for one another, so that healthy machines show the same in the same moment (features/peer_levels.py). One whose power falls to a third computes
nothing; one whose clock and power are a fifth lower is throttled and slows all; one that takes more than the others may be stuck in a busy loop. What is told is that it is different
since a time and by how much: why, other findings and a look at it must say.

Once a server has learned the noise of the job's own healthy hours (features/window_denoiser.py, with torch), what keeps apart by less than the noise of one reading is told, too, by the
newest readings together; without, and of a metric of which that finds no more, the readings alone count.

Where more than a quarter of the machines keep apart, it is none of them: the job does something in which they are not alike. And a reading that is stuck
(features/stuck_readings.py) says nothing of its machine: that it is unlike the others' is not told then. Where it is stuck on all at once, it is told of the job.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from eagle_eye.errors import UNREADABLE
from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio, Seconds, Share
from eagle_eye.types import Baseline, Claim, Entity, Evidence, Floats, Kind, Layout, digest_of

from .features.active_claims import ActiveClaims, ends_epoch
from .features.machine_samples import trained_on
from .features.peer_levels import BACK, EQUAL, LEARNED, PeerLevels
from .features.stuck_readings import WATCHES, StuckReadings, StuckWatch, Truths
from .features.window_denoiser import LENGTH, WindowDenoiser, denoiser_of, learned, windows_of

log = logging.getLogger(__name__)

NAME = "peer_metrics"
"""Name of the baseline."""
OF_GPUS, OF_NODES = ("power_watts", "sm_clock_mhz"), ("power_watts",)
DEVIATIONS = 3.0
APART, STUCK = "unlike_peers", "reading_stuck"
CERTAIN = 0.9
"""Score of a claim: that it is different is sure, that it is sick is not."""
_PLURALS = {Kind.GPU: "GPUs", Kind.NODE: "nodes"}


class _Distance(NamedTuple):
    """How far something keeps apart; all but the time are logarithms."""

    apart: float
    usual: float
    limit: float
    since: float


class _Own(NamedTuple):
    """Which of these entities the job trains on, by its layout."""

    names: tuple[str, ...]
    layout: Layout | None
    mine: Truths


class _Stuck(NamedTuple):
    """A metric whose readings are stuck, as it is told."""

    text: str
    metric: str
    value: float
    since: float


@dataclass
class PeerMetrics:
    """Claims gpu.unlike_peers, node.unlike_peers, and gpu.reading_stuck, node.reading_stuck and job.reading_stuck."""

    needs_job: ClassVar[bool] = True
    of_gpus: tuple[str, ...] = OF_GPUS
    """Metrics of GPUs that are compared."""
    of_nodes: tuple[str, ...] = OF_NODES
    """Metrics of nodes that are compared."""
    meters: tuple[str, ...] = ("power_watts",)
    """Of these, the ones whose readings always change."""
    told: Share = 0.1
    """So far from the median of all, beside its usual place."""
    deviations: Ratio = DEVIATIONS
    """And so many robust deviations of what all show in one moment."""
    seconds: Seconds = 6.0
    """And for so long, in every reading."""
    at_most: Share = 0.25
    """Of all that may keep apart together."""
    peers: Count = 4
    """Fewer cannot be compared."""
    _levels: dict[tuple[Kind, str], PeerLevels] = field(default_factory=dict, init=False, repr=False)
    _readings: dict[tuple[Kind, str], StuckReadings] = field(default_factory=dict, init=False, repr=False)
    _stuck: dict[Entity, dict[str, _Stuck]] = field(default_factory=dict, init=False, repr=False)
    """Entity → metric that is stuck → as it was told; of the job, kind and metric."""
    _own: dict[Kind, _Own] = field(default_factory=dict, init=False, repr=False)
    _steps: int = field(default=0, init=False, repr=False)
    """That the job has completed."""
    _names: dict[Kind, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)
    _digest: str = field(default="", init=False, repr=False)
    _denoiser: WindowDenoiser | None = field(default=None, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        if not frame.tick:
            yield from self._end(frame)
            return
        if (baseline := frame.baselines.get(NAME)) is not None:
            self._use(baseline)
        self._steps += len(frame.steps)
        for kind, metrics in ((Kind.GPU, self.of_gpus), (Kind.NODE, self.of_nodes)):
            names = frame.entities.get(kind, ())
            if names != self._names.get(kind, ()):
                yield from self._follow(kind, names, frame.time)
            self._read(kind, frame)
            for metric in metrics:
                values = frame.metrics.get(kind, {}).get(metric)
                if values is not None:
                    yield from self._judge(kind, metric, self._levels_of(kind, metric, len(names)), values, frame.time)
        yield from self._tell_stuck(frame.time)
        yield from self._end(frame)

    def _end(self, frame: Frame) -> Iterator[Claim]:
        """What was told of the job ends with it."""
        for event in frame.events:
            if event.name in ("job.finished", "job.failed"):
                self._stuck.pop(Entity(kind=Kind.JOB, name=frame.job), None)
                yield from self._claims.withdraw(Entity(kind=Kind.JOB, name=frame.job), f"{Kind.JOB}.{STUCK}", event.time, ends_epoch(event))

    def _use(self, baseline: Baseline) -> None:
        if baseline.digest == self._digest:
            return
        self._digest = baseline.digest
        try:
            self._denoiser = denoiser_of(baseline.data)
        except (*UNREADABLE, ValueError, OverflowError) as error:
            log.warning("baseline %s of %s cannot be used, the one before goes on: %s", baseline.digest, baseline.job, error)

    def _levels_of(self, kind: Kind, metric: str, count: int) -> PeerLevels:
        levels = self._levels.get((kind, metric))
        if levels is None:
            levels = self._levels[kind, metric] = PeerLevels()
            levels.move(np.full(count, -1))
        return levels

    def _judge(self, kind: Kind, metric: str, levels: PeerLevels, values: Floats, now: float) -> Iterator[Claim]:
        compared = levels.update(values, now, self.peers)
        if metric in self.meters:
            self._note_meters(kind, metric, levels)
        if not compared:
            return
        names, limit = self._names[kind], max(math.log1p(self.told), self.deviations * levels.noise)
        if (denoiser := self._denoiser) is not None:
            of_metric = denoiser.limits.get(f"{kind}/{metric}")
            levels.denoise(denoiser.layer if of_metric is not None else None, of_metric or self.deviations, math.log1p(self.told))
        apart, lasting = levels.keep_apart(limit, self.seconds)
        if np.count_nonzero(np.isfinite(levels.since) | (levels.smooth != 0.0)) <= self.at_most * len(names):
            for place in lasting.tolist():
                distance = _Distance(float(apart[place]), float(levels.level[place]), _limit_of(float(apart[place]), limit, levels), float(levels.since[place]))
                entity = Entity(kind=kind, name=names[place])
                if metric not in self._stuck.get(entity, {}) and levels.last[place] != 0.0:  # no machine takes 0 watts: that is of the meter
                    yield from self._tell(entity, metric, distance)
        yield from self._withdraw(kind, metric, levels, limit, now)

    # --- readings that are stuck -------------------------------------------------------------------------------------

    def _read(self, kind: Kind, frame: Frame) -> None:
        """Take in what is read of all that may be stuck, the power first: it says whether a GPU computes."""
        names = self._names.get(kind, ())
        own, working = self._trained_on(kind, names, frame.layout), np.zeros(len(names), np.bool_)
        for watch in WATCHES:
            values = frame.metrics.get(kind, {}).get(watch.metric) if watch.kind is kind else None
            if values is None:
                continue
            readings = self._readings_of(watch, len(values))
            readings.update(values, frame.time, self._steps, own, working)
            if watch.metric == "power_watts":
                working = readings.works()
            self._note_stuck(frame.job, readings)

    def _trained_on(self, kind: Kind, names: tuple[str, ...], layout: Layout | None) -> Truths:
        """Made anew where one of both is another."""
        known = self._own.get(kind)
        if known is None or known.names is not names or known.layout is not layout:
            known = self._own[kind] = _Own(names, layout, trained_on(kind, names, layout))
        return known.mine

    def _readings_of(self, watch: StuckWatch, count: int) -> StuckReadings:
        readings = self._readings.get((watch.kind, watch.metric))
        if readings is None:
            readings = self._readings[watch.kind, watch.metric] = StuckReadings(watch)
            readings.move(np.full(count, -1))
        return readings

    def _note_stuck(self, job: str, readings: StuckReadings) -> None:
        kind, metric = readings.watch.kind, readings.watch.metric
        names, whole, of_all = self._names[kind], Entity(kind=Kind.JOB, name=job), f"{kind}.{metric}"
        if readings.everywhere:
            self._note(whole, of_all, _Stuck(f"{metric} of all {len(names)} {_PLURALS[kind]} {_stands(readings, 0)}", metric, float(readings.last[0]), float(readings.since.max())))
        else:
            self._forget(whole, of_all)
        for place in np.flatnonzero(readings.stuck).tolist():
            entity = Entity(kind=kind, name=names[place])
            self._note(entity, metric, _Stuck(f"{entity}: its {metric} {_stands(readings, place)}", metric, float(readings.last[place]), float(readings.since[place])))
        mine = [entity for entity, told in self._stuck.items() if entity.kind is kind and metric in told]
        place_of = {name: place for place, name in enumerate(names)} if mine else {}
        for entity in mine:
            if readings.everywhere or not (readings.stuck[place_of[entity.name]] or self._meter_stands(kind, metric, place_of[entity.name])):
                self._forget(entity, metric)

    def _note_meters(self, kind: Kind, metric: str, levels: PeerLevels) -> None:
        """A meter is stuck after a few looks, if its peers' are not."""
        for place in levels.stuck().tolist():
            entity, value = Entity(kind=kind, name=self._names[kind][place]), float(levels.last[place])
            text = f"{entity}: its {metric} was {value:.6g} in {EQUAL} readings in succession, while those of its peers changed"
            self._note(entity, metric, _Stuck(text, metric, value, levels.times[0]))

    def _meter_stands(self, kind: Kind, metric: str, place: int) -> bool:
        levels = self._levels.get((kind, metric))
        return metric in self.meters and levels is not None and bool(levels.equal[place] >= EQUAL)

    def _note(self, entity: Entity, metric: str, stuck: _Stuck) -> None:
        """As it was seen first: what stands still is told once."""
        self._stuck.setdefault(entity, {}).setdefault(metric, stuck)

    def _forget(self, entity: Entity, metric: str) -> None:
        told = self._stuck.get(entity, {})
        told.pop(metric, None)
        if not told:
            self._stuck.pop(entity, None)

    def _tell_stuck(self, now: float) -> Iterator[Claim]:
        for entity, told in self._stuck.items():
            lines = tuple(Evidence(text=each.text, metric=each.metric, value=each.value) for each in told.values())
            yield from self._claims.report(_claim(entity, STUCK, min(each.since for each in told.values()), *lines))
            unlike = self._claims.open.get((entity, f"{entity.kind}.{APART}"))
            if unlike is not None and unlike.evidence[0].metric in told:
                yield from self._claims.withdraw(entity, unlike.kind, now, "its reading is stuck, and says nothing of it")
        for entity, kind in [key for key in self._claims.open if key[1].endswith(STUCK) and key[0] not in self._stuck]:
            yield from self._claims.withdraw(entity, kind, now, "its readings change again")

    # --- what keeps apart --------------------------------------------------------------------------------------------

    def _tell(self, entity: Entity, metric: str, distance: _Distance) -> Iterator[Claim]:
        now, usual = _beside(distance.apart + distance.usual), _beside(distance.usual)
        text = f"{entity}: its {metric} is {now} the median of its peers, in each reading for {self.seconds:g} s; usual is {usual}"
        line = Evidence(text=text, metric=metric, value=math.exp(distance.apart), threshold=math.exp(math.copysign(distance.limit, distance.apart)))
        yield from self._claims.report(_claim(entity, APART, distance.since, line), revise=False)

    def _withdraw(self, kind: Kind, metric: str, levels: PeerLevels, limit: float, now: float) -> Iterator[Claim]:
        """Claims of keeping apart that rest on this metric and do not hold any more."""
        mine = [(entity, claim) for (entity, what), claim in self._claims.open.items() if what == f"{kind}.{APART}" and claim.evidence[0].metric == metric]
        place = {name: number for number, name in enumerate(self._names[kind])} if mine else {}
        for entity, claim in mine:
            number = place[entity.name]
            recent = np.abs(levels.newest[:, number] - levels.level[number])
            if (recent < max(BACK * limit, 2.0 * levels.noise)).all() and levels.smooth[number] == 0.0:
                yield from self._claims.withdraw(entity, claim.kind, now, "it shows what its peers show again")

    def _follow(self, kind: Kind, names: tuple[str, ...], now: float) -> Iterator[Claim]:
        """Others are there than in the tick before. By name: a frame may be left out."""
        place = {name: number for number, name in enumerate(self._names.get(kind, ()))}
        moved = np.array([place.get(name, -1) for name in names], np.int64)
        for (other, _), levels in self._levels.items():
            if other is kind:
                levels.move(moved)
        for (other, _), readings in self._readings.items():
            if other is kind:
                readings.move(moved)
        self._names[kind] = names
        present = set(names)
        for entity, claimed in list(self._claims.open):
            if entity.kind is kind and entity.name not in present:
                self._stuck.pop(entity, None)
                yield from self._claims.withdraw(entity, claimed, now, "nothing is read of it any more")


def _claim(entity: Entity, what: str, since: float, *lines: Evidence) -> Claim:
    return Claim(entity=entity, kind=f"{entity.kind}.{what}", score=CERTAIN, since=since, evidence=lines)


def _limit_of(apart: float, limit: float, levels: PeerLevels) -> float:
    """The denoiser's, where the readings alone do not tell it."""
    return limit if abs(apart) >= limit else levels.smooth_limit


def _stands(readings: StuckReadings, place: int) -> str:
    usual = f"it was {readings.usual[place]:.4g} before"
    if readings.last[place] == 0.0:
        return f"reads 0 while the job trains: {usual}"
    return f"has been {readings.last[place]:.6g} in {readings.run[place]} readings in succession, more than ever before, while the job trains"


def _beside(logarithm: float) -> str:
    """
    >>> _beside(math.log(0.8)), _beside(0.0)
    ('20 % below', '0 % above')
    """
    share = round(100.0 * abs(math.expm1(logarithm)))
    return f"{share} % {'below' if logarithm < 0.0 and share else 'above'}"


FOLLOWED = 512
"""Machines of a kind whose windows may be taken: the medians of so many are those of all."""
TAKEN, TAKEN_EVERY = 64, 4
"""Windows of a metric in one tick, at most, and ticks from one to the next."""
JOBS_KEPT = 1000


@dataclass
class PeerMetricsLearner:
    """Trains the denoiser on ticks without open findings. With torch (extra `training`); without, it says so in its process and the readings alone count."""

    of_gpus: tuple[str, ...] = OF_GPUS
    of_nodes: tuple[str, ...] = OF_NODES
    deviations: Ratio = DEVIATIONS
    """By which the readings alone must keep apart."""
    _jobs: dict[str, dict[str, "_Followed"]] = field(default_factory=dict, init=False, repr=False)
    """Job → kind/metric → its levels."""

    def __reduce__(self) -> tuple[Any, ...]:
        """The process that fits needs no levels."""
        return type(self), (self.of_gpus, self.of_nodes, self.deviations)

    def sample(self, frame: Frame, /) -> tuple[tuple[str, ...], Floats]:
        """(each kind/metric, readings of a window; windows × both: 1 where it is of that metric)."""
        watched = [(Kind.GPU, metric) for metric in self.of_gpus] + [(Kind.NODE, metric) for metric in self.of_nodes]
        labels = tuple(f"{kind}/{metric}" for kind, metric in watched)
        known = self._jobs[frame.job] = self._jobs.pop(frame.job, {})
        while len(self._jobs) > JOBS_KEPT:
            del self._jobs[next(iter(self._jobs))]
        rows = [np.empty((0, len(labels) + LENGTH), np.float32)]
        for place, (kind, metric) in enumerate(watched):
            values = frame.metrics.get(kind, {}).get(metric)
            if values is not None:
                windows = known.setdefault(labels[place], _Followed()).windows(frame.entities[kind][:FOLLOWED], values[:FOLLOWED], frame)
                rows.append(np.hstack([np.eye(len(labels), dtype=np.float32)[np.full(len(windows), place)], windows]))
        return (*labels, *(f"reading {number}" for number in range(LENGTH))), np.concatenate(rows)

    def fit(self, history: Mapping[str, Any], /) -> Baseline:
        """`history`: job, time, names, matrix (windows × names). Too few windows, or no torch: nothing is denoised."""
        model = learned(windows_of(tuple(history["names"]), np.asarray(history["matrix"])), self.deviations)
        data = msgspec.msgpack.encode(model)
        return Baseline(name=NAME, job=str(history["job"]), digest=digest_of(NAME, data), fitted=float(history["time"]), data=data)


@dataclass
class _Followed:
    """The levels of one metric of a job, as its learner sees them."""

    levels: PeerLevels = field(default_factory=PeerLevels)
    names: tuple[str, ...] = ()
    ticks: int = 0

    def windows(self, names: tuple[str, ...], values: Floats, frame: Frame) -> Floats:
        """Those that are taken in this tick; windows × readings."""
        if names != self.names:
            place = {name: number for number, name in enumerate(self.names)}
            self.levels.move(np.array([place.get(name, -1) for name in names], np.int64))
            self.names = names
        compared = self.levels.update(values, frame.time, PeerMetrics.peers)
        self.ticks += 1
        if not compared or self.ticks % TAKEN_EVERY or self.levels.noise <= 0.0:
            return np.empty((0, LENGTH), np.float32)
        columns = np.flatnonzero(self.levels.learned >= LEARNED)
        if len(columns) > TAKEN:
            columns = np.roll(columns, -(self.ticks // TAKEN_EVERY * TAKEN) % len(columns))[:TAKEN]
        windows = self.levels.windows(columns).astype(np.float32)
        return windows[np.isfinite(windows).all(axis=1)]
