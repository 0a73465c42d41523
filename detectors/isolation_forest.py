"""A node, GPU or worker whose metrics together are unlike those of the job's healthy minutes; it informs only.

Each kind has an isolation forest of its own (features/forest_model.py), all of them in one baseline. Where all GPUs, or all workers, of a node are unusual, it is the node that is named;
where most of a kind are at once (an evaluation, a save, another phase of the training), it is the job that does something else, and nobody is named.
Nodes are all looked at together, of GPUs and workers so many at a time that a tick stays short: in a very large job each has its turn every few looks.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from eagle_eye.errors import UNREADABLE
from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Share
from eagle_eye.types import Baseline, Claim, Doubles, Entity, Evidence, Floats, Integers, Kind, digest_of

from .features.active_claims import ActiveClaims
from .features.drift import DriftCount
from .features.forest_model import VERSION, Forest, Forests, GrownForest, forests_of, grown
from .features.healthy_limit import ScoreScale, limit_of
from .features.machine_looks import MachineLooks
from .features.machine_samples import KINDS, MachineSamples, samples_of, trained_on

log = logging.getLogger(__name__)

NAME = "isolation_forest"
"""Name of the baseline."""
UNUSUAL = "unusual"
LOOKED_AT = 32_768
"""Of one kind in one look, at most."""
ODDEST = 3
"""Metrics in the evidence."""
SCALE = ScoreScale(lightest=-0.45, margin=1.05, margin_of_few=1.08)
"""A score ends at 1, and half of it is ordinary."""
RAISED = 0.99
"""Share of the healthy scores that one which is raised is above."""
FEWEST = 60
LEARNED_AT_ONCE, COUNTED_AT_ONCE = 256, 24
"""Of each kind in one tick: that are remembered; whose scores tell drift."""
JOBS_KEPT = 1000


class _Look(NamedTuple):
    """At those of one kind whose turn it was."""

    places: Integers
    rows: Doubles
    bar: float
    forest: Forest


@dataclass
class IsolationForest:
    """Claims node.unusual, gpu.unusual and worker.unusual of what scores above what healthy minutes do; silent without a baseline."""

    floor: Share = 0.55
    """No score below is told: by the paper 0.5 is ordinary."""
    sustained: Count = 4
    """Looks in succession: a spike of a few seconds is no claim."""
    at_most: Share = 0.6
    """Of a kind, that may score higher than nearly all healthy ones at once."""
    every: ClassVar[int] = 3
    """Looks at each third tick."""
    _digest: str = field(default="", init=False, repr=False)
    _forests: dict[Kind, GrownForest] = field(default_factory=dict, init=False, repr=False)
    _looks: dict[Kind, MachineLooks] = field(default_factory=dict, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)
    _whole: dict[str, Kind] = field(default_factory=dict, init=False, repr=False)
    """Node → the kind of which all on it are unusual."""

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        if not frame.tick:
            return
        baseline = frame.baselines.get(NAME)
        if baseline is None:
            return
        self._use(baseline)
        looked = {kind: self._look(kind, self._forests[kind], frame) for kind in KINDS if kind in self._forests and (frame.entities.get(kind) or kind in self._looks)}
        if any(looks.common for looks in self._looks.values()):
            for looks in self._looks.values():
                looks.begin_anew()
        self._whole = {looks.nodes[place]: kind for kind, looks in self._looks.items() if kind is not Kind.NODE for place in looks.whole_nodes(self.sustained)}
        for kind, look in looked.items():
            for claim in self._found(self._looks[kind], look, frame.time):
                yield from self._claims.report(claim, revise=False)
        for entity, kind_of_claim in list(self._claims.open):
            if why := self._over(entity):
                yield from self._claims.withdraw(entity, kind_of_claim, frame.time, why)

    def _use(self, baseline: Baseline) -> None:
        if baseline.digest == self._digest:
            return
        self._digest = baseline.digest
        try:
            self._forests = forests_of(baseline.data)
        except (*UNREADABLE, ValueError, OverflowError) as error:
            log.warning("baseline %s of %s cannot be used, the one before goes on: %s", baseline.digest, baseline.job, error)
            return
        self._looks = {}

    # --- a look ----------------------------------------------------------------------------------------------------

    def _look(self, kind: Kind, forest: GrownForest, frame: Frame) -> _Look:
        """Score those whose turn it is."""
        samples = samples_of(frame, kind)
        looks = self._looks.setdefault(kind, MachineLooks(kind))
        looks.follow(samples.entities, frame.layout, frame.topology)
        places = looks.turn(LOOKED_AT)
        rows, read = forest.aligned(samples.names, samples.matrix[places])
        bar = max(self.floor, forest.forest.cutoff)
        looks.take(places, read, forest.scores(rows, forest.forest.raised), (forest.forest.raised, bar), self.at_most)
        return _Look(places, rows, bar, forest.forest)

    def _found(self, looks: MachineLooks, look: _Look, now: float) -> Iterator[Claim]:
        """What is to be told of those that were looked at: a node once, and not each that is on it."""
        claims: dict[Entity, Claim] = {}
        for row in np.flatnonzero(looks.above[look.places] >= self.sustained).tolist():
            claim = self._claim(looks, int(look.places[row]), look.rows[row], look, now)
            claims.setdefault(claim.entity, claim)
        yield from claims.values()

    def _claim(self, looks: MachineLooks, place: int, sample: Doubles, look: _Look, now: float) -> Claim:
        kind, name, score = looks.kind, looks.names[place], float(looks.score[place])
        entity, text = Entity(kind=kind, name=name), f"{kind} {name} scores {score:.2f}"
        node = looks.node_of(place)
        if node in self._whole and kind is not Kind.NODE:
            entity = Entity(kind=Kind.NODE, name=node)
            text = f"node {node}: all of its {_PLURALS[kind]} that are read are unusual; {name} scores {score:.2f}"
        since = now - (self.sustained - 1) * self.every * looks.turns
        proofs = (Evidence(text=text, metric="score", value=score, threshold=look.bar), *_oddest(look.forest, sample))
        return Claim(entity=entity, kind=f"{entity.kind}.{UNUSUAL}", score=min(score, 1.0), since=since, evidence=proofs)

    def _over(self, entity: Entity) -> str:
        """Why it is not unusual any more, or is not named; '' while it is."""
        looks, whole = self._looks.get(entity.kind), self._whole.get(entity.name) if entity.kind is Kind.NODE else None
        if any(each.common >= self.sustained for each in self._looks.values()):
            return "most of the job is unusual at once: it does something else"
        if whole is not None:
            return ""
        if looks is None:
            return "it is not judged any more"
        place = looks.place.get(entity.name)
        if place is None:
            return "nothing is read of it any more"
        if entity.kind is not Kind.NODE and (kind := self._whole.get(looks.node_of(place))) is not None:
            return f"all {_PLURALS[kind]} of its node are unusual"
        return "" if looks.high[place] else "its metrics are normal again"


_PLURALS = {Kind.NODE: "nodes", Kind.GPU: "GPUs", Kind.WORKER: "workers"}


def _oddest(forest: Forest, sample: Doubles) -> Iterator[Evidence]:
    off = (sample - np.array(forest.median)) / np.maximum(np.array(forest.spread), 1e-9)
    for column in np.argsort(-np.abs(off), kind="stable")[:ODDEST].tolist():
        text = f"its {forest.names[column]} is {sample[column]:.4g}, usual is {forest.median[column]:.4g}"
        yield Evidence(text=text, metric=forest.names[column], value=float(sample[column]))


@dataclass
class IsolationForestLearner:
    """Grows the trees on minutes without open findings. Needs scikit-learn (extra `ml`)."""

    trees: int = 64
    per_tree: int = 128
    """Samples of each tree: half of the paper's 256 scores as well here, in half the bytes and time."""
    held_out: int = 4
    """One block of samples in so many is not seen by the trees: they give the cutoff."""
    blocks: int = 40
    seed: int = 0
    _drift: DriftCount = field(default_factory=lambda: DriftCount(NAME, forests_of), init=False, repr=False)
    _names: dict[str, dict[Kind, tuple[str, ...]]] = field(default_factory=dict, init=False, repr=False)
    """Job → metrics of each kind that were ever there: while its workers are started anew the samples stay comparable."""

    def sample(self, frame: Frame, /) -> tuple[tuple[str, ...], Floats]:
        """What it wants to remember of a healthy tick: (kind/metric, machines whose turn it is × names)."""
        parts = {kind: _turn_of(samples_of(frame, kind), kind, frame) for kind in KINDS}
        if (forests := self._drift.model(frame)) is not None:
            self._drift.add(frame.job, *_counted(forests, parts))
        known = self._known(frame.job, parts)
        names = tuple(f"{kind}/{name}" for kind in KINDS for name in known[kind])
        column = {name: place for place, name in enumerate(names)}
        matrix = np.full((sum(len(part.matrix) for part in parts.values()), len(names)), np.nan, np.float32)
        row = 0
        for kind, part in parts.items():
            matrix[row : row + len(part.matrix), [column[f"{kind}/{name}"] for name in part.names]] = part.matrix
            row += len(part.matrix)
        return names, matrix

    def _known(self, job: str, parts: Mapping[Kind, MachineSamples]) -> dict[Kind, tuple[str, ...]]:
        before = self._names.pop(job, {})
        known = self._names[job] = {kind: tuple(sorted({*before.get(kind, ()), *part.names})) for kind, part in parts.items()}
        while len(self._names) > JOBS_KEPT:
            del self._names[next(iter(self._names))]
        return known

    def drifted(self, job: str, /) -> bool:
        """Healthy samples are above the cutoff far more often than they should be: it asks to be fitted early."""
        return self._drift.drifted(job)

    def fit(self, history: Mapping[str, Any], /) -> Baseline:
        """`history`: job, time, names (tuple), matrix (samples × names, of all kinds and ticks, oldest first).

        A kind with fewer than 60 samples has no forest. Raises ValueError if none has more.
        """
        names, matrix = tuple(history["names"]), np.asarray(history["matrix"], dtype=np.float64)
        forests = {}
        for kind in KINDS:
            columns = [place for place, name in enumerate(names) if name.startswith(f"{kind}/")]
            rows = matrix[:, columns]
            rows = rows[np.isfinite(rows).any(axis=1)] if columns else rows[:0]
            if len(rows) >= FEWEST:
                forests[str(kind)] = self._forest(tuple(names[place].partition("/")[2] for place in columns), rows)
        if not forests:
            raise ValueError(f"a baseline of {len(matrix)} samples would be worth nothing: collect at least {FEWEST}")
        data = msgspec.msgpack.encode(Forests(VERSION, forests))
        return Baseline(name=NAME, job=str(history["job"]), digest=digest_of(NAME, data), fitted=float(history["time"]), data=data)

    def _forest(self, names: tuple[str, ...], rows: Doubles) -> Forest:
        """What is held out is from all of the time: so a cutoff knows a phase that has just begun, as the trees do."""
        from sklearn.ensemble import IsolationForest as Grower

        known = (np.arange(len(rows)) * self.blocks // len(rows)) % self.held_out != self.held_out - 1
        grower = Grower(n_estimators=self.trees, max_samples=min(self.per_tree, int(known.sum())), random_state=self.seed)
        forest = grown(names, rows, grower, known)
        unseen, _ = GrownForest.of(forest).aligned(names, rows[~known].astype(np.float32))
        scores = GrownForest.of(forest).scores(unseen)
        return msgspec.structs.replace(forest, cutoff=limit_of(scores, SCALE), raised=float(np.quantile(scores, RAISED)))


def _turn_of(samples: MachineSamples, kind: Kind, frame: Frame) -> MachineSamples:
    """Those of the job that are read, at most so many: by turns, as the number of the tick says."""
    if not samples.names:
        return MachineSamples((), (), np.zeros((0, 0), np.float32))
    mine = np.flatnonzero(trained_on(kind, samples.entities, frame.layout) & np.isfinite(samples.matrix).any(axis=1))
    if len(mine) > LEARNED_AT_ONCE:
        mine = np.roll(mine, -(frame.number * LEARNED_AT_ONCE) % len(mine))[:LEARNED_AT_ONCE]
    return MachineSamples(tuple(samples.entities[place] for place in mine.tolist()), samples.names, samples.matrix[mine])


def _counted(forests: Mapping[Kind, GrownForest], parts: Mapping[Kind, MachineSamples]) -> tuple[int, int]:
    """How many of the samples are above the cutoff, and how many there are."""
    above = seen = 0
    for kind, forest in forests.items():
        rows, read = forest.aligned(parts[kind].names, parts[kind].matrix[:COUNTED_AT_ONCE])
        cutoff = forest.forest.cutoff
        above, seen = above + int(np.count_nonzero(read & (forest.scores(rows, cutoff) > cutoff))), seen + int(np.count_nonzero(read))
    return above, seen
