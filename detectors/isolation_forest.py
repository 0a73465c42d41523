"""A node whose numbers together are unlike those of the job's healthy minutes; it informs only.

F. T. Liu, K. M. Ting, Z.-H. Zhou, "Isolation Forest", ICDM 2008: random trees isolate what is unusual in few steps.
With h the mean depth at which a sample ends and c the expected depth among n samples, the score is 2^(−h/c): near 1 is
unusual, 0.5 and less is ordinary. scikit-learn grows the trees (`IsolationForestLearner`, in a child process); they
travel as plain arrays in msgpack, and scoring is numpy over all nodes and trees at once.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import numpy as np

from eagle_eye.errors import UNREADABLE
from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Share
from eagle_eye.types import Baseline, Claim, Doubles, Entity, Evidence, Floats, Integers, Kind, digest_of

from .features.active_claims import ActiveClaims
from .features.node_metrics import LARGEST, features

log = logging.getLogger(__name__)

NAME = "isolation_forest"
"""Name of the baseline."""
DEEPEST = 64
"""Steps to a leaf: the learner grows to the logarithm of the samples of a tree, which is below ten."""


class Forest(msgspec.Struct, frozen=True):
    """What `Baseline.data` holds, as msgpack. Trees are rows, padded to the longest; a leaf is its own child."""

    names: tuple[str, ...]
    """Metrics, in the order of the columns."""
    median: list[float]
    spread: list[float]
    """Median absolute deviation of each metric, so that the evidence can name the unusual ones."""
    cutoff: float
    """Highest score of a healthy sample that the trees had not seen."""
    depth: int
    """Steps after which every sample is in a leaf."""
    expected: float
    """c: expected path length among the samples of a tree."""
    feature: list[list[int]]
    threshold: list[list[float]]
    left: list[list[int]]
    right: list[list[int]]
    path: list[list[float]]
    """Path length that ends here: depth of the node, plus the expected rest among its samples."""


@dataclass(frozen=True, slots=True)
class _Trees:
    """A forest as arrays of trees × nodes."""

    feature: Integers
    threshold: Doubles
    children: Integers
    """2 × trees × nodes: left, right."""
    path: Doubles


@dataclass
class IsolationForest:
    """Claims node.unusual while a node scores above what any healthy minute did; silent without a baseline."""

    margin: Share = 0.03
    """So far above the highest score of a healthy sample."""
    floor: Share = 0.55
    """And at least so high: by the paper 0.5 is ordinary."""
    sustained: Count = 4
    """Looks in succession: a spike of a few seconds is no claim."""
    every: ClassVar[int] = 3
    """Looks at each third tick."""
    _digest: str = field(default="", init=False, repr=False)
    _forest: Forest | None = field(default=None, init=False, repr=False)
    _trees: _Trees | None = field(default=None, init=False, repr=False)
    _above: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        if not frame.tick:
            return
        baseline = frame.baselines.get(NAME)
        if baseline is None:
            return
        self._use(baseline)
        if self._forest is None or self._trees is None:
            return
        nodes, names, matrix = features(frame)
        if not nodes or not names:
            return
        samples, read = _aligned(self._forest, names, matrix)
        scores = scores_of(self._forest, self._trees, samples)
        bar = max(self.floor, self._forest.cutoff + self.margin)
        high = read & (scores > bar)
        for index in np.flatnonzero(high).tolist():
            yield from self._high(nodes[index], float(scores[index]), bar, samples[index], frame)
        calm = {node for node, above in zip(nodes, high.tolist(), strict=True) if not above}
        self._above = {node: count for node, count in self._above.items() if node not in calm}
        for entity, kind in list(self._claims.open):
            if entity.name in calm:
                yield from self._claims.withdraw(entity, kind, frame.time, "its metrics are normal again")

    def _use(self, baseline: Baseline) -> None:
        if baseline.digest == self._digest:
            return
        self._digest = baseline.digest
        try:
            forest = msgspec.msgpack.decode(baseline.data, type=Forest)
            trees = _arrays(forest)
        except (*UNREADABLE, ValueError, OverflowError) as error:
            log.warning("baseline %s of %s cannot be used, the one before goes on: %s", baseline.digest, baseline.job, error)
            return
        self._forest, self._trees, self._above = forest, trees, {}

    def _high(self, node: str, score: float, bar: float, sample: Doubles, frame: Frame) -> Iterator[Claim]:
        count = self._above[node] = self._above.get(node, 0) + 1
        if count < self.sustained:
            return
        assert self._forest is not None
        forest = self._forest
        proofs = [Evidence(text=f"node {node} scores {score:.2f}", metric="score", value=score, threshold=bar)]
        off = (sample - np.array(forest.median)) / np.maximum(np.array(forest.spread), 1e-9)
        for column in np.argsort(-np.abs(off), kind="stable")[:3].tolist():
            text = f"its {forest.names[column]} is {sample[column]:.4g}, usual is {forest.median[column]:.4g}"
            proofs.append(Evidence(text=text, metric=forest.names[column], value=float(sample[column])))
        claim = Claim(
            entity=Entity(kind=Kind.NODE, name=node),
            kind="node.unusual",
            score=min(score, 1.0),
            since=frame.time - (self.sustained - 1) * self.every,
            evidence=tuple(proofs),
        )
        yield from self._claims.report(claim, revise=False)


def _aligned(forest: Forest, names: tuple[str, ...], matrix: Floats) -> tuple[Doubles, Any]:
    """Columns in the order of the forest, the median where nothing was read; and which rows hold any reading."""
    column = {name: index for index, name in enumerate(names)}
    samples = np.full((len(matrix), len(forest.names)), np.nan)
    for place, name in enumerate(forest.names):
        if name in column:
            samples[:, place] = matrix[:, column[name]]
    read = np.isfinite(samples).any(axis=1)
    return np.where(np.isfinite(samples), samples, np.array(forest.median)), read


def _arrays(forest: Forest) -> _Trees:
    """Raises ValueError where a tree leads nowhere, as no learner of ours grows it."""
    trees = _Trees(
        feature=np.array(forest.feature, dtype=np.int64),
        threshold=np.array(forest.threshold),
        children=np.array([forest.left, forest.right], dtype=np.int64),
        path=np.array(forest.path),
    )
    shape, names = trees.feature.shape, len(forest.names)
    if len(shape) != 2 or not all(shape) or {trees.threshold.shape, trees.path.shape, *(side.shape for side in trees.children)} != {shape}:
        raise ValueError("its trees have unequal sizes")
    if not {len(forest.median), len(forest.spread)} == {names} or not 0 <= trees.feature.min() <= trees.feature.max() < names:
        raise ValueError("its trees ask for metrics that it does not name")
    if not 0 <= trees.children.min() <= trees.children.max() < shape[1] or not 0 <= forest.depth <= shape[1]:
        raise ValueError("its trees lead nowhere")
    if forest.depth > DEEPEST or not 0 <= trees.path.min() <= trees.path.max() <= 2 * DEEPEST or not 1 / DEEPEST <= forest.expected <= DEEPEST:
        raise ValueError("its trees are deeper than any that are grown")
    if not all((np.abs(values) < LARGEST).all() for values in (trees.threshold, forest.median, forest.spread)):
        raise ValueError("its values are not those of a metric")
    return trees


def scores_of(forest: Forest, trees: _Trees, samples: Doubles) -> Doubles:
    """2^(−mean path / expected path) of each sample (samples × names → samples)."""
    count = len(samples)
    tree = np.arange(len(trees.feature))[:, None]
    sample = np.arange(count)[None, :]
    at = np.zeros((len(trees.feature), count), dtype=np.int64)
    # the trees were grown on float32; comparing in another width would send borderline samples elsewhere
    with np.errstate(over="ignore"):
        values = samples.astype(np.float32)
    for _ in range(forest.depth):
        beyond = values[sample, trees.feature[tree, at]] > trees.threshold[tree, at]
        at = trees.children[beyond.astype(np.int64), tree, at]
    mean = trees.path[tree, at].mean(axis=0)
    scores: Doubles = 2.0 ** (-mean / forest.expected)
    return scores


@dataclass
class IsolationForestLearner:
    """Grows the trees on minutes without open findings. Needs scikit-learn (extra `ml`)."""

    trees: int = 64
    per_tree: int = 128
    """Samples of each tree: half of the paper's 256 scores as well here, in half the bytes and time."""
    held_out: float = 0.25
    """Share of the samples, the newest, that the trees do not see: they give the cutoff."""
    seed: int = 0

    def sample(self, frame: Frame, /) -> tuple[tuple[str, ...], Floats]:
        """What it wants to remember of a healthy tick: (names, nodes that reported × names)."""
        _, names, matrix = features(frame)
        return names, matrix[np.isfinite(matrix).any(axis=1)] if names else matrix

    def fit(self, history: Mapping[str, Any], /) -> Baseline:
        """`history`: job, time, names (tuple), matrix (samples × names, of all nodes and ticks, oldest first).

        Raises ValueError for fewer than 60 samples.
        """
        from sklearn.ensemble import IsolationForest as Grower

        names, matrix = tuple(history["names"]), np.asarray(history["matrix"], dtype=np.float64)
        if len(matrix) < 60:
            raise ValueError(f"a baseline of {len(matrix)} samples would be worth nothing: collect at least 60")
        median = np.nan_to_num(np.array([_median(column) for column in matrix.T]))
        filled = np.where(np.isfinite(matrix), matrix, median)
        known = filled[: int(len(filled) * (1 - self.held_out))]
        grown = Grower(n_estimators=self.trees, max_samples=min(self.per_tree, len(known)), random_state=self.seed)
        grown.fit(known.astype(np.float32))
        forest = self._forest(names, median, filled, grown)
        scores = scores_of(forest, _arrays(forest), filled[len(known) :])
        data = msgspec.msgpack.encode(msgspec.structs.replace(forest, cutoff=float(scores.max())))
        return Baseline(
            name=NAME,
            job=str(history["job"]),
            digest=digest_of(NAME, data),
            fitted=float(history["time"]),
            data=data,
        )

    def _forest(self, names: tuple[str, ...], median: Doubles, filled: Doubles, grown: Any) -> Forest:
        trees = [estimator.tree_ for estimator in grown.estimators_]
        size = max(int(tree.node_count) for tree in trees)
        rows = [_rows(tree, size) for tree in trees]
        return Forest(
            names=names,
            median=median.tolist(),
            spread=[_median(np.abs(column - middle)) for column, middle in zip(filled.T, median, strict=True)],
            cutoff=0.0,
            depth=max(int(tree.max_depth) for tree in trees),
            expected=float(_expected(np.array([grown.max_samples_]))[0]),
            feature=[row[0] for row in rows],
            threshold=[row[1] for row in rows],
            left=[row[2] for row in rows],
            right=[row[3] for row in rows],
            path=[row[4] for row in rows],
        )


def _median(column: Doubles) -> float:
    read = column[np.isfinite(column)]
    return float(np.median(read)) if len(read) else 0.0


def _rows(tree: Any, size: int) -> tuple[list[int], list[float], list[int], list[int], list[float]]:
    """One tree of scikit-learn as plain rows of `size` nodes; a leaf is its own child."""
    itself = np.arange(tree.node_count)
    leaf = tree.children_left < 0
    left, right = np.where(leaf, itself, tree.children_left), np.where(leaf, itself, tree.children_right)
    depth = np.zeros(tree.node_count)
    for node in range(tree.node_count):  # parents come before their children
        if not leaf[node]:
            depth[left[node]] = depth[right[node]] = depth[node] + 1
    path = depth + _expected(tree.n_node_samples)
    spare = size - int(tree.node_count)
    return (
        np.pad(np.maximum(tree.feature, 0), (0, spare)).tolist(),
        np.pad(tree.threshold, (0, spare)).tolist(),
        np.pad(left, (0, spare)).tolist(),
        np.pad(right, (0, spare)).tolist(),
        np.pad(path, (0, spare)).tolist(),
    )


def _expected(samples: Any) -> Doubles:
    """c(n): mean path length of an unsuccessful search in a binary tree of n samples (equation 1 of the paper)."""
    count = np.asarray(samples, dtype=np.float64)
    many = np.maximum(count, 3.0)
    grown = 2.0 * (np.log(many - 1.0) + np.euler_gamma) - 2.0 * (many - 1.0) / many
    return np.where(count > 2, grown, np.where(count == 2, 1.0, 0.0))
