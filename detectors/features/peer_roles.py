"""Who is whose peer, by the layout: the same pipeline stage, context and expert rank, and tensor rank where that leaves enough.

The stages with the embedding and the head have work of their own, and so has each expert: they are no peers of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eagle_eye.topology import node_of_worker
from eagle_eye.types import Doubles, Integers, Layout


class _Coordinates(NamedTuple):
    dp: int = 0
    pp: int = 0
    tp: int = 0
    cp: int = 0
    ep: int = 0


@dataclass(frozen=True, slots=True)
class PeerRoles:
    """The groups of some workers; a group is an array of their positions."""

    role: Integers
    """Of each worker: the number of its role, from 1; 0 of all those whose peers are too few."""
    replicas: tuple[Integers, ...]
    """Workers of different stages that process the same batches, one after the other."""
    tensor_groups: tuple[Integers, ...]
    """Workers of one stage that compute one layer together, and wait for one another in it."""
    nodes: tuple[str, ...]
    """Of each worker."""
    same_ranks: Integers
    """Of each worker: the number of those with all of its ranks but the data-parallel one, however few they are."""

    def compared(self, values: Doubles, least: int) -> Doubles:
        """Each value beside those of its peers; NaN where these are too few."""
        return above_peers(np.where(self.role > 0, values, np.nan), self.role, least)

    def groups(self) -> list[Integers]:
        """The workers of each role."""
        return [np.flatnonzero(self.role == number) for number in range(1, int(self.role.max(initial=0)) + 1)]

    def stage_of(self, index: int) -> Integers:
        """Workers that compute one layer with this one, itself among them."""
        return next((group for group in self.tensor_groups if index in group), np.array([index]))

    def replica_of(self, index: int) -> Integers:
        """Workers through which the same batches go, itself among them."""
        return next((group for group in self.replicas if index in group), np.array([index]))


def peer_roles(workers: tuple[str, ...], layout: Layout | None, least: int) -> PeerRoles:
    """`least`: fewer cannot be compared."""
    places = {place.worker: _Coordinates(place.dp, place.pp, place.tp, place.cp, place.ep) for place in (layout.placements if layout is not None else ())}
    at = [places.get(worker, _Coordinates()) for worker in workers]
    fine, coarse = _indices([(each.pp, each.cp, each.ep, each.tp) for each in at]), _indices([(each.pp, each.cp, each.ep, -1) for each in at])
    groups = [group for group in fine.values() if len(group) >= least]
    taken = {key[:3] for key, group in fine.items() if len(group) >= least}
    groups += [group for key, group in coarse.items() if key[:3] not in taken and len(group) >= least]
    role = np.zeros(len(workers), dtype=np.int64)
    for number, group in enumerate(groups, 1):
        role[group] = number
    same_ranks = np.zeros(len(workers), dtype=np.int64)
    for number, group in enumerate(fine.values()):
        same_ranks[group] = number
    known = len(set(at)) > 1
    replicas = [group for group in _indices([(each.dp, each.cp, each.ep) for each in at]).values() if known and len({at[index].pp for index in group.tolist()}) > 1]
    tensor = [group for group in _indices([(each.dp, each.pp, each.cp, each.ep) for each in at]).values() if known and len({at[index].tp for index in group.tolist()}) > 1]
    return PeerRoles(role, tuple(replicas), tuple(tensor), tuple(node_of_worker(worker) for worker in workers), same_ranks)


def _indices(keys: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Integers]:
    found: dict[tuple[int, ...], list[int]] = {}
    for index, key in enumerate(keys):
        found.setdefault(key, []).append(index)
    return {key: np.array(indices, dtype=np.int64) for key, indices in found.items()}


def above_peers(values: Doubles, role: Integers, least: int) -> Doubles:
    """Each value less the median of the others of its role; NaN where fewer than `least` of that are known. `role`: of each worker, from 0.

    Of an even number of others the upper one of the two in the middle counts, so that one fast worker of three makes nobody slow.

    >>> above_peers(np.array([1.0, 1.0, 1.5, 1.0]), np.zeros(4, int), 3).tolist()
    [0.0, 0.0, 0.5, 0.0]
    >>> above_peers(np.array([0.4, 1.0, 1.0]), np.zeros(3, int), 3).tolist()
    [-0.6, 0.0, 0.0]
    """
    if not len(values):
        return np.zeros(0)
    ordered, begin, known = _sorted_by_role(values, role)
    rank = np.empty(len(values), dtype=np.int64)
    rank[ordered] = np.arange(len(values)) - begin[role[ordered]]
    middle = (known - 1) // 2
    at = begin[role] + middle[role] + (rank <= middle[role])
    above: Doubles = np.where(known[role] >= max(least, 2), values - values[ordered][np.minimum(at, len(values) - 1)], np.nan)
    return above


def median_of_role(values: Doubles, role: Integers) -> Doubles:
    """Of each worker: the median of its role, itself among it; NaN where nothing is known.

    >>> median_of_role(np.array([1.0, 3.0, 9.0, np.nan]), np.array([0, 0, 1, 1])).tolist()
    [2.0, 2.0, 9.0, 9.0]
    """
    if not len(values):
        return np.zeros(0)
    ordered, begin, known = _sorted_by_role(values, role)
    below, above = begin + np.maximum(known - 1, 0) // 2, begin + known // 2
    sorted_values = values[ordered]
    medians = (sorted_values[np.minimum(below, len(values) - 1)] + sorted_values[np.minimum(above, len(values) - 1)]) / 2.0
    found: Doubles = np.where(known > 0, medians, np.nan)[role]
    return found


def _sorted_by_role(values: Doubles, role: Integers) -> tuple[Integers, Integers, Integers]:
    """Positions by role and value, what is not known last; and of each role its first place in that order, and how many are known."""
    ordered = np.lexsort((values, role))
    count = np.bincount(role)
    return ordered, np.cumsum(count) - count, np.bincount(role[np.isfinite(values)], minlength=len(count))
