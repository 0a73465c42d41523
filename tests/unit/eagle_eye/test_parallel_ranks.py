"""Parallel ranks of process groups' descriptions."""

import pytest

from eagle_eye.parallel_ranks import GroupPlace, parallel_ranks, role_of, told_ranks, with_parallel_ranks
from eagle_eye.types import Entity, Event, Kind, Layout, RankPlacement


@pytest.mark.parametrize(("places", "ranks"), [
    ([("default_pg", 5, 8), ("mesh_pp", 1, 2), ("mesh_dp", 0, 2), ("mesh_tp", 1, 2)], {"pp": 1, "dp": 0, "tp": 1}),
    ([("default_pg", 5, 8), ("DATA_PARALLEL_GROUP", 3, 4), ("TENSOR_MODEL_PARALLEL_GROUP", 1, 2), ("EXPERT_MODEL_PARALLEL_GROUP", 2, 4)], {"dp": 3, "tp": 1, "ep": 2}),
    ([("mesh_dp_replicate", 1, 2), ("mesh_dp_shard", 3, 4), ("mesh_cp", 1, 2)], {"dp": 7, "cp": 1}),
    ([("mesh_dp_shard", 3, 4)], {"dp": 3}),
    ([("default_pg", 5, 8), ("undefined", 1, 2), ("mesh_batch", 0, 4)], {}),
    ([], {}),
])  # fmt: skip
def test_what_groups_say_of_a_rank(places: list[tuple[str, int, int]], ranks: dict[str, int]) -> None:
    assert parallel_ranks(GroupPlace(*place) for place in places) == ranks


def test_a_group_that_nobody_knows_has_the_role_other() -> None:
    assert [role_of(each) for each in ("default_pg", "mesh_dp_shard", "mesh_tp", "undefined", "")] == ["world", "dp", "tp", "other", "other"]


def test_ranks_that_cannot_be_are_left_out() -> None:
    told = {"dp": "3", "tp": "-1", "pp": "x", "cp": "99999999999", "rank": "7", "world": "2"}
    entity = Entity(kind=Kind.WORKER, name="r/n/0")
    assert told_ranks(Event(name="worker.groups", job="t/n/r", entity=entity, time=0.0, node="n", incarnation="b", number=1, attributes=told)) == {"dp": 3}


def test_what_groups_say_counts_more_than_what_was_declared_and_the_rest_stays() -> None:
    places = tuple(RankPlacement(worker=f"r/n/{rank}", node="n", rank=rank, local_rank=rank, pp=5, gpu=f"GPU-{rank}") for rank in range(2))
    layout = Layout(job="t/n/r", epoch=1, time=0.0, coordinator="n", launchers={}, placements=places)
    found = with_parallel_ranks(layout, {"r/n/1": {"tp": 1, "pp": 0}, "r/n/9": {"tp": 1}})
    assert [(place.gpu, place.pp, place.tp) for place in found.placements] == [("GPU-0", 5, 0), ("GPU-1", 0, 1)]
