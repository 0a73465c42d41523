"""A node whose metrics do not take the course that they take in healthy minutes; it informs only.

`isolation_forest` asks whether a node's metrics are unlike all healthy minutes; here each metric is forecast from all of a moment before (features/metric_model.py), so that a
metric that leaves the others' company is seen while its value alone is nothing unusual, and load that rises in all of them together is not told. The mean of five looks counts:
one odd reading is no claim.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from eagle_eye.errors import UNREADABLE
from eagle_eye.frames import Frame
from eagle_eye.ranges import Count
from eagle_eye.types import Baseline, Claim, Doubles, Entity, Evidence, Floats, Kind, digest_of

from .features.active_claims import ActiveClaims
from .features.metric_model import MetricModel, checked, departures, fitted
from .features.node_metrics import features

log = logging.getLogger(__name__)

NAME = "metric_forecast"
"""Name of the baseline."""
LOOKS = 5
"""Whose mean score counts."""
LOOK_S = 3.0
"""Between two looks: as often as the detector is asked."""
LATEST_S = 7.0
"""A look that is older says nothing of what comes next."""
SCORE = 0.8
JOBS_KEPT = 1000
NAMED = 3
"""Metrics in the evidence."""
BEFORE = "before."


class NodeLook(NamedTuple):
    """What a tick showed."""

    time: float
    nodes: tuple[str, ...]
    names: tuple[str, ...]
    matrix: Floats
    """Nodes × names."""

    @classmethod
    def of(cls, frame: Frame) -> "NodeLook":
        return cls(frame.time, *features(frame))

    def precedes(self, later: "NodeLook") -> bool:
        """It is of the same nodes and metrics, and not too old."""
        return (self.nodes, self.names) == (later.nodes, later.names) and 0.0 < later.time - self.time <= LATEST_S


@dataclass
class MetricForecast:
    """Claims node.unforeseen while the mean score of a node's looks is above what healthy minutes reach; silent without a baseline."""

    needs_job: ClassVar[bool] = True
    every: ClassVar[int] = 3
    looks: Count = LOOKS
    """Whose mean counts."""
    _digest: str = field(default="", init=False, repr=False)
    _model: MetricModel | None = field(default=None, init=False, repr=False)
    _last: NodeLook | None = field(default=None, init=False, repr=False)
    _scores: dict[str, list[float]] = field(default_factory=dict, init=False, repr=False)
    """Node → those of its newest looks, oldest first."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        if not frame.tick or (baseline := frame.baselines.get(NAME)) is None:
            return
        self._use(baseline)
        look, before = NodeLook.of(frame), self._last
        self._last = look
        if self._model is None or before is None or not before.precedes(look):
            return
        columns = _columns(self._model, look.names)
        now = _aligned(look.matrix, columns)
        seen = departures(self._model, _aligned(before.matrix, columns), now)
        read, newest = np.isfinite(now).any(axis=1), seen.scores.tolist()
        for place in np.flatnonzero(read).tolist():
            scores = [*self._scores.get(look.nodes[place], []), newest[place]][-self.looks :]
            self._scores[look.nodes[place]] = scores
        self._scores = {node: self._scores[node] for node in look.nodes if node in self._scores}
        yield from self._tell(look, now, seen.strengths)

    def _tell(self, look: NodeLook, now: Doubles, strengths: Doubles) -> Iterator[Claim]:
        assert self._model is not None
        for place, node in enumerate(look.nodes):
            scores = self._scores.get(node, [])
            mean = sum(scores) / max(len(scores), 1)
            if len(scores) == self.looks and mean > self._model.limit:
                yield from self._claims.report(_claim(node, mean, self._model, now[place], strengths[place], look.time - (self.looks - 1) * LOOK_S), revise=False)
        for entity, kind in list(self._claims.open):
            scores = self._scores.get(entity.name, [])
            if not scores or sum(scores) / len(scores) <= self._model.limit:
                yield from self._claims.withdraw(entity, kind, look.time, "its metrics take their usual course again")

    def _use(self, baseline: Baseline) -> None:
        if baseline.digest == self._digest:
            return
        self._digest = baseline.digest
        try:
            self._model = checked(msgspec.msgpack.decode(baseline.data, type=MetricModel))
        except (*UNREADABLE, ValueError) as error:
            log.warning("baseline %s of %s cannot be used, the one before goes on: %s", baseline.digest, baseline.job, error)
            return
        self._scores = {}


def _columns(model: MetricModel, names: tuple[str, ...]) -> list[int]:
    """Of each metric of the model: its place among these; −1 = it is not there."""
    place = {name: number for number, name in enumerate(names)}
    return [place.get(name, -1) for name in model.names]


def _aligned(matrix: Floats, columns: list[int]) -> Doubles:
    """In the order of the model; NaN where nothing was read."""
    wide = np.hstack([matrix.astype(np.float64), np.full((len(matrix), 1), np.nan)])
    aligned: Doubles = wide[:, columns]
    return aligned


def _claim(node: str, score: float, model: MetricModel, now: Doubles, strength: Doubles, since: float) -> Claim:
    proofs = [Evidence(text=f"node {node}: its metrics are {score:.2f} usual errors off their forecast, healthy minutes stay below {model.limit:.2f}", metric="score", value=score, threshold=model.limit)]
    for column in np.argsort(-strength, kind="stable")[:NAMED].tolist():
        if np.isfinite(now[column]):
            text = f"its {model.names[column]} is {now[column]:.4g}, the mean of healthy minutes is {model.mean[column]:.4g}"
            proofs.append(Evidence(text=text, metric=model.names[column], value=float(now[column])))
    return Claim(entity=Entity(kind=Kind.NODE, name=node), kind="node.unforeseen", score=SCORE, since=since, evidence=tuple(proofs))


@dataclass
class MetricForecastLearner:
    """Fits the forecast on minutes without open findings. With torch (extra `training`) also a network, which is used where it finds more."""

    network: bool = True
    """Also train one."""
    _last: dict[str, NodeLook] = field(default_factory=dict, init=False, repr=False)
    """Job → the newest look at it."""

    def sample(self, frame: Frame, /) -> tuple[tuple[str, ...], Floats]:
        """(names of the metrics, and once more as they were a look before; nodes × both); no row between two looks."""
        look, before = NodeLook.of(frame), self._last.get(frame.job)
        names = (*look.names, *(BEFORE + name for name in look.names))
        if before is not None and 0.0 < look.time - before.time < LOOK_S:
            return names, np.empty((0, len(names)), np.float32)
        self._last.pop(frame.job, None)
        self._last[frame.job] = look
        while len(self._last) > JOBS_KEPT:
            del self._last[next(iter(self._last))]
        if before is None or not before.precedes(look):
            return names, np.empty((0, len(names)), np.float32)
        read = np.isfinite(look.matrix).any(axis=1)
        return names, np.hstack([look.matrix, before.matrix])[read]

    def fit(self, history: Mapping[str, Any], /) -> Baseline:
        """`history`: job, time, names, matrix (samples × names). Raises ValueError for too few samples."""
        names, matrix = tuple(history["names"]), np.asarray(history["matrix"], dtype=np.float64)
        half = len(names) // 2
        data = msgspec.msgpack.encode(fitted(names[:half], matrix[:, half:], matrix[:, :half], network=self.network))
        return Baseline(name=NAME, job=str(history["job"]), digest=digest_of(NAME, data), fitted=float(history["time"]), data=data)
