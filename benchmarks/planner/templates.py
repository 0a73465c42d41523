"""Pipeline templates: equal to the optimum, and how long they take.

    python -m benchmarks.planner.templates --data DIRECTORY [--json]

DIRECTORY holds profiles/*.json and expected/*.json (optimal times by another solver, and what Oobleck's planners chose).
Times are one core's, with the clock on the wall beside them: nothing here runs on more than one.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import Row, report
from remediation.planner.pipelines.layer_profile import LayerChain, ProfiledLayer, parse_layers
from remediation.planner.pipelines.node_stages import one_stage_per_node
from remediation.planner.pipelines.packing import any_order, halves, pack
from remediation.planner.pipelines.pipeline_template import four_per_stage, iteration_time
from remediation.planner.pipelines.template_set import NodeCluster, make_templates

EQUAL = 1e-9
GAP = 1e-3


@dataclass(slots=True)
class Comparison:
    """Relative distances to the optimum of another solver, and the peer's."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    def add(self, ours: float, optimum: float, peer: float) -> None:
        self.ours.append(ours / optimum - 1)
        self.peer.append(peer / optimum - 1)

    def row(self, what: str) -> Row:
        """Equal to the optimum within EQUAL, and never above the peer."""
        ours, peer = np.array(self.ours or [np.nan]), np.array(self.peer or [np.nan])
        met = bool((np.abs(ours) <= EQUAL).all() and (ours <= peer + EQUAL).all())
        figure = f"{len(self.ours)} templates, {ours.min():+.1e} to {ours.max():+.1e}"
        beside = f"{(peer > EQUAL).sum()} of them above, {peer.max():.2%} at most"
        return Row(what, figure, f"within {EQUAL:g} of the optimum, none above the peer", met, beside)


def main(arguments: list[str]) -> int:
    """Compare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    cold = cold_row()
    rows = [*optima(options.data), cold, *times(), coverage()]
    return report(rows, options.json, "pipeline templates")


def optima(data: Path) -> list[Row]:
    """All profiles with answers."""
    single = Comparison()
    packed: dict[tuple[str, int], Comparison] = {}
    for layers, answers in _answers(data):
        wanted = answers["one_stage_per_node"]["templates"]
        found = one_stage_per_node(layers, [case["num_nodes"] for case in wanted], four_per_stage)
        for case in wanted:
            single.add(found[case["num_nodes"]].time, case["optimal_iteration_time"], case["iteration_time"])
        for group in answers.get("multi_gpu", []):
            _packed(layers, group, packed)
    rows = [single.row("one stage per node, micro-batches 4 × stages (peer: Oobleck's Rust planner)")]
    for (rule, batches), comparison in sorted(packed.items()):
        rows.append(comparison.row(f"{rule}, {batches} micro-batches, memory check off (peer: Oobleck's C++ planner)"))
    return rows


def _packed(layers: LayerChain, group: dict[str, Any], into: dict[tuple[str, int], Comparison]) -> None:
    rule = halves if "halves" in group["gpu_split_rule"] else any_order
    counts = [case["num_nodes"] for case in group["templates"]]
    for batches in (32, 128):
        found = pack(layers, counts, group["gpus_per_node"], batches, rule=rule).templates
        comparison = into.setdefault((rule.__name__, batches), Comparison())
        for case in group["templates"]:
            latencies = [float(layers.latencies(gpus)[first:end].sum()) for first, end, gpus in case["stages"]]
            optimum, peer = case[f"optimal_T_nb{batches}"], iteration_time(latencies, batches)
            comparison.add(found[case["num_nodes"]].time, optimum, peer)


def _answers(data: Path) -> Iterator[tuple[LayerChain, dict[str, Any]]]:
    for path in sorted((data / "expected").glob("*.json")):
        yield parse_layers(json.loads((data / "profiles" / path.name).read_text())), json.loads(path.read_text())


def synthetic(count: int, per_node: int = 1) -> LayerChain:
    """Unequal layers with in-node collectives of a ring."""
    rng = np.random.default_rng(count)
    powers = [2**power for power in range(per_node.bit_length())]
    ring = {gpus: 0.8 * (gpus - 1) / gpus for gpus in powers}
    return LayerChain(tuple(ProfiledLayer(f"l{index}", value, 2 * value, 1e8, 1e7, ring) for index, value in enumerate(rng.lognormal(0.5, 0.5, count))))


def cold_row() -> Row:
    """The first template that this process makes: nothing is warm."""
    layers = synthetic(96)
    timed = _timed(lambda: one_stage_per_node(layers, range(1, 65), four_per_stage))
    figure = f"{timed.core_s:.3f} s (wall {timed.wall_s:.3f})"
    return Row("96 layers, 1..64 nodes, cold (no compiler)", figure, "≤ 0.3 s", timed.core_s <= 0.3, "Rust 80 to 101 s, C++ hours")


def times() -> list[Row]:
    """Several GPUs per node."""
    rows = []
    for nodes, batches, goal in ((8, 128, True), (8, 64, True), (8, 32, True), (16, 128, False)):
        layers = synthetic(48, 8)
        timed = _timed(lambda n=nodes, b=batches, chain=layers: pack(chain, range(1, n + 1), 8, b))  # type: ignore[misc]
        gap = max(timed.result.gaps.values())
        met = timed.core_s <= (60 if gap <= EQUAL else 5) and gap <= GAP if goal else None
        target = "≤ 5 s with a proved gap ≤ 0.1 %, exact ≤ 60 s" if goal else ""
        what = f"48 layers, 1..{nodes} nodes × 8 GPUs, {batches} micro-batches"
        rows.append(Row(what, f"{timed.core_s:.2f} s (wall {timed.wall_s:.2f}), proved gap {gap:.2%}", target, met, "C++ 104 to 125 s" if nodes == 8 else ""))
    return rows


def coverage() -> Row:
    """With a memory check on: every node count of the operating range is served."""
    counts = 0
    for faults in range(4):
        made = make_templates(synthetic(48), NodeCluster(nodes=64, gpu_bytes=8e9, faults=faults))
        made.coverage.require_all()
        counts += len(made.coverage.served)
    return Row("coverage, 48 layers, n0 by memory, 64 nodes, f = 0..3", f"{counts} node counts served", "all", True, "Oobleck: by theorem")


class Timed(NamedTuple):
    """What came out, and the seconds of one core and of the clock on the wall."""

    result: Any
    core_s: float
    wall_s: float


def _timed(work: Callable[[], Any]) -> Timed:
    core, wall = time.process_time(), time.perf_counter()
    result = work()
    return Timed(result, time.process_time() - core, time.perf_counter() - wall)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
