"""Isolation forests as they travel: plain arrays in msgpack, one for each kind of machine, and scores of them in numpy.

F. T. Liu, K. M. Ting, Z.-H. Zhou, "Isolation Forest", ICDM 2008: random trees isolate what is unusual in few steps. With h the mean depth at which a sample ends and c the expected
depth among n samples, the score is 2^(−h/c): near 1 is unusual, 0.5 and less is ordinary. scikit-learn grows the trees.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from eagle_eye.types import Doubles, Floats, Integers, Kind

from .machine_samples import KINDS
from .node_metrics import LARGEST

VERSION = 2
"""Of what `Baseline.data` holds. The first held one forest, of nodes, whose cutoff was the highest score of a healthy sample."""
DEEPEST = 64
"""Steps to a leaf: the learner grows to the logarithm of the samples of a tree, which is below ten."""
SCREEN = 16
"""Trees that all samples go through; only those that may come near the bar go through the others."""
NEAR = 0.07
"""Score below the bar from which a sample is near it: three deviations of what so few trees are off by."""
BLOCK = 2048
"""Samples that are scored together: so many stay in the cache."""


class Forest(msgspec.Struct, frozen=True):
    """Of one kind of machine. Trees are rows, padded to the longest; a leaf is its own child."""

    names: tuple[str, ...]
    """Metrics, in the order of the columns."""
    median: list[float]
    spread: list[float]
    """Median absolute deviation of each metric, so that the evidence can name the unusual ones."""
    cutoff: float
    """What one score of a healthy sample in a million is above (healthy_limit.py)."""
    raised: float
    """What one score of a healthy sample in a hundred is above."""
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


class Forests(msgspec.Struct, frozen=True):
    """What `Baseline.data` holds, as msgpack."""

    version: int
    kinds: dict[str, Forest]
    """Kind of machine → its forest."""


@dataclass(frozen=True, slots=True)
class Trees:
    """A forest as arrays of trees × nodes, one row behind the other."""

    count: int
    size: int
    """Nodes of each."""
    feature: Integers
    threshold: Doubles
    children: Integers
    """Left and right of each node: places in these arrays."""
    path: Doubles


@dataclass(frozen=True, slots=True)
class GrownForest:
    """One that has been checked."""

    forest: Forest
    trees: Trees

    @classmethod
    def of(cls, forest: Forest) -> "GrownForest":
        """Raises ValueError where a tree leads nowhere, as no learner of ours grows it."""
        return cls(forest, trees_of(forest))

    def scores(self, samples: Doubles, bar: float = 0.0) -> Doubles:
        """Of each sample (samples × names → samples). Of one that is far below the bar, by the first trees alone."""
        with np.errstate(over="ignore"):
            # the trees were grown on float32; comparing in another width would send borderline samples elsewhere
            values = samples.astype(np.float32)
        blocks = [self._block(values[begin : begin + BLOCK], bar) for begin in range(0, len(values), BLOCK)]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def _block(self, values: Floats, bar: float) -> Doubles:
        first = min(SCREEN, self.trees.count)
        paths = self._paths(values, 0, first)
        scores = self._score(paths / first)
        near = np.flatnonzero(scores > bar - NEAR)
        if len(near) and first < self.trees.count:
            rest = self._paths(values[near], first, self.trees.count)
            scores[near] = self._score((paths[near] + rest) / self.trees.count)
        return scores

    def _score(self, mean: Doubles) -> Doubles:
        scores: Doubles = 2.0 ** (-mean / self.forest.expected)
        return scores

    def _paths(self, values: Floats, first: int, last: int) -> Doubles:
        """Sum of the path lengths in the trees from `first` to before `last`."""
        trees, (count, columns) = self.trees, values.shape
        flat, row = values.ravel(), np.arange(count) * columns
        at = np.repeat(np.arange(first, last)[:, None] * trees.size, count, axis=1)
        for _ in range(self.forest.depth):
            beyond = flat.take(trees.feature.take(at) + row) > trees.threshold.take(at)
            at = trees.children.take(2 * at + beyond)
        paths: Doubles = trees.path.take(at).sum(axis=0)
        return paths

    def aligned(self, names: tuple[str, ...], matrix: Floats) -> tuple[Doubles, Any]:
        """Columns in the order of the forest, the median where nothing was read; and which rows hold any reading."""
        column = {name: index for index, name in enumerate(names)}
        samples = np.full((len(matrix), len(self.forest.names)), np.nan)
        for place, name in enumerate(self.forest.names):
            if name in column:
                samples[:, place] = matrix[:, column[name]]
        finite = np.isfinite(samples)
        return np.where(finite, samples, np.array(self.forest.median)), finite.any(axis=1)


def trees_of(forest: Forest) -> Trees:
    """Raises ValueError where a tree leads nowhere, as no learner of ours grows it."""
    feature, threshold, path = np.array(forest.feature, np.int64), np.array(forest.threshold), np.array(forest.path)
    sides = np.array([forest.left, forest.right], np.int64)
    shape, names = feature.shape, len(forest.names)
    if len(shape) != 2 or not all(shape) or {threshold.shape, path.shape, *(side.shape for side in sides)} != {shape}:
        raise ValueError("its trees have unequal sizes")
    if not {len(forest.median), len(forest.spread)} == {names} or not 0 <= feature.min() <= feature.max() < names:
        raise ValueError("its trees ask for metrics that it does not name")
    if not 0 <= sides.min() <= sides.max() < shape[1] or not 0 <= forest.depth <= shape[1]:
        raise ValueError("its trees lead nowhere")
    if forest.depth > DEEPEST or not 0 <= path.min() <= path.max() <= 2 * DEEPEST or not 1 / DEEPEST <= forest.expected <= DEEPEST:
        raise ValueError("its trees are deeper than any that are grown")
    if not all((np.abs(values) < LARGEST).all() for values in (threshold, forest.median, forest.spread, forest.cutoff, forest.raised)):
        raise ValueError("its values are not those of a metric")
    children = np.stack(tuple(sides), axis=2) + np.arange(shape[0])[:, None, None] * shape[1]
    return Trees(shape[0], shape[1], feature.ravel(), threshold.ravel(), children.ravel(), path.ravel())


def forests_of(data: bytes) -> dict[Kind, GrownForest]:
    """What a baseline holds. Raises what msgspec does, and ValueError for what no learner of this release writes."""
    stored = msgspec.msgpack.decode(data, type=Forests)
    if stored.version != VERSION:
        raise ValueError(f"it is of version {stored.version}, and this release reads {VERSION}")
    if not stored.kinds or not set(stored.kinds) <= set(KINDS):
        raise ValueError("it is of other things than nodes, GPUs and workers")
    return {Kind(kind): GrownForest.of(forest) for kind, forest in stored.kinds.items()}


def grown(names: tuple[str, ...], matrix: Doubles, grower: Any, known: Any) -> Forest:
    """Let scikit-learn's `grower` grow trees on the known rows; without a cutoff."""
    median = np.nan_to_num(np.array([_median(column) for column in matrix.T]))
    filled = np.where(np.isfinite(matrix), matrix, median)
    grower.fit(filled[known].astype(np.float32))
    trees = [estimator.tree_ for estimator in grower.estimators_]
    size = max(int(tree.node_count) for tree in trees)
    feature, threshold, left, right, path = zip(*(_rows(tree, size) for tree in trees), strict=True)
    return Forest(
        names=names,
        median=median.tolist(),
        spread=[_median(np.abs(column - middle)) for column, middle in zip(filled.T, median, strict=True)],
        cutoff=0.0,
        raised=0.0,
        depth=max(int(tree.max_depth) for tree in trees),
        expected=float(_expected(np.array([grower.max_samples_]))[0]),
        feature=list(feature), threshold=list(threshold), left=list(left), right=list(right), path=list(path),
    )  # fmt: skip


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
    grown_paths = 2.0 * (np.log(many - 1.0) + np.euler_gamma) - 2.0 * (many - 1.0) / many
    return np.where(count > 2, grown_paths, np.where(count == 2, 1.0, 0.0))
