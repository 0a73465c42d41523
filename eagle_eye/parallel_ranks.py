"""Where a rank stands in each dimension of a job's parallelism, by the process groups that it is in.

Frameworks describe the groups that they make: torch's DeviceMesh as `mesh_` and the name of the dimension, Megatron-Core by names of its own.
A description that is not here has the role `other`.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, get_args

import msgspec

from .types import Event, Layout

WORKER_GROUPS = "worker.groups"
"""Event of the agent: the process groups that a worker is in."""
GroupRole = Literal["world", "dp", "pp", "tp", "cp", "ep", "other"]
ROLES: tuple[GroupRole, ...] = get_args(GroupRole)
DIMENSIONS = ROLES[1:-1]
"""Those in which a rank has a number: fields of RankPlacement."""
_DESCRIPTIONS: dict[str, GroupRole] = {
    "default_pg": "world",
    "mesh_dp": "dp", "mesh_pp": "pp", "mesh_tp": "tp", "mesh_cp": "cp", "mesh_ep": "ep",
    "mesh_data_parallel": "dp", "mesh_pipeline_parallel": "pp", "mesh_tensor_parallel": "tp", "mesh_context_parallel": "cp", "mesh_expert_parallel": "ep",
    "DATA_PARALLEL_GROUP": "dp", "PIPELINE_MODEL_PARALLEL_GROUP": "pp", "TENSOR_MODEL_PARALLEL_GROUP": "tp", "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
}  # fmt: skip
"""Sources: torch/distributed/device_mesh.py (`mesh_{dim_name}`; names of dimensions as torchtitan and the tutorials have them), Megatron-Core parallel_state.py."""
REPLICAS, SHARDS = "mesh_dp_replicate", "mesh_dp_shard"
"""Data parallelism in two dimensions, as of hybrid sharding."""


class GroupPlace(NamedTuple):
    """A rank's place in one process group."""

    description: str
    position: int
    """From 0."""
    size: int
    """Ranks in the group."""


def role_of(description: str) -> GroupRole:
    """What a group is for."""
    if description in (REPLICAS, SHARDS):
        return "dp"
    return _DESCRIPTIONS.get(description, "other")


def parallel_ranks(places: Iterable[GroupPlace]) -> dict[str, int]:
    """Dimension → rank in it, of those whose groups say so.

    >>> parallel_ranks([GroupPlace("default_pg", 5, 8), GroupPlace("mesh_tp", 1, 2)])
    {'tp': 1}
    """
    ranks: dict[str, int] = {}
    found = {each.description: each for each in places}
    for description, each in found.items():
        role = _DESCRIPTIONS.get(description)
        if role is not None and role != "world":
            ranks.setdefault(role, each.position)
    if "dp" not in ranks and SHARDS in found:
        replica = found[REPLICAS].position if REPLICAS in found else 0
        ranks["dp"] = replica * found[SHARDS].size + found[SHARDS].position
    return ranks


def told_ranks(event: Event) -> dict[str, int]:
    """Those of a `worker.groups` event; what is no rank is left out."""
    told = {role: event.attributes.get(role, "") for role in DIMENSIONS}
    return {role: int(rank) for role, rank in told.items() if rank.isdecimal() and len(rank) < 8}


def with_parallel_ranks(layout: Layout, ranks: Mapping[str, Mapping[str, int]]) -> Layout:
    """The layout with what its workers' groups say, which counts more than what was declared. `ranks`: worker → dimension → rank."""
    places = tuple(msgspec.structs.replace(place, **ranks[place.worker]) if place.worker in ranks else place for place in layout.placements)
    return msgspec.structs.replace(layout, placements=places)
