"""Reconfiguration: Oobleck's rules as the floor, the best of all layouts, and clean stops."""

import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye.errors import ConfigError
from remediation.planner.pipelines.hungarian_assignment import assign
from remediation.planner.pipelines.layer_profile import LayerChain, ProfiledLayer
from remediation.planner.pipelines.micro_batch_distribution import GroupPace, distribute
from remediation.planner.pipelines.node_stages import one_stage_per_node
from remediation.planner.pipelines.oobleck_rules import Pipelines, oobleck_pipelines
from remediation.planner.pipelines.packing import pack
from remediation.planner.pipelines.pipeline_reconfiguration import (
    CannotReconfigure,
    Reconfiguration,
    ReconfigurationProblem,
    node_layers,
    reconfigure,
)
from remediation.planner.pipelines.pipeline_template import four_per_stage

LAYERS = LayerChain(tuple(ProfiledLayer(f"l{index}", 1.0 + index % 3, 2.0 + index % 2, 1.0, 1.0) for index in range(8)))
TEMPLATES = one_stage_per_node(LAYERS, range(2, 7), four_per_stage)
STATE = (3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0)
START: Pipelines = (("0", "1"), ("2", "3", "4"), ("5", "6", "7", "8"), ("9", "10", "11", "12", "13"))


def problem(pipelines: Sequence[Sequence[str]], lost: str = "", **more: object) -> ReconfigurationProblem:
    settled = tuple(tuple(pipeline) for pipeline in pipelines)
    values: dict[str, object] = {"templates": TEMPLATES, "state": STATE, "micro_batches": 24} | more
    return ReconfigurationProblem(pipelines=settled, lost=frozenset(lost.split()), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ("2", "0 1|3 4|5 6 7 8|9 10 11 12 13"),
        ("1 3 4", "0 13|2 12|9 10 11|5 6 7 8"),
        ("2 4 6 7 8", "0 1|3 13|5 12|9 10 11"),
        ("1 2 3 5 6 7 9 10 11", "0 4|8 12 13"),
        ("0 1 2 3 4 5 6 7 8 9 10 11 12", ""),
    ],
)
def test_oobleck_rules(lost: str, expected: str) -> None:
    found = oobleck_pipelines(START, set(lost.split()), 2)
    assert "|".join(" ".join(pipeline) for pipeline in found) == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.data())
def test_the_cheapest_assignment(count: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(st.integers(0, 30), min_size=count, max_size=count), min_size=count, max_size=count))
    costs = np.array(rows, dtype=np.int64)
    nodes = assign(costs)
    assert sorted(nodes) == list(range(count))
    best = min(sum(rows[place][node] for place, node in enumerate(order)) for order in itertools.permutations(range(count)))
    assert sum(rows[place][node] for place, node in enumerate(nodes)) == best


def layouts(nodes: Sequence[str]) -> Iterator[Pipelines]:
    for order in itertools.permutations(nodes):
        for parts in range(1, len(nodes) // 2 + 1):
            for borders in itertools.combinations(range(1, len(nodes)), parts - 1):
                ends = (0, *borders, len(nodes))
                pipelines = tuple(order[a:b] for a, b in itertools.pairwise(ends))
                if all(2 <= len(pipeline) <= 6 for pipeline in pipelines):
                    yield pipelines


def price(case: ReconfigurationProblem, pipelines: Pipelines) -> tuple[float, float, int]:
    held = {node: place for pipeline in case.pipelines for node, place in zip(pipeline, node_layers(TEMPLATES[len(pipeline)]), strict=True)}
    moved, changed = 0.0, 0
    for pipeline in pipelines:
        for node, place in zip(pipeline, node_layers(TEMPLATES[len(pipeline)]), strict=True):
            moved += sum(STATE[layer] for layer in place if layer not in held.get(node, ()))
            changed += held.get(node) != place
    return makespan(tuple(map(len, pipelines)), case.micro_batches), moved, changed


@functools.cache
def makespan(sizes: tuple[int, ...], micro_batches: int) -> float:
    """Of pipelines of so many nodes: hundreds of layouts differ in who is where alone."""
    groups = [GroupPace(TEMPLATES[size].pace, TEMPLATES[size].fill) for size in sizes]
    return distribute(groups, micro_batches).makespan


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([(2, 3), (3, 3), (2, 2, 2), (4, 2)]), st.integers(0, 5), st.booleans(), st.booleans())
def test_the_best_of_all_layouts(sizes: tuple[int, ...], gone: int, joins: bool, within: bool) -> None:
    names = iter("abcdef")
    pipelines = [[next(names) for _ in range(size)] for size in sizes]
    flat = [node for pipeline in pipelines for node in pipeline]
    case = problem(pipelines, flat[gone % len(flat)], joined=("new",) if joins and len(flat) < 6 else ())
    found = reconfigure(case, within)
    nodes = [node for node in flat if node not in case.lost] + list(case.joined)
    prices = [price(case, layout) for layout in layouts(nodes)]
    floor = price(case, oobleck_pipelines(case.pipelines, case.lost, 2))
    if within and not case.joined:
        prices = [one for one in prices if one[1] <= floor[1]]
    assert isinstance(found, Reconfiguration)
    assert found.exact
    best = min(prices)
    assert found.key == (pytest.approx(best[0]), best[1], best[2])
    assert price(case, found.pipelines) == (pytest.approx(found.time), found.moved_bytes, found.moved_nodes)
    assert sorted(node for pipeline in found.pipelines for node in pipeline) == sorted(nodes)


@settings(max_examples=20, deadline=None)
@given(st.sets(st.integers(0, 13), max_size=8))
def test_every_copy_has_a_living_source_that_holds_the_layer(lost: set[int]) -> None:
    case = problem(START, " ".join(map(str, lost)))
    found = reconfigure(case)
    if isinstance(found, CannotReconfigure):
        assert found.fallback == "checkpoint"
        return
    held = {node: place for pipeline in START for node, place in zip(pipeline, node_layers(TEMPLATES[len(pipeline)]), strict=True)}
    wanted = {node: place for pipeline in found.pipelines for node, place in zip(pipeline, node_layers(TEMPLATES[len(pipeline)]), strict=True)}
    assert sorted(wanted) == sorted(set(held) - case.lost)
    assert sum(STATE[copy.layer] for copy in found.copies) == found.moved_bytes
    received = {(copy.target, copy.layer) for copy in found.copies}
    assert all(copy.source not in case.lost and copy.layer in held[copy.source] for copy in found.copies)
    assert all(layer in held[node] or (node, layer) in received for node, place in wanted.items() for layer in place)


def test_too_few_nodes_stop_with_the_checkpoint_as_fallback() -> None:
    stopped = reconfigure(problem([["a", "b"], ["c", "d"]], "a", faults=1))
    assert stopped == CannotReconfigure("3 nodes are left, 2 pipelines need 4", "checkpoint")


def test_a_layer_that_nobody_holds_stops() -> None:
    stopped = reconfigure(problem([["a", "b", "c"], ["d", "e", "f"]], "a d"))
    assert isinstance(stopped, CannotReconfigure)
    assert stopped.why.startswith("no survivor holds layer 0")


def test_the_undisturbed_stays_where_it_is() -> None:
    found = reconfigure(problem([["a", "b", "c"], ["d", "e", "f"]], micro_batches=60))
    assert isinstance(found, Reconfiguration)
    assert found.moved_bytes == 0
    assert found.batches.counts == (30, 30)


def test_slow_nodes_are_gathered_so_that_one_pipeline_suffers() -> None:
    case = problem([["a", "b"], ["c", "d"], ["e", "f"]], speeds={"a": 0.5, "c": 0.5}, micro_batches=60)
    found = reconfigure(case, within_oobleck=False)
    assert isinstance(found, Reconfiguration)
    slow = [pipeline for pipeline in found.pipelines if {"a", "c"} & set(pipeline)]
    assert len(slow) == 1
    assert not found.exact
    still = reconfigure(case)
    assert isinstance(still, Reconfiguration)
    assert still.moved_bytes == 0
    assert found.time < still.time


def test_impossible_input_is_named() -> None:
    with pytest.raises(ConfigError, match="pipelines of \\[1\\] nodes"):
        reconfigure(problem([["a"], ["b", "c"]]))
    with pytest.raises(ConfigError, match="speed of b"):
        reconfigure(problem([["a", "b"]], speeds={"b": 0.0}))


def test_places_of_nodes_with_several_gpus() -> None:
    template = pack(LayerChain(tuple(ProfiledLayer(f"l{n}", 1, 2, 1, 1, {2: 0.5}) for n in range(6))), [2], 2, 32).templates[2]
    first, second = node_layers(template)
    assert (first.start, first.stop, second.stop) == (0, second.start, 6)
    assert sum(stage.gpus for stage in template.stages if stage.first in first) == 2
