"""Templates: equal to brute force, memory respected, every node count served or refused."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye.errors import ConfigError
from remediation.planner.pipelines.layer_profile import LayerChain, ProfiledLayer, parse_layers
from remediation.planner.pipelines.node_stages import one_stage_per_node
from remediation.planner.pipelines.packing import any_order, halves, pack
from remediation.planner.pipelines.pipeline_template import four_per_stage, iteration_time
from remediation.planner.pipelines.template_set import NodeCluster, make_templates, node_coverage

TIMES = st.lists(st.integers(1, 12), min_size=1, max_size=7)


def chain(times: Sequence[float], memory: Sequence[float] | None = None, reduce: float = 0.0) -> LayerChain:
    sizes = memory or [1.0] * len(times)
    in_node = {1: 0.0, 2: reduce, 4: reduce * 1.5, 8: reduce * 2}
    return LayerChain(tuple(ProfiledLayer(f"l{n}", t / 4, t * 3 / 4, 0.0, size, in_node) for n, (t, size) in enumerate(zip(times, sizes, strict=True))))


def cuts(length: int, parts: int) -> Iterator[list[tuple[int, int]]]:
    for borders in itertools.combinations(range(1, length), parts - 1):
        ends = [0, *borders, length]
        yield list(itertools.pairwise(ends))


def node_orders(per_node: int, rule: object) -> list[tuple[int, ...]]:
    sizes = [size for size in (1, 2, 4, 8) if size <= per_node]
    found = []

    def grow(done: tuple[int, ...]) -> None:
        used = sum(done)
        if used == per_node:
            found.append(done)
        for size in sizes:
            if rule(used, size, per_node):  # type: ignore[operator]
                grow((*done, size))

    grow(())
    return found


def brute(layers: LayerChain, nodes: int, per_node: int, micro_batches: int, rule: object, room: float) -> float:
    best = float("inf")
    memory = layers.memory()
    for orders in itertools.product(node_orders(per_node, rule), repeat=nodes):
        gpus = [size for order in orders for size in order]
        if len(gpus) > len(layers):
            continue
        for cut in cuts(len(layers), len(gpus)):
            if any(memory[first:end].sum() > size * room for (first, end), size in zip(cut, gpus, strict=True)):
                continue
            latencies = [float(layers.latencies(size)[first:end].sum()) for (first, end), size in zip(cut, gpus, strict=True)]
            best = min(best, iteration_time(latencies, micro_batches))
    return best


@pytest.mark.parametrize(("stages", "time"), [(2, 196.0), (3, 234.0), (4, 222.0)])
def test_golden_cuts_of_six_growing_layers(stages: int, time: float) -> None:
    found = one_stage_per_node(chain([2, 4, 6, 8, 10, 12]), [stages], four_per_stage)
    assert found[stages].time == pytest.approx(time)


@settings(max_examples=60, deadline=None)
@given(TIMES, st.data())
def test_one_stage_per_node_is_the_best_cut(times: list[int], data: st.DataObject) -> None:
    memory = data.draw(st.lists(st.integers(1, 5), min_size=len(times), max_size=len(times)))
    room = data.draw(st.integers(3, 15))
    layers = chain(times, [float(size) for size in memory])
    found = one_stage_per_node(layers, range(1, len(times) + 2), four_per_stage, gpu_bytes=room)
    for nodes in range(1, len(times) + 2):
        fitting = [cut for cut in cuts(len(times), nodes) if all(sum(memory[a:b]) <= room for a, b in cut)]
        best = min((iteration_time([float(sum(times[a:b])) for a, b in cut], 4 * nodes) for cut in fitting), default=None)
        assert (nodes in found) == (best is not None)
        if best is not None:
            assert found[nodes].time == pytest.approx(best, rel=1e-9)
            assert iteration_time(found[nodes].latencies, 4 * nodes) == found[nodes].time


@settings(max_examples=50, deadline=None)
@given(TIMES, st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (1, 3), (2, 3)]), st.sampled_from([8, 30]), st.booleans(), st.integers(2, 20), st.integers(0, 4))
def test_packing_is_the_best_cut(times: list[int], shape: tuple[int, int], micro_batches: int, free: bool, room: int, reduce: int) -> None:
    nodes, per_node = shape
    layers = chain(times, reduce=float(reduce))
    rule = any_order if free or per_node == 3 else halves
    packed = pack(layers, [nodes], per_node, micro_batches, gpu_bytes=room, rule=rule)
    best = brute(layers, nodes, per_node, micro_batches, rule, room)
    assert (nodes in packed.templates) == np.isfinite(best)
    if nodes in packed.templates:
        found = packed.templates[nodes]
        assert found.time == pytest.approx(best, rel=1e-9)
        assert packed.gaps[nodes] == pytest.approx(0, abs=1e-9)
        assert found.stages[0].first == 0
        assert found.stages[-1].end == len(times)
        assert sum(stage.gpus for stage in found.stages) == nodes * per_node
        assert all(a.end == b.first for a, b in itertools.pairwise(found.stages))


def test_a_wide_gap_is_still_a_proof() -> None:
    times = np.random.default_rng(3).uniform(1, 9, 20)
    layers = chain(list(times), reduce=0.2)
    exact, loose = pack(layers, [3], 4, 40), pack(layers, [3], 4, 40, gap=0.2)
    assert loose.templates[3].time * (1 - loose.gaps[3]) <= exact.templates[3].time + 1e-9
    assert loose.gaps[3] <= 0.2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 12))
def test_consecutive_sizes_serve_every_count(least: int, faults: int, more: int) -> None:
    nodes = (faults + 1) * least + more
    coverage = node_coverage(range(least, nodes - faults * least + 1), nodes, faults)
    coverage.require_all()
    for count in range((faults + 1) * least, nodes + 1):
        assert sum(coverage.served[count]) == count
        assert len(coverage.served[count]) >= faults + 1


def test_counts_that_nobody_serves_are_named() -> None:
    coverage = node_coverage((4, 5), 12, 0)
    assert coverage.unserved == (6, 7, 11)
    with pytest.raises(ConfigError, match="6, 7, 11"):
        coverage.require_all()


def test_memory_sets_the_smallest_pipeline() -> None:
    layers = chain([1.0] * 8, [10.0] * 8)
    made = make_templates(layers, NodeCluster(nodes=6, gpu_bytes=40.0, faults=1))
    assert made.smallest == 2
    assert made.minimum_nodes == 4
    assert sorted(made.by_nodes) == [2, 3, 4]
    with pytest.raises(ConfigError, match="3 pipelines of at least 2 nodes"):
        make_templates(layers, NodeCluster(nodes=5, gpu_bytes=40.0, faults=2))
    with pytest.raises(ConfigError, match="fits on none"):
        make_templates(layers, NodeCluster(nodes=5, gpu_bytes=5.0))


def test_fixed_micro_batches_use_several_stages_of_a_node() -> None:
    made = make_templates(chain([3.0] * 16, reduce=1.0), NodeCluster(nodes=3, gpus_per_node=4, faults=1), micro_batches=64)
    assert len(made.by_nodes[1].stages) == 4


def test_a_profile_that_lacks_a_field_is_refused() -> None:
    with pytest.raises(ConfigError, match="forward"):
        parse_layers({"layers": [{"name": "a", "mem_required": [1, 1]}]})
    with pytest.raises(ConfigError, match="8 GPUs"):
        parse_layers({"layers": [{"name": "a", "forward": 1, "backward": 1, "mem_required": [1, 1]}]}).latencies(8)
