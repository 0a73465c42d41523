"""Who exchanges ranks with whom, and where a fault is then if it followed them."""

import pytest

from eagle_eye.types import Layout, RankPlacement
from remediation.policy.rank_swap import after_swap, exchanged, swap_for


def layout(workers: dict[str, int], *, in_place: bool = False) -> Layout:
    places = [(node, slot) for node, count in workers.items() for slot in range(count)]
    placements = tuple(RankPlacement(worker=f"r/{node}/{slot}", node=node, rank=rank, local_rank=slot) for rank, (node, slot) in enumerate(places))
    return Layout(job="j", epoch=1, time=0.0, coordinator="a", launchers={}, placements=placements, in_place=in_place)


@pytest.mark.parametrize(("workers", "accused", "swap"), [
    ({"a": 2, "b": 2, "c": 2}, ["a"], ("a", "c")),
    ({"a": 2, "b": 2, "c": 2}, ["c"], ("b", "c")),
    ({"a": 2, "b": 2, "c": 1}, ["a"], ("a", "b")),
    ({"a": 2, "b": 1}, ["a"], ()),
    ({"a": 2}, ["a"], ()),
    ({"a": 2, "b": 2, "c": 2}, ["a", "b"], ()),
    ({"a": 2, "b": 2}, [], ()),
])  # fmt: skip
def test_a_node_exchanges_its_ranks_with_one_that_has_as_many_workers(workers: dict[str, int], accused: list[str], swap: tuple[str, ...]) -> None:
    assert swap_for(accused, layout(workers)) == swap


def test_elastic_workers_keep_no_rank_that_could_be_exchanged() -> None:
    assert swap_for(["a"], layout({"a": 2, "b": 2}, in_place=True)) == ()


@pytest.mark.parametrize(("culprits", "followed"), [
    ({"worker r/a/1"}, {"worker r/b/1"}),
    ({"worker r/b/0", "node a"}, {"worker r/a/0", "node b"}),
    ({"worker r/c/0", "gpu GPU-1"}, {"worker r/c/0", "gpu GPU-1"}),
])  # fmt: skip
def test_a_fault_that_follows_the_ranks_is_at_the_same_place_of_the_other_node(culprits: set[str], followed: set[str]) -> None:
    assert after_swap(frozenset(culprits), ("a", "b")) == frozenset(followed)
    assert after_swap(frozenset(culprits), ()) == frozenset(), "nothing was exchanged"


@pytest.mark.parametrize(("nodes", "done"), [("bac", True), ("cab", False), ("abc", False), ("ac", False), ("cba", True)])
def test_ranks_were_exchanged_if_the_second_node_has_the_lower_ones_now(nodes: str, done: bool) -> None:
    assert exchanged(("a", "b"), layout(dict.fromkeys(nodes, 2))) is done
    assert not exchanged(("a", "b"), None)
