"""Which workers are in a collective together, by the layout: groups of one role and size, that are compared with one another; and what in the network slow ones have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle_eye.parallel_ranks import DIMENSIONS
from eagle_eye.types import Entity, Floats, Integers, Kind, Layout

PEER_TO_PEER = "p2p"
NAMED = 4
"""Nodes of which one is at fault, that are told by name at most."""
MOSTLY = 0.75
"""Of the groups that leave a node, that are slow where its way out is."""

Truths = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GroupClass:
    """Groups that are compared."""

    role: str
    """As in the names of metrics."""
    members: Integers
    """Groups × workers in each."""


class CommonPlace(NamedTuple):
    """What slow groups have in common."""

    entity: Entity | None
    """A link, or a node; None: it is not known which of several."""
    text: str
    nodes: frozenset[str]
    """One of these it is, or what lies between them."""

    def is_narrower_than(self, other: "CommonPlace") -> bool:
        """It is within the other one."""
        return self.nodes < other.nodes or (self.nodes == other.nodes and self.rank < other.rank)

    def is_same_as(self, other: "CommonPlace") -> bool:
        """Whatever the words."""
        return self.entity == other.entity and self.nodes == other.nodes

    @property
    def rank(self) -> int:
        """A link is less than a node, and that less than what is not known."""
        return 2 if self.entity is None else int(self.entity.kind is Kind.NODE)


def group_classes(layout: Layout) -> list[GroupClass]:
    """Those of two workers and more. Messages from stage to stage are pairs, compared with those of other replicas between the same stages."""
    ranks = np.array([[getattr(place, name) for name in DIMENSIONS] for place in layout.placements], dtype=np.int64).reshape(-1, len(DIMENSIONS))
    found: list[GroupClass] = []
    for role in DIMENSIONS:
        # experts are spread over the replicas, and what is no expert is reduced over all of these
        own = [DIMENSIONS.index(name) for name in (("dp", "ep") if role == "dp" else (role,))]
        by_size: dict[int, list[Integers]] = {}
        for group in _equal(np.delete(ranks, own, axis=1)):
            if len(group) > 1 and len(np.unique(ranks[group][:, own], axis=0)) == len(group):
                by_size.setdefault(len(group), []).append(group)
        found += [GroupClass(role, np.array(groups)) for groups in by_size.values()]
    everybody = [GroupClass("world", np.arange(len(ranks))[None])] if len(ranks) > 1 else []
    return [*found, *_pairs(ranks), *everybody]


def _pairs(ranks: Integers) -> list[GroupClass]:
    """Workers of successive stages with the same other ranks."""
    stage = DIMENSIONS.index("pp")
    by_stage: dict[int, list[Integers]] = {}
    for group in _equal(np.delete(ranks, stage, axis=1)):
        ordered = group[np.argsort(ranks[group, stage])]
        for first, second in pairwise(ordered.tolist()):
            if ranks[second, stage] == ranks[first, stage] + 1:
                by_stage.setdefault(int(ranks[first, stage]), []).append(np.array([first, second]))
    return [GroupClass(PEER_TO_PEER, np.array(pairs)) for pairs in by_stage.values()]


def _equal(keys: Integers) -> list[Integers]:
    """Rows that are equal."""
    if not len(keys):
        return []
    _, number = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(number.ravel(), kind="stable")
    return np.split(order, np.flatnonzero(np.diff(number.ravel()[order])) + 1)


def least(values: Floats, members: Integers) -> Floats:
    """Of each group the least of its members': who comes last into a collective waits for nobody, and shows how long it takes by itself. NaN where a member is not known."""
    found: Floats = values[members].min(axis=1)
    return found


def place_of(layout: Layout, slow: Sequence[Integers], usual: Sequence[Integers]) -> CommonPlace:
    """The one worker's link that all slow groups and no other one goes over, else the one node; else it is not known. Groups are rows of places in the layout, those of a class together."""
    numbers: dict[str, int] = {}
    node_of = np.array([numbers.setdefault(place.node, len(numbers)) for place in layout.placements], np.int64)
    names = list(numbers)
    slow = [np.atleast_2d(groups) for groups in slow]
    across = [rows[_leaves(rows, node_of)] for rows in map(np.atleast_2d, usual)]
    count = sum(len(groups) for groups in slow)
    of_worker = _counted(slow, len(node_of))
    suspected = np.flatnonzero((of_worker == count) & (_counted(across, len(node_of)) == 0))
    if count > 1 and len(suspected) == 1:
        return _of_worker(layout, int(suspected[0]))
    bad, good = (_counted(_nodes_of(groups, node_of), len(names)) for groups in (slow, across))
    common = np.flatnonzero(bad == count)
    suspects = common if len(common) == 1 else common[bad[common] >= MOSTLY * (bad[common] + good[common])]
    if len(suspects) == 1:
        name = names[int(suspects[0])]
        return CommonPlace(Entity(kind=Kind.NODE, name=name), f"node {name}, its interfaces or its links, is what they have in common", frozenset((name,)))
    among = sorted(names[number] for number in (suspects if len(suspects) else np.flatnonzero(bad)).tolist())
    told = ", ".join(among[:NAMED]) + (f" and {len(among) - NAMED} others" if len(among) > NAMED else "")
    return CommonPlace(None, f"it is between or at the nodes {told}: which of them it is, is not seen", frozenset(among))


def _of_worker(layout: Layout, index: int) -> CommonPlace:
    place = layout.placements[index]
    if place.port:
        return CommonPlace(Entity(kind=Kind.LINK, name=place.port), f"link {place.port} of worker {place.worker} is what they have in common", frozenset((place.node,)))
    text = f"worker {place.worker} of node {place.node} is what they have in common: the link or interface of its GPU"
    return CommonPlace(Entity(kind=Kind.NODE, name=place.node), text, frozenset((place.node,)))


def _leaves(groups: Integers, node_of: Integers) -> Truths:
    """Of each group whether it is on more than one node."""
    nodes = node_of[groups]
    more: Truths = (nodes != nodes[:, :1]).any(axis=1)
    return more


def _counted(groups: Sequence[Integers], most: int) -> Integers:
    """How often each number is in them."""
    found: Integers = sum((np.bincount(each.ravel(), minlength=most) for each in groups), np.zeros(most, np.int64))
    return found


def _nodes_of(groups: Sequence[Integers], node_of: Integers) -> list[Integers]:
    """The nodes of each group, each of them once; of all groups of a class together."""
    found = []
    for each in groups:
        nodes = np.sort(node_of[each], axis=1)
        first = np.ones(nodes.shape, bool)
        first[:, 1:] = nodes[:, 1:] != nodes[:, :-1]
        found.append(nodes[first])
    return found
