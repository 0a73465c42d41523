"""Micro-batches and instantiation: equal to brute force."""

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye.errors import ConfigError
from remediation.planner.pipelines.instantiation import instantiate
from remediation.planner.pipelines.micro_batch_distribution import GroupPace, distribute, lower_bound

PACES = st.builds(
    GroupPace,
    each=st.one_of(st.integers(1, 9), st.floats(0.05, 9)).map(float),
    fill=st.one_of(st.just(0.0), st.floats(-1, 20)),
    most=st.one_of(st.none(), st.integers(1, 6)),
)


def splits(total: int, groups: int) -> Iterator[tuple[int, ...]]:
    for borders in itertools.combinations(range(1, total), groups - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *borders, total)))


def brute(groups: Sequence[GroupPace], total: int) -> float:
    fitting = (split for split in splits(total, len(groups)) if all(group.most is None or count <= group.most for group, count in zip(groups, split, strict=True)))
    return min((max(g.time(c) for g, c in zip(groups, split, strict=True)) for split in fitting), default=math.inf)


@settings(max_examples=80, deadline=None)
@given(st.lists(PACES, min_size=1, max_size=4), st.integers(1, 12))
def test_the_makespan_is_the_least(groups: list[GroupPace], total: int) -> None:
    best = brute(groups, total)
    if math.isinf(best):
        with pytest.raises(ConfigError):
            distribute(groups, total)
        return
    found = distribute(groups, total)
    assert sum(found.counts) == total
    assert all(1 <= count <= (group.most or total) for count, group in zip(found.counts, groups, strict=True))
    assert found.makespan == best
    assert found.makespan == max(group.time(count) for group, count in zip(groups, found.counts, strict=True))


def test_a_straggler_gets_less() -> None:
    groups = [GroupPace(1.0)] * 3 + [GroupPace(1.0).at_speed(0.5)]
    assert distribute(groups, 70).counts == (20, 20, 20, 10)


def test_many_unequal_groups_come_close_to_what_parts_of_micro_batches_could_do() -> None:
    groups = [GroupPace(1 + (index * 37 % 101) / 50) for index in range(1250)]
    found = distribute(groups, 20_000)
    assert sum(found.counts) == 20_000
    assert lower_bound(groups, 20_000) <= found.makespan <= lower_bound(groups, 20_000) + 3


@pytest.mark.parametrize(
    ("groups", "total", "message"),
    [
        ([], 3, "no group"),
        ([GroupPace(1.0)] * 4, 3, "each needs one"),
        ([GroupPace(1.0, most=2)] * 2, 5, "holds 4 of 5"),
        ([GroupPace(0.0)], 5, "above zero"),
        ([GroupPace(1.0, most=0)], 1, "no micro-batch"),
    ],
)
def test_what_cannot_be_distributed_is_refused_with_a_reason(groups: list[GroupPace], total: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        distribute(groups, total)


def partitions(nodes: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if nodes == 0:
        yield ()
    for index, size in enumerate(sizes):
        if size <= nodes:
            for rest in partitions(nodes - size, sizes[index:]):
                yield (size, *rest)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(1, 5), PACES, min_size=1, max_size=4),
    st.integers(1, 10),
    st.integers(1, 14),
    st.integers(1, 3),
    st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=10, max_size=10)),
)
def test_instantiation_is_the_best_of_all(paces: dict[int, GroupPace], nodes: int, total: int, least: int, reduce: list[int] | None) -> None:
    table = {number: float(time) for number, time in enumerate(reduce, 1)} if reduce else None
    best = math.inf
    for sizes in partitions(nodes, sorted(paces)):
        if len(sizes) >= least and len(sizes) <= total:
            groups = [paces[size] for size in sizes]
            if sum(total if group.most is None else group.most for group in groups) >= total:
                best = min(best, distribute(groups, total).makespan + (table[len(sizes)] if table else 0.0))
    if math.isinf(best):
        with pytest.raises(ConfigError, match="use other node counts"):
            instantiate(paces, nodes, total, least, table)
        return
    found = instantiate(paces, nodes, total, least, table)
    assert found.time == best
    assert sum(found.sizes) == nodes
    assert len(found.sizes) >= least
    assert sum(found.batches.counts) == total
