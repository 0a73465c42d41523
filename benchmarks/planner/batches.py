"""Micro-batches over unequal groups, and which pipelines to make: exact answers, and how long they take.

    python -m benchmarks.planner.batches --data DIRECTORY [--json]

DIRECTORY holds instantiation/cases.json (answers of an ILP and of another exact solver).
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Row, report
from remediation.planner.pipelines.instantiation import instantiate
from remediation.planner.pipelines.micro_batch_distribution import GroupPace, distribute

REPEATS = 7


def main(arguments: list[str]) -> int:
    """Compare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    return report([groups_row(), *large(), cases(options.data)], options.json, "micro-batches and instantiation")


def groups_row() -> Row:
    """A job of 10,000 GPUs: 1,250 groups of unequal speed."""
    rng = np.random.default_rng(1)
    groups = [GroupPace(float(1 / speed), float(fill)) for speed, fill in zip(rng.uniform(0.3, 1, 1250), rng.uniform(0, 3, 1250), strict=True)]
    seconds, found = _median(lambda: distribute(groups, 40_000))
    optimal = _least(groups, 40_000) == found.makespan and sum(found.counts) == 40_000
    figure = f"{seconds * 1e3:.2f} ms, {'equal to one by one' if optimal else 'NOT optimal'}"
    return Row("1,250 unequal groups, 40,000 micro-batches", figure, "≤ 10 ms, optimal", seconds <= 0.01 and optimal, "Greyhound: 6.5 s at 16, fails at 32")


def _least(groups: list[GroupPace], total: int) -> float:
    """The definition: each micro-batch to the group that would be done first with it."""
    counts = np.ones(len(groups), dtype=int)
    each, fill = np.array([group.each for group in groups]), np.array([group.fill for group in groups])
    for _ in range(total - len(groups)):
        counts[np.argmin(fill + each * (counts + 1))] += 1
    return float((fill + each * counts).max())


def large() -> list[Row]:
    """64 nodes, templates of 4 to 60."""
    rng = np.random.default_rng(2)
    rows = []
    for total in (512, 8192):
        paces = {nodes: GroupPace(float(rng.uniform(0.9, 1.1) * 60 / nodes), float(rng.uniform(5, 9))) for nodes in range(4, 61)}
        seconds, found = _median(lambda p=paces, t=total: instantiate(p, 64, t, 2))  # type: ignore[misc]
        least = min(distribute([paces[size] for size in sizes], total).makespan for sizes in _options(64, 4) if 2 <= len(sizes) <= total)
        figure = f"{seconds * 1e3:.0f} ms, {'equal to' if least == found.time else 'NOT'} the best of all 19,041 options"
        rows.append(Row(f"64 nodes, templates 4..60, {total} micro-batches", figure, "≤ 0.2 s, exact", seconds <= 0.2 and least == found.time, "8 min by ILP"))
    return rows


def _options(nodes: int, least: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [(nodes,)] if 4 <= nodes <= 60 else []
    for first in range(least, nodes // 2 + 1):
        found += [(first, *rest) for rest in _options(nodes - first, first)]
    return found


def cases(data: Path) -> Row:
    """Oobleck's objective: latency / nodes for each micro-batch, nothing else."""
    equal, peer, seconds = 0, 0.0, 0.0
    known = json.loads((data / "instantiation" / "cases.json").read_text())["cases"]
    for case in known:
        paces = {int(nodes): GroupPace(latency / int(nodes)) for nodes, latency in case["template_latency"].items()}
        begin = time.perf_counter()
        found = instantiate(paces, case["num_nodes"], case["global_num_microbatches"])
        seconds = max(seconds, time.perf_counter() - begin)
        equal += abs(found.time / case["Z_exact_nb_ge1"] - 1) <= 1e-9
        peer = max(peer, case["instantiate_wall_s"])
    figure = f"{equal} of {len(known)} equal, {seconds * 1e3:.0f} ms at most"
    return Row("instantiation/cases.json", figure, "all equal", equal == len(known), f"PuLP/CBC {peer:.2f} s at most")


def _median(work: Callable[[], Any]) -> tuple[float, Any]:
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times), result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
